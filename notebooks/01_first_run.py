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
# # A first run
#
# This notebook trains a small ResNet on 1,437 scans of handwritten digits, without their labels. It plots the
# training curves, measures the accuracy of the learned features and shows nearest neighbours. Nothing is
# downloaded, and training takes about a minute on two cores.
#
# Everything is written to a temporary directory.

# %%
import os
import tempfile
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

import ssl_vision
from ssl_vision.data import Digits
from ssl_vision.metrics import nearest

os.chdir(tempfile.mkdtemp())
plt.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)


# %% [markdown]
# ## The images and their views
#
# SimCLR makes two random views of each image and trains the network to recognise which views belong to the
# same image. The network learns to ignore what the views change. A digit remains the same digit if it is
# slightly rotated or cropped, or loses contrast. The first row shows ten scans, and the other rows two views
# of each.

# %%
data = Digits(views=replace(Digits().views, scale=(0.7, 1.0), degrees=10.0))
scans = data.split("train").select(torch.arange(10))
views = data.views(scans.images, torch.arange(10), seed=0, epoch=0)

figure, grid = plt.subplots(3, 10, figsize=(9, 2.9))
for row, images in zip(grid, (data.views.plain(scans.images), *views.chunk(2)), strict=True):
    for axes, image in zip(row, images, strict=True):
        axes.imshow(image[0], cmap="gray_r")
        axes.axis("off")
plt.show()

# %% [markdown]
# ## Pretrain
#
# `ssl_vision.fit` takes config files or options, which are those of `ssl-vision fit` in a terminal. This run
# uses InfoNCE at temperature 0.5 for 20 epochs, with the views above. A width of 16 instead of 64 and the
# stem for large images make it fast. Remove `trainer.accelerator` to use a GPU.

# %%
first = ssl_vision.fit(
    {
        "model.encoder.width": 16,
        "model.encoder.stem": "imagenet",
        "model.objective": "InfoNCE",
        "model.objective.temperature": 0.5,
        "data": "Digits",
        "data.batch_size": 128,
        "data.views.scale": [0.7, 1.0],
        "data.views.degrees": 10.0,
        "trainer.max_epochs": 20,
        "trainer.check_val_every_n_epoch": 2,
        "trainer.log_every_n_steps": 11,
        "trainer.accelerator": "cpu",
    },
    name="first",
)
first

# %% [markdown]
# The run directory contains the config, the metrics, the checkpoints and a report.

# %%
sorted(file.name for file in first.folder.path.iterdir() if not file.name.startswith("."))

# %% [markdown]
# ## Training curves
#
# The loss alone says little. The kNN accuracy is that of held-out scans by other writers. Alignment is the
# mean squared distance between two views of an image, and uniformity measures how evenly all images are
# spread over the sphere. Lower is better for both.

# %%
figure, panels = plt.subplots(1, 4, figsize=(11, 2.6))
for axes, metric in zip(
    panels, ("train/loss", "val/knn_top1", "val/alignment", "val/uniformity"), strict=True
):
    _, epochs, values = zip(*first.curve(metric), strict=True)
    axes.plot([epoch + 1 for epoch in epochs], values, ".-")
    axes.set(title=metric, xlabel="epoch")
plt.show()

# %% [markdown]
# ## Accuracy on the test split
#
# `ssl_vision.evaluate` measures the run on the test split, which was not used in training. The last two rows
# are the baselines: the same network before training, and the raw pixels. If training does not beat these
# baselines, it has not helped. With all labels, raw pixels are hard to beat, because the scans are centred
# and have the same size. With 1 % of the labels, one scan of each digit, the learned features are far better.

# %%
ssl_vision.evaluate(first, protocol=["macl", "few_labels"])

# %% [markdown]
# ## Nearest neighbours
#
# `ssl_vision.load_encoder` loads the backbone of a run. It encodes both splits here, and `nearest` finds the
# eight training scans that are most similar to each test scan. The titles are the labels, in red where they
# differ from the label of the test scan on the left.

# %%
backbone = ssl_vision.load_encoder(first)
train, test = data.split("train"), data.split("test")
with torch.inference_mode():
    bank, queries = (backbone(data.views.plain(split.images)) for split in (train, test))
found = nearest(queries, bank, k=8).index

rows = torch.arange(0, len(test), len(test) // 6)[:6]
figure, grid = plt.subplots(len(rows), 9, figsize=(8, 6.2))
for axes_row, query in zip(grid, rows, strict=True):
    axes_row[0].imshow(test.images[query, 0], cmap="gray_r")
    axes_row[0].set_title(f"test: {test.labels[query]}", fontsize=9)
    for axes, neighbour in zip(axes_row[1:], found[query], strict=True):
        same = train.labels[neighbour] == test.labels[query]
        axes.imshow(train.images[neighbour, 0], cmap="gray_r")
        axes.set_title(int(train.labels[neighbour]), color="black" if same else "red", fontsize=9)
for axes in grid.flat:
    axes.axis("off")
plt.show()

# %%
share = (train.labels[found] == test.labels[:, None]).float().mean()
print(f"of the eight neighbours of each of {len(test)} test scans, {share:.1%} show the same digit")

# %% [markdown]
# ## Next steps
#
# - Set `"model.objective": "MACL"` to try another objective. Notebook 03 shows the effect of the temperature.
# - Set `"data": "ImageFolder"` and `"data.root": "my_images"` to use your own images, as in notebook 06.
# - `ssl_vision.fit("configs/pretrain/digits.yaml")`, or `ssl-vision fit --config
#   configs/pretrain/digits.yaml` in a terminal, trains for longer.
