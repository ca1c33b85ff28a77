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
# A small ResNet is trained on 1,437 scans of handwritten digits without being told which digit each one is.
# We watch what it learns, put a number on it, and look at what it takes to be similar. No download, and less
# than a minute on two cores.

# %% [markdown]
# `main` does what `ssl-vision` does in a terminal, so each `run("…")` below can be typed there as `ssl-vision
# …`. Everything is written into a temporary folder.

# %%
import os
import tempfile
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

import ssl_vision
from ssl_vision.data import Digits
from ssl_vision.main import main
from ssl_vision.metrics import nearest
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
# ## The images and their views
#
# SimCLR makes two random views of each image and trains the network to recognise which two belong together.
# What the views change is what the network learns to ignore. Digits stay what they are when they are turned a
# little, cropped a little, or lose contrast. The top row shows ten scans, the rows below two views of each.

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
# InfoNCE at temperature 0.5 for 20 epochs, with the views above. A width of 16 instead of 64 and the stem
# made for large images keep it quick; leave `--trainer.accelerator cpu` out to use a GPU.

# %%
run(
    "fit --name first --model.encoder.width 16 --model.encoder.stem imagenet --model.objective InfoNCE "
    "--model.objective.temperature 0.5 --data Digits --data.batch_size 128 --data.views.scale [0.7,1.0] "
    "--data.views.degrees 10.0 --trainer.max_epochs 20 "
    "--trainer.check_val_every_n_epoch 2 --trainer.log_every_n_steps 11 --trainer.accelerator cpu"
)

# %% [markdown]
# The run directory holds the config, the metrics and the checkpoints. `Run` reads it, as can any program that
# reads YAML and CSV.

# %%
first = Run("runs/first")
sorted(file.name for file in first.folder.path.iterdir() if not file.name.startswith("."))

# %% [markdown]
# ## What it learned, epoch by epoch
#
# The loss says little by itself. kNN accuracy is measured on scans of people whose labels were held out.
# Alignment is the mean squared distance of two views of one image, uniformity how evenly all images are
# spread over the sphere: both are better when they are lower.

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
# ## How good it is
#
# `evaluate` uses the test split, which training never saw, and needs nothing but the run. Read the trained
# backbone beside the last two rows: an untrained network of the same shape, and the raw pixels. Only what
# exceeds them was learned.

# %%
run("evaluate runs/first")

# %% [markdown]
# ## What it takes to be similar
#
# The backbone of a run is one line. Here it embeds both splits, and FAISS or torch finds the eight training
# scans nearest to some test scans. Titles are the labels, red where they differ from that of the test scan on
# the left.

# %%
backbone = ssl_vision.load_encoder("runs/first")
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
# ## From here
#
# - Another objective is one option: `--model.objective MACL`. Notebook 03 shows what the temperature does.
# - Your own images are `--data ImageFolder --data.root my_images`: notebook 06.
# - `ssl-vision fit --config configs/pretrain/digits.yaml` is the longer version of this run.
