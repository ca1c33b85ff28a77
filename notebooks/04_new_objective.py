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
# Every objective of the family is *weight × temperature rule × pairs*. The logit margin d of an anchor says
# how far its negatives outweigh its positive, and W = sigmoid(d) is one minus the softmax probability of the
# positive:
#
# $$d = \log \sum_j e^{s_j/\tau} - s^+/\tau$$
#
# InfoNCE puts the weight W on ∇d, DCL the weight 1. What lies between them? Here is W to the power p, which
# is DCL at p = 0 and InfoNCE at p = 1, from the ten lines to a training run.

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

from ssl_vision.main import main
from ssl_vision.objectives import DCL, AlignmentExponential, Anchors, Contrastive, InfoNCE, MarginLoss
from ssl_vision.runs.registry import Run

os.chdir(tempfile.mkdtemp())
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)


def run(command: str) -> None:
    """What `ssl-vision` and this command do in a terminal, without progress bars."""
    if main([*command.split(), "--quiet"]):
        raise RuntimeError(command)


# %% [markdown]
# ## The ten lines
#
# They go into a file, so that the command line finds them, too. `value_with_gradient(value, weight, d)`
# reports one number and trains with another: here the value is d, and the gradient W^p ∇d.

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
# Temperature rule and pairs come with `Contrastive`, and so do precision, memory, several processes and
# diagnostics.

# %%
torch.manual_seed(0)
z1 = torch.randn(256, 32)
z2 = z1 + torch.randn(256, 32)
for options in (
    {"temperature": 0.1},
    {"temperature": 0.1, "pairs": "cross"},
    {"temperature": AlignmentExponential(0.1, 2.0)},
):
    objective = Contrastive(weight=powers.Power(0.5), **options)
    print(f"{objective(z1, z2):.4f}", objective.pairs, f"τ = {objective.statistics()['temperature']:.3f}")

# %% [markdown]
# ## What it does: the weight curve
#
# The weight is the derivative of the loss by d, taken by autograd from the class itself. Anchors on the left
# are easy: InfoNCE lets them go, DCL keeps pulling, and the powers lie between.


# %%
def weight_on(weight: MarginLoss, d: Tensor) -> Tensor:
    """∂loss/∂d of anchors with these logit margins."""
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
# ## Is it right? A double loop says so
#
# The kernel works in tiles and never forms 1 − softmax. The same loss, written as the formula reads it, over
# every anchor and every negative, in float64, must have the same value and gradient.


# %%
def by_hand(z1: Tensor, z2: Tensor, *, temperature: float, power: float) -> Tensor:
    """The mean of W^p d over 2N anchors, W^p held fixed, one pair at a time."""
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
    ours = Contrastive(temperature=temperature, weight=powers.Power(0.5))(z1, z2)
    expected = by_hand(z1, z2, temperature=temperature, power=0.5)
    mine, theirs = (torch.cat(torch.autograd.grad(loss, (z1, z2))) for loss in (ours, expected))
    apart = (mine - theirs).abs().max() / theirs.abs().max()
    print(f"τ = {temperature:<4}  largest difference of the gradient, relative: {apart:.0e}")

# %% [markdown]
# The two ends are known objectives, so their gradients must agree as well.


# %%
def gradient(objective: Contrastive) -> Tensor:
    """By both views' embeddings."""
    return torch.cat(torch.autograd.grad(objective(z1, z2), (z1, z2)))


for p, known in ((0.0, DCL()), (1.0, InfoNCE())):
    apart = (gradient(Contrastive(weight=powers.Power(p))) - gradient(known)).abs().max()
    print(f"p = {p:g} and {type(known).__name__}: {apart:.0e} apart")

# %% [markdown]
# ## Train with it
#
# The command line takes a class by its path; in a terminal the folder of `powers.py` has to be on
# `PYTHONPATH`. Its options follow it like those of any other part. The seed is the same for all three runs,
# so they see the same batches and views.

# %%
POWERS = (0.0, 0.5, 1.0)
for p in POWERS:
    run(
        f"fit --name power_{p} --model.encoder.width 16 --model.encoder.stem imagenet "
        "--model.objective Contrastive "
        f"--model.objective.weight powers.Power --model.objective.weight.power {p} --data Digits "
        "--data.batch_size 128 --trainer.max_epochs 8 --trainer.check_val_every_n_epoch 2 "
        "--trainer.log_every_n_steps 11 --trainer.accelerator cpu"
    )

# %% [markdown]
# What is logged came with the logit margin. The three objectives differ by as much as W differs from 1: where
# its mean is near 1, they do nearly the same.

# %%
figure, panels = plt.subplots(1, 2, figsize=(8.5, 2.8))
for axes, metric in zip(panels, ("val/knn_top1", "train/weight_mean"), strict=True):
    for p in POWERS:
        _, epochs, values = zip(*Run(f"runs/power_{p}").curve(metric), strict=True)
        axes.plot([epoch + 1 for epoch in epochs], values, ".-", label=f"p = {p}")
    axes.set(title=metric, xlabel="epoch")
panels[0].legend(frameon=False)
plt.show()

# %% [markdown]
# ## From here
#
# One seed on the digits ranks nothing: notebook 05 compares objectives as it should be done. To keep an
# objective, see "Add one" in `docs/objectives.md`: a weight, a preset, a config, a row in the oracle test.
# One that is no function of d is a subclass of `TwoViews` with one method.
