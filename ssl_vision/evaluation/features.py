"""Features: what a network makes of a split's images, computed once."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data import Images, Views
from ssl_vision.data.corruptions import Corruption, corrupt
from ssl_vision.errors import InputError
from ssl_vision.methods import Layers, SimCLR
from ssl_vision.progress import Job

VIEW_EPOCH = 0

_ON_CPU = 2**17
"""Pixels that a network sees at a time on a CPU: 128 images of 32 x 32, which bounds its activations."""
_ON_CUDA = 512
"""Images that a network sees at a time on a CUDA device."""


def embed(
    model: SimCLR, data: Images, views: Views, *, batch_size: int | None = None, title: str = "embed"
) -> Layers:
    """The representations of a split's images, un-augmented, in evaluation mode.

    The network is left in the mode it was found in, its parameters and BatchNorm statistics untouched.

    Args:
        model: on the device where the work is done.
        data: a split of N images.
        views: says to which size images are brought and how they are normalised.
        batch_size: images at a time; None chooses by the size of the images, so that memory stays bounded.
        title: of the progress bar.

    Returns:
        Float32 features (N, ·) at the three layers, on the model's device.
    """
    count = batch_size or _batch(model, views)
    return _through(model, data, lambda images, _: views.plain(images), count, title)


def embed_views(
    model: SimCLR,
    data: Images,
    views: Views,
    *,
    seed: int,
    epoch: int = VIEW_EPOCH,
    rows: Tensor | None = None,
    batch_size: int | None = None,
    title: str = "embed views",
) -> Layers:
    """The representations of two random views of each image, by ``seed``, ``epoch`` and the image alone.

    Args:
        model: on the device where the work is done.
        data: a split of N images.
        views: how views are made.
        seed: of the views.
        epoch: each gives other views.
        rows: (n,) increasing numbers of the images to embed; None embeds all.
        batch_size: images at a time.
        title: of the progress bar.

    Returns:
        Float32 features (2, N, ·) at the three layers, on the model's device.
    """

    def prepare(images: Tensor, indices: Tensor) -> Tensor:
        # (2n, …) with the views one after the other becomes (2n, …) with the views of an image together.
        made = views(images, indices, seed=seed, epoch=epoch)
        return torch.stack(made.chunk(2), dim=1).flatten(0, 1)

    both = _through(model, data, prepare, batch_size or math.ceil(_batch(model, views) / 2), title, rows)
    return Layers(*(layer.view(-1, 2, layer.shape[1]).transpose(0, 1) for layer in both))


def embed_corrupted(
    model: SimCLR,
    data: Images,
    views: Views,
    *,
    corruption: Corruption,
    severity: int,
    seed: int,
    batch_size: int | None = None,
    title: str = "embed corrupted",
) -> Layers:
    """The representations of images that are resized as for `embed`, as bytes, and then corrupted.

    So a corruption acts on the pixels that the network sees, whatever the size of the files.
    """

    def prepare(images: Tensor, indices: Tensor) -> Tensor:
        if images.shape[-2:] != (views.size, views.size):
            size = (views.size, views.size)
            resized = F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)
            images = resized.round_().clamp_(0, 255).to(torch.uint8)
        return views.plain(corrupt(images, indices, corruption=corruption, severity=severity, seed=seed))

    return _through(model, data, prepare, batch_size or _batch(model, views), title)


def _batch(model: SimCLR, views: Views) -> int:
    return _ON_CUDA if model.device.type == "cuda" else max(1, _ON_CPU // views.size**2)


def crop_and_flip(views: Views) -> Views:
    """The same views with nothing but crop and flip left of them."""
    none: dict[str, Any] = dict.fromkeys(("degrees", "jitter", "grayscale", "blur", "solarize"), 0.0)
    return dataclasses.replace(views, **none)


@torch.inference_mode()
def _through(
    model: SimCLR,
    data: Images,
    prepare: Callable[[Tensor, Tensor], Tensor],
    batch_size: int,
    title: str,
    rows: Tensor | None = None,
) -> Layers:
    was_training = model.training
    model.eval()
    features: list[Tensor] = []  # whole from the first batch on: many small ones would scatter over the heap
    rows = torch.arange(len(data)) if rows is None else rows
    batches: tuple[Tensor, ...] = rows.split(batch_size)  # type: ignore[no-untyped-call]
    with Job(title, len(rows), unit="images") as job:
        done = 0
        for batch in batches:
            layers = model(prepare(data.at(batch).to(model.device), batch.to(model.device)))
            views = len(layers[0]) // len(batch)
            features = features or [
                layer.new_empty(views * len(rows), layer.shape[1], dtype=torch.float32) for layer in layers
            ]
            for whole, layer in zip(features, layers, strict=True):
                whole[views * done : views * (done + len(batch))] = layer
            done += len(batch)
            job.advance(len(batch))
    model.train(was_training)
    return Layers(*features)


def chosen_device(name: str) -> torch.device:
    """``cpu``, ``cuda``, or with ``auto`` the better of those that there are.

    Raises:
        InputError: ``cuda`` where there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("--device cuda: there is no CUDA device")
    return torch.device(("cuda" if available else "cpu") if name == "auto" else name)
