"""Draws docs/weights.svg: how much each objective listens to an anchor, by its logit margin d.

    python docs/weights.py

Each curve is the derivative of the objective's loss by d, taken by autograd from the weights that training
uses. Dual temperature and MACL-c need more than d; for them the anchor has K = 510 negatives (batch 256) of
similarity 0 at τ = 0.1, so that d = log K − s⁺/τ.
"""

import math
from pathlib import Path

import torch
from torch import Tensor

from ssl_vision.objectives import (
    Anchors,
    AtTemperature,
    Clipped,
    Decoupled,
    Flat,
    MarginLoss,
    Reweighted,
    ReweightedByAlignment,
    Softmax,
)

TAU, NEGATIVES = 0.1, 510
CURVES: dict[str, tuple[MarginLoss, str, str, float]] = {
    "MACL-c": (ReweightedByAlignment(), "#CC79A7", "-", 2),
    "DCL, MACL, FlatNCE": (Reweighted(), "#bbbbbb", "-", 6),
    "dual temperature, τ_β = 1": (AtTemperature(1.0), "#009E73", "-", 1.5),
    "dual temperature, τ_β = 0.15": (AtTemperature(0.15), "#009E73", ":", 2.5),
    "InfoNCE (dual temperature, τ_β = τ)": (Softmax(), "#0072B2", "-", 2),
    "DCL⁺": (Clipped(), "#D55E00", "--", 2),
}
SAME_AS_MACL = (Decoupled(), Flat())


def logit_margins() -> Tensor:
    """All d that a similarity in [−1, 1] of the positive gives."""
    return math.log(NEGATIVES) - torch.linspace(1, -1, 801, dtype=torch.float64) / TAU


def weight_on(weight: MarginLoss, d: Tensor) -> Tensor:
    """∂ℓ/∂d of each anchor."""
    d = d.clone().requires_grad_()
    positive = (math.log(NEGATIVES) - d.detach()) * TAU
    anchors = Anchors(
        logit_margin=d,
        positive=positive,
        temperature=torch.tensor(TAU),
        logit_margin_at=lambda tau: math.log(NEGATIVES) - positive / tau,
    )
    return torch.autograd.grad(weight(anchors).sum(), d)[0]


def draw(path: Path) -> None:
    """The picture, as SVG."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "weights"})
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    d = logit_margins()
    for name, (weight, colour, style, width) in CURVES.items():
        axes.plot(d, weight_on(weight, d), style, color=colour, label=name, linewidth=width)
    axes.set(
        xlabel="logit margin d", ylabel="weight on ∇d", ylim=(-0.05, 3.1), xlim=(float(d[0]), float(d[-1]))
    )
    similarity = axes.secondary_xaxis(
        "top", functions=(lambda x: (math.log(NEGATIVES) - x) * TAU, lambda s: math.log(NEGATIVES) - s / TAU)
    )
    similarity.set_xlabel("similarity s⁺ of the positive, with K = 510 negatives at 0 and τ = 0.1")
    axes.axvline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"))
