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
# # Your own images, without labels
#
# This notebook pretrains an encoder on a folder of images, inspects the result, and exports a backbone that
# torchvision loads. The images are drawn by the notebook, so that nothing is downloaded. Replace them with
# your own folder.

# %%
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torchvision
from PIL import Image, ImageDraw
from safetensors.torch import load_file

import ssl_vision
from ssl_vision.data import ImageFolder
from ssl_vision.main import main
from ssl_vision.metrics import nearest
from ssl_vision.runs.registry import Run

os.chdir(tempfile.mkdtemp())


# %% [markdown]
# ## A folder of images
#
# The folder contains 320 images of four shapes with random colours, sizes and positions. The shape is part of
# the file name, which training does not use. Images may have any size and any format that Pillow can read,
# and may be in subfolders.


# %%
def corners(shape: str, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """The corners of a shape around (x, y)."""
    count = {"circle": 40, "triangle": 3, "square": 4, "star": 10}[shape]
    radii = radius * np.where(np.arange(count) % 2, 0.4 if shape == "star" else 1.0, 1.0)
    angles = 2 * np.pi * (np.arange(count) / count) + np.pi / 4
    return list(zip(x + radii * np.cos(angles), y + radii * np.sin(angles), strict=True))


SHAPES = ("circle", "triangle", "square", "star")
random = np.random.default_rng(0)
Path("my_images").mkdir()
for number in range(320):
    shape = SHAPES[number % 4]
    background, colour = (tuple(map(int, random.integers(low, low + 128, 3))) for low in (0, 128))
    image = Image.new("RGB", (48, 48), background)
    place = corners(shape, *random.uniform(18, 30, 2), radius=random.uniform(10, 16))
    ImageDraw.Draw(image).polygon(place, fill=colour)
    image.save(f"my_images/{shape}_{number:03}.png")

# %% [markdown]
# ## A short first run
#
# A narrow network and a few epochs are enough to see which features the network uses. `ImageFolder` decodes
# every file once. `image_size` is the size of the stored images, and `views.size` the size of the views. DCL
# is suited to small batches, because its gradient does not vanish for easy anchors.

# %%
config = {
    "model.encoder.stem": "imagenet",
    "model.objective": "DCL",
    "data": "ImageFolder",
    "data.root": "my_images",
    "data.image_size": 32,
    "data.views.size": 32,
    "data.batch_size": 32,
    "trainer.max_epochs": 6,
    "trainer.check_val_every_n_epoch": 6,
    "trainer.accelerator": "cpu",
}
first = ssl_vision.fit(config, name="first", report=False, **{"model.encoder.width": 16})
first

# %% [markdown]
# Each row of the figure shows an image and its nearest neighbours. The first number is the share of
# neighbours with the same shape, which is a quarter by chance. The second is the distance between the
# background colours of neighbours, relative to that of all pairs. If it is close to 0, the network uses the
# background, and if it is close to 1, the network ignores it.


# %%
def show_neighbours(run: Run) -> None:
    """Show nearest neighbours by the features of a run, and measure what they have in common."""
    names = sorted(file.name for file in Path("my_images").glob("*.png"))
    data = ImageFolder(root="my_images", image_size=32)
    views = replace(data.views, size=32)
    with torch.inference_mode():
        features = ssl_vision.load_encoder(run)(views.plain(data.split("train").images))
    found = nearest(features, features, k=9).index[:, 1:]
    shapes = np.array([SHAPES.index(file.split("_")[0]) for file in names])
    pictures = np.array([np.asarray(Image.open(Path("my_images", file))) for file in names])
    corner = pictures[:, 0, 0].astype(float)
    apart = np.linalg.norm(corner[:, None] - corner, axis=2)
    near = np.take_along_axis(apart, found.numpy(), axis=1)
    print(f"same shape: {(shapes[found] == shapes[:, None]).mean():.0%}")
    print(f"distance of backgrounds: {near.mean() / apart.mean():.2f}")
    figure, grid = plt.subplots(4, 9, figsize=(8, 3.6))
    for axes_row, image in zip(grid, range(0, len(names), len(names) // 4 + 1), strict=True):
        for axes, shown in zip(axes_row, [image, *found[image]], strict=True):
            axes.imshow(pictures[shown])
            axes.axis("off")
    figure.tight_layout(pad=0.3)
    plt.show()


show_neighbours(first)

# %% [markdown]
# ## Views determine what the network ignores
#
# The network learns to ignore what the views change, and may use everything else. To make it ignore colour,
# the views change the hue and are sometimes converted to grayscale. This run uses the full width of the
# network.

# %%
colour = {
    "data.views.scale": [0.6, 1.0],
    "data.views.hue": 0.5,
    "data.views.jitter": 1.0,
    "data.views.grayscale": 0.4,
}
mine = ssl_vision.fit([config, colour], name="mine", report=False)
show_neighbours(mine)

# %% [markdown]
# ## Export
#
# `main` runs a command of `ssl-vision`, here `ssl-vision export`. A `.safetensors` file contains only
# tensors. The default format is for `ssl_vision.load_encoder`. `--format torchvision` has torchvision's names
# of weights, and is available for networks of width 64. A model card is written beside each file.

# %%
for options in (
    ["--output=mine.safetensors"],
    ["--format=torchvision", "--output=mine_torchvision.safetensors"],
):
    main(["export", "runs/mine", *options])

# %% [markdown]
# torchvision loads the second file, and both networks compute the same features.

# %%
ours = ssl_vision.load_encoder("mine.safetensors")
theirs = torchvision.models.resnet18()
theirs.fc = torch.nn.Identity()
theirs.load_state_dict(load_file("mine_torchvision.safetensors"))
theirs.eval()

images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
with torch.inference_mode():
    difference = (ours(images) - theirs(images)).abs().max()
print(f"largest difference {difference:.0e}")

# %% [markdown]
# ## Next steps
#
# - If your images are in class folders, with a folder `test` beside `train`, `ssl_vision.evaluate(mine)`
#   measures kNN and a linear probe. Without labels, `metrics.csv` has alignment, uniformity and RankMe.
# - `ssl-vision fit --help` lists the options of the views. Set `data.views.degrees` to 180 if the images have
#   no upright orientation, and `data.views.hue` to 0 if colour matters.
# - A real run takes some hundred epochs. Remove `trainer.accelerator` to use a GPU.
