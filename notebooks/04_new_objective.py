# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A new objective
#
# Every objective of the InfoNCE family combines a weight, a temperature rule and a set of pairs. The logit
# margin d of an anchor measures by how much its negatives outweigh its positive, and W = sigmoid(d) is one
# minus the softmax probability of the positive:
#
# $$d = \log \sum_j e^{s_j/\tau} - s^+/\tau$$
#
# InfoNCE weights ∇d by W, and DCL by 1. This notebook implements the weights between them, W to the power p.
# They give DCL at p = 0 and InfoNCE at p = 1.

# %%
import importlib
import os
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn import functional as F

import ssl_vision
from ssl_vision.objectives import DCL, AlignmentExponential, Anchors, Contrastive, InfoNCE, MarginLoss

os.chdir(tempfile.mkdtemp())
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)


# %% [markdown]
# ## Implementation
#
# The class is written to a file, so that a config can name it. `value_with_gradient(value, weight, d)`
# returns a loss whose value is d here, and whose gradient is W^p ∇d.

# %%
Path("powers.py").write_text('''
"""Weights between DCL and InfoNCE."""

from torch import Tensor

from ssl_vision.objectives import Anchors, MarginLoss
from ssl_vision.objectives.margin_loss import value_with_gradient


class Power(MarginLoss):
    """Value d, weight W^p on its gradient.

    Args:
        power: p; 0 is DCL, 1 has the gradient of InfoNCE.
    """

    def __init__(self, power: float = 0.5) -> None:
        super().__init__()
        self.power = power

    def forward(self, anchors: Anchors) -> Tensor:
        """D, carrying W^p ∇d."""
        d = anchors.logit_margin
        return value_with_gradient(d, d.sigmoid() ** self.power, d)
''')
sys.path.insert(0, os.getcwd())
powers = importlib.import_module("powers")

# %% [markdown]
# `Contrastive` adds the temperature rule and the pairs. It computes in float32, in memory linear in the batch
# size, gathers embeddings of several processes and records statistics.

# %%
torch.manual_seed(0)
z1 = torch.randn(256, 32)
z2 = z1 + torch.randn(256, 32)
for options in (
    {"temperature": 0.1},
    {"temperature": 0.1, "pairs": "cross"},
    {"temperature": AlignmentExponential(0.1, 2.0)},
):
    objective = Contrastive(margin_loss=powers.Power(0.5), **options)
    print(f"{objective(z1, z2):.4f}", objective.pairs, f"τ = {objective.statistics()['temperature']:.3f}")

# %% [markdown]
# ## The weight as a function of d
#
# The weight is the derivative of the loss with respect to d, computed by autograd. Anchors on the left are
# easy. InfoNCE gives them almost no weight, DCL gives all anchors the same weight, and the powers are in
# between.


# %%
def weight_on(weight: MarginLoss, d: Tensor) -> Tensor:
    """The derivative of the loss with respect to d for anchors with these logit margins."""
    d = d.clone().requires_grad_()
    anchors = Anchors(
        logit_margin=d, positive=-d.detach(), temperature=torch.tensor(1.0), logit_margin_at=lambda tau: d
    )
    return torch.autograd.grad(weight(anchors).sum(), d)[0]


d = torch.linspace(-8, 4, 200)
figure, axes = plt.subplots(figsize=(6, 2.8))
for p in (0.0, 0.25, 0.5, 1.0):
    axes.plot(d, weight_on(powers.Power(p), d), label=f"p = {p}")
axes.set(xlabel="logit margin d", ylabel="weight on ∇d")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Comparison with a double loop
#
# `Contrastive` computes in tiles and never forms 1 − softmax. The function below follows the formula, with a
# loop over anchors and negatives in float64. Both must have the same gradient.


# %%
def double_loop(z1: Tensor, z2: Tensor, *, temperature: float, power: float) -> Tensor:
    """The mean of W^p d over 2N anchors, with W^p as a constant."""
    z = F.normalize(torch.cat([z1, z2]))
    count = len(z)
    total = z.new_zeros(())
    for anchor in range(count):
        other_view = (anchor + count // 2) % count
        negatives = [z[anchor] @ z[j] / temperature for j in range(count) if j not in (anchor, other_view)]
        d = torch.stack(negatives).logsumexp(0) - z[anchor] @ z[other_view] / temperature
        total = total + d.sigmoid().detach() ** power * d
    return total / count


generator = torch.Generator().manual_seed(0)
z1, z2 = (torch.randn(12, 5, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2))
for temperature in (1.0, 0.1, 0.01):
    ours = Contrastive(temperature=temperature, margin_loss=powers.Power(0.5))(z1, z2)
    expected = double_loop(z1, z2, temperature=temperature, power=0.5)
    mine, theirs = (torch.cat(torch.autograd.grad(loss, (z1, z2))) for loss in (ours, expected))
    apart = (mine - theirs).abs().max() / theirs.abs().max()
    print(f"τ = {temperature:<4}  largest difference of the gradient, relative: {apart:.0e}")

# %% [markdown]
# At p = 0 and p = 1, the gradients must equal those of DCL and InfoNCE.


# %%
def gradient(objective: Contrastive) -> Tensor:
    """The gradient with respect to the embeddings of both views."""
    return torch.cat(torch.autograd.grad(objective(z1, z2), (z1, z2)))


for p, known in ((0.0, DCL()), (1.0, InfoNCE())):
    apart = (gradient(Contrastive(margin_loss=powers.Power(p))) - gradient(known)).abs().max()
    print(f"p = {p:g} and {type(known).__name__}: {apart:.0e} apart")

# %% [markdown]
# ## Train with it
#
# A config names the class by its import path, followed by its options. In a terminal, run `ssl-vision` in the
# directory of `powers.py`. All three runs have the same seed, and therefore the same batches and views.

# %%
POWERS = (0.0, 0.5, 1.0)
runs = [
    ssl_vision.fit(
        {
            "model.encoder.width": 16,
            "model.encoder.stem": "imagenet",
            "model.objective": "Contrastive",
            "model.objective.margin_loss": {"class_path": "powers.Power", "init_args": {"power": p}},
            "data": "Digits",
            "data.batch_size": 128,
            "trainer.max_epochs": 8,
            "trainer.check_val_every_n_epoch": 2,
            "trainer.log_every_n_steps": 11,
            "trainer.accelerator": "cpu",
        },
        name=f"power_{p}",
        report=False,
    )
    for p in POWERS
]
runs[1]

# %% [markdown]
# `train/weight_mean`, the mean of W, is logged for every objective of the family. Where it is close to 1, the
# three objectives are almost the same.

# %%
figure, panels = plt.subplots(1, 2, figsize=(8.5, 2.8))
for axes, metric in zip(panels, ("val/knn_top1", "train/weight_mean"), strict=True):
    for p, run in zip(POWERS, runs, strict=True):
        _, epochs, values = zip(*run.curve(metric), strict=True)
        axes.plot([epoch + 1 for epoch in epochs], values, ".-", label=f"p = {p}")
    axes.set(title=metric, xlabel="epoch")
panels[0].legend(frameon=False)
plt.show()

# %% [markdown]
# ## Next steps
#
# One seed on the digits cannot rank objectives; notebook 05 compares two objectives over several seeds.
# "Adding an objective" in `docs/objectives.md` explains how to add one to the package. An objective that is
# not a function of d is a subclass of `TwoViews` with one method.
