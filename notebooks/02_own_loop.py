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
# `ssl_vision.objectives` needs torch and nothing else: two batches of embeddings in, a scalar out. Here it
# trains a convolutional network of a dozen lines, in a loop of half a dozen, and says at each step what it is
# doing.

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
# ## Yours: views and network
#
# Any augmentation will do. This one shifts, turns and scales each image at random, and adds noise. Any
# network will do, too; the last layer is the projection, which is thrown away after training.


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
    """A convolution, normalised over groups of channels."""
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, padding=1), nn.GroupNorm(4, out), nn.ReLU())


def new_network() -> nn.Sequential:
    """A backbone of 128 features, and a projection to 64."""
    backbone = nn.Sequential(
        block(1, 32, 1), block(32, 64, 2), block(64, 128, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return nn.Sequential(backbone, nn.Linear(128, 64))


# %% [markdown]
# ## Ours: the objective
#
# `objective(z1, z2)` takes embeddings of any scale. `statistics()` tells what the last call was like, at no
# further cost. An objective may have parameters, so they go to the optimizer; `set_epoch` is for temperatures
# with a schedule.


# %%
def fit(network: nn.Module, objective: Contrastive, *, epochs: int) -> list[dict[str, float]]:
    """Trains the network; returns the last statistics of each epoch."""
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
# On the left the mean similarity of the two views of an image, which training is to raise. On the right W,
# one minus the softmax probability of the positive: InfoNCE's weight on an anchor's gradient.

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
# ## Was anything learned?
#
# kNN accuracy on the test scans, of the backbone before and after training and of the raw pixels. One search
# for neighbours serves every k.


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
# ## Any temperature rule, also one that learns
#
# A temperature is a number or a rule: of the epoch, of the alignment of the batch, as MACL's is, or a
# parameter that is trained along. Each rule goes with every objective.

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
# Accumulating gradients adds no negatives. `in_chunks` does: the network sees 100 images at a time, the
# objective all 1,437 of them. This network mixes no images, as BatchNorm would, so the gradient is that of
# the whole batch but for rounding.

# %%
first, second = view(images[train]), view(images[train])


def gradient(z1: Tensor, z2: Tensor) -> Tensor:
    """Of InfoNCE by the first convolution's weights."""
    return torch.autograd.grad(InfoNCE()(z1, z2), network[0][0][0].weight)[0]


whole = gradient(network(first), network(second))
chunked = gradient(in_chunks(network, first, size=100), in_chunks(network, second, size=100))
print(f"largest difference {(whole - chunked).abs().max():.1e}, largest gradient {whole.abs().max():.1e}")

# %% [markdown]
# ## From here
#
# Under `torch.distributed` the objective gathers the embeddings of all processes by itself.
# `docs/objectives.md` has all objectives and temperature rules; notebook 04 writes a new one.
