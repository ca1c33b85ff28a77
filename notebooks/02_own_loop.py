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
# # An objective in your own loop
#
# The objectives in `ssl_vision.objectives` depend on torch only. They map two batches of embeddings to a
# scalar loss. This notebook trains a small convolutional network with one of them in a plain PyTorch loop,
# and plots the statistics that the objective records.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vision.metrics import knn_table
from ssl_vision.objectives import (
    AlignmentExponential,
    Contrastive,
    CosineInEpoch,
    InfoNCE,
    Learnable,
    in_chunks,
)

plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # (1797, 1, 8, 8)
labels = torch.tensor(digits.target)
train, test = slice(1437), slice(1437, None)

# %% [markdown]
# ## Views and network
#
# You can use any augmentation. This one randomly shifts, rotates and scales each image, and adds noise. You
# can also use any network. The last layer is the projection head, which is discarded after training.


# %%
def view(batch: Tensor) -> Tensor:
    """A random view of each image."""
    n = len(batch)
    angle, scale = torch.randn(n) * 0.2, 1 + torch.randn(n) * 0.15
    cos, sin = scale * angle.cos(), scale * angle.sin()
    shift = torch.randn(n, 2) * 0.15
    matrix = torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], dim=1).view(n, 2, 3)
    grid = F.affine_grid(matrix, list(batch.shape), align_corners=False)
    return F.grid_sample(batch, grid, align_corners=False) + 0.1 * torch.randn_like(batch)


def block(channels: int, out: int, stride: int) -> nn.Sequential:
    """A convolution with group normalisation."""
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, padding=1), nn.GroupNorm(4, out), nn.ReLU())


def new_network() -> nn.Sequential:
    """A backbone with 128 features, and a projection head with 64 outputs."""
    backbone = nn.Sequential(
        block(1, 32, 1), block(32, 64, 2), block(64, 128, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return nn.Sequential(backbone, nn.Linear(128, 64))


# %% [markdown]
# ## The objective
#
# `objective(z1, z2)` normalises the embeddings itself. `statistics()` returns statistics of the last call at
# no extra cost. Pass the objective's parameters to the optimizer, because some objectives have any.
# Temperatures with a schedule use `set_epoch`.


# %%
def fit(network: nn.Module, objective: Contrastive, *, epochs: int) -> list[dict[str, float]]:
    """Train the network, and return the last statistics of each epoch."""
    optimizer = torch.optim.Adam([*network.parameters(), *objective.parameters()], lr=2e-3)
    history = []
    for epoch in range(epochs):
        objective.set_epoch(epoch)
        for batch in torch.randperm(1437).split(256):
            loss = objective(network(view(images[train][batch])), network(view(images[train][batch])))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append({name: float(value) for name, value in objective.statistics().items()})
    return history


network = new_network()
before = {name: value.clone() for name, value in network.state_dict().items()}
history = fit(network, InfoNCE(temperature=0.5), epochs=25)
history[-1]

# %% [markdown]
# The left plot shows the mean similarity of the two views of an image, which training increases. The right
# plot shows W, which is one minus the softmax probability of the positive. InfoNCE weights the gradient of an
# anchor by W.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
epochs = range(1, len(history) + 1)
left.plot(epochs, [row["alignment"] for row in history])
left.set(xlabel="epoch", title="similarity of the positives")
lower, middle, upper = ([row[f"weight_{q}"] for row in history] for q in ("q05", "q50", "q95"))
right.fill_between(epochs, lower, upper, alpha=0.25, label="5 % to 95 % of the anchors")
right.plot(epochs, middle, label="median")
right.set(xlabel="epoch", title="W")
right.legend(frameon=False, loc="lower left")
plt.show()

# %% [markdown]
# ## Accuracy
#
# These are the kNN accuracies on the test scans, with raw pixels and with the backbone before and after
# training. One neighbour search serves all values of k.


# %%
def accuracies(features: Tensor) -> str:
    """KNN accuracy with 5, 20 and 200 neighbours."""
    scores = knn_table(
        features[test], labels[test], features[train], labels[train],
        num_classes=10, ks=(5, 20, 200), temperatures=(0.1,),
    )  # fmt: skip
    return "   ".join(f"k = {score.k}: {score.top1:.1%}" for score in scores)


with torch.no_grad():
    untrained = new_network()
    untrained.load_state_dict(before)
    print("raw pixels  ", accuracies(images.flatten(1)))
    print("untrained   ", accuracies(untrained[0](images)))
    print("trained     ", accuracies(network[0](images)))

# %% [markdown]
# ## Temperature rules
#
# The temperature is a number or a rule. A rule may depend on the epoch or on the alignment of the batch, as
# in MACL, or it may be a learned parameter. `InfoNCE`, `DCL` and others accept every rule.

# %%
RULES = {
    "half a cosine": CosineInEpoch(0.5, 0.1, epochs=8),
    "of the alignment": AlignmentExponential(0.1, 2.0),
    "learned": Learnable(0.2),
}
figure, axes = plt.subplots(figsize=(5, 2.8))
for name, rule in RULES.items():
    rows = fit(new_network(), Contrastive(temperature=rule), epochs=8)
    axes.plot(range(1, 9), [row["temperature"] for row in rows], ".-", label=name)
axes.set(xlabel="epoch", ylabel="temperature", ylim=(0, None))
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Batches larger than memory
#
# Gradient accumulation does not increase the number of negatives, but `in_chunks` does. The network processes
# 100 images at a time, and the objective all 1,437. The gradient equals that of the whole batch up to
# rounding, because this network has no BatchNorm, which would mix the images of a chunk.

# %%
first, second = view(images[train]), view(images[train])


def gradient(z1: Tensor, z2: Tensor) -> Tensor:
    """The gradient of InfoNCE with respect to the weights of the first convolution."""
    return torch.autograd.grad(InfoNCE()(z1, z2), network[0][0][0].weight)[0]


whole = gradient(network(first), network(second))
chunked = gradient(in_chunks(network, first, size=100), in_chunks(network, second, size=100))
print(f"largest difference {(whole - chunked).abs().max():.1e}, largest gradient {whole.abs().max():.1e}")

# %% [markdown]
# ## Next steps
#
# Under `torch.distributed`, the objective gathers the embeddings of all processes. `docs/objectives.md` lists
# all objectives and temperature rules, and notebook 04 adds a new objective.
