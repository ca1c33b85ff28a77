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
# From a folder of image files to a backbone that torchvision loads: pretrain, look at the result, export. The
# images are drawn on the spot so that the notebook needs no download; put your own folder in their place.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torchvision
from PIL import Image, ImageDraw
from safetensors.torch import load_file

import ssl_vision
from ssl_vision.main import main
from ssl_vision.metrics import nearest

os.chdir(tempfile.mkdtemp())


def run(command: str) -> None:
    """What `ssl-vision` and this command do in a terminal, without progress bars."""
    if main([*command.split(), "--quiet"]):
        raise RuntimeError(command)


# %% [markdown]
# ## A folder of images
#
# 320 pictures of four shapes in any colour, size and place. The file names say which shape it is; training
# does not read them. Any size and format that Pillow opens will do, in subfolders or not.


# %%
def corners(shape: str, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """Points of a shape around (x, y)."""
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
# ## Look before you train for long
#
# A narrow network and a few epochs are enough to see what the network goes by. `ImageFolder` decodes every
# file once: `image_size` is what it keeps, `views.size` what the network sees. DCL, whose gradient does not
# fade as InfoNCE's does, is made for small batches.


# %%
def fit(name: str, options: str) -> None:
    """Trains a ResNet-18 with torchvision's stem on the folder."""
    run(
        f"fit --name {name} --model.encoder.stem imagenet --model.objective DCL --data ImageFolder "
        f"--data.root my_images --data.image_size 32 --data.views.size 32 --data.batch_size 32 {options} "
        "--trainer.max_epochs 6 --trainer.check_val_every_n_epoch 6 --trainer.accelerator cpu"
    )


fit("first", "--model.encoder.width 16")

# %% [markdown]
# `embed` writes the features of all images below a folder, and their names in the same order. Each row shows
# an image and its nearest others. The first number below counts shapes, which the file names know; a quarter
# is chance. The second says how far apart the colours of the backgrounds are, as a share of what it is for
# any two images: near 0, the network goes by the background, near 1, it does not look at it.


# %%
def look(name: str) -> None:
    """Draws nearest neighbours of a run's features, and counts what they have in common."""
    run(f"embed my_images --backbone runs/{name} --output {name}.npz")
    with np.load(f"{name}.npz") as file:
        features, names = torch.from_numpy(file["features"]), list(file["names"])
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


look("first")

# %% [markdown]
# ## Views say what does not matter
#
# A network learns to ignore what its views change, and may go by anything else. If colour is not to matter,
# the views have to change it: any hue, grey now and then. This time the network has its full width.

# %%
fit(
    "mine",
    "--data.views.scale [0.6,1.0] --data.views.hue 0.5 --data.views.jitter 1.0 --data.views.grayscale 0.4",
)
look("mine")

# %% [markdown]
# ## Export
#
# A `.safetensors` file holds tensors and nothing that could be run. The default form is for `load_encoder`;
# `--format torchvision` is for torchvision, with torchvision's names and nothing of this package, for
# networks of width 64. Each gets a model card beside it.

# %%
run("export runs/mine --output mine.safetensors")
run("export runs/mine --format torchvision --output mine_torchvision.safetensors")
print(Path("mine_torchvision.safetensors.md").read_text())

# %% [markdown]
# Both give the same features of the same images.

# %%
ours = ssl_vision.load_encoder("mine.safetensors")
theirs = torchvision.models.resnet18()
theirs.fc = torch.nn.Identity()
theirs.load_state_dict(load_file("mine_torchvision.safetensors"))
theirs.eval()

images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
with torch.inference_mode():
    apart = (ours(images) - theirs(images)).abs().max()
print(f"largest difference {apart:.0e}")

# %% [markdown]
# ## From here
#
# - Put your images into class folders, with a folder `test` beside `train`, and `ssl-vision evaluate
#   runs/mine` measures kNN and a linear probe; without labels there are still alignment, uniformity and
#   RankMe in `metrics.csv`.
# - `ssl-vision fit --help` lists the views: `--data.views.degrees 180.0` where there is no up,
#   `--data.views.hue 0.0` where colour matters.
# - A real run takes some hundred epochs, and no `--trainer.accelerator cpu` where there is a GPU.
