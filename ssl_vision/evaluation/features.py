"""Features of a split's images, of any network."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vision.data import Images, Views
from ssl_vision.data.augment.corruptions import Corruption, corrupt
from ssl_vision.encoders import device_of, evaluation_mode, floating_dtype
from ssl_vision.errors import InputError
from ssl_vision.methods import Layers
from ssl_vision.progress import Progress

Features = dict[str, Tensor]
"""(N, ·) float32 by layer."""

VIEW_EPOCH = 0

_ON_CPU = 2**17
"""Pixels that a network sees at a time on a CPU: 128 images of 32 x 32, which bounds its activations."""
_ON_CUDA = 512
"""Images that a network sees at a time on a CUDA device."""


def embed(
    network: nn.Module, data: Images, views: Views, *, batch_size: int | None = None, title: str = "embed"
) -> Features:
    """Compute the features of a split's images, un-augmented, in evaluation mode.

    The network's training mode, parameters and BatchNorm statistics stay as they are.

    Args:
        network: a method, which gives three layers, or an encoder, whose features are the layer
            ``"backbone"``; on the device where the work is done.
        data: a split of N images.
        views: says to which size images are brought and how they are normalised.
        batch_size: images at a time; None chooses by the size of the images, so that memory stays bounded.
        title: of the progress bar.

    Returns:
        Float32 features (N, ·) by layer, on the network's device.
    """
    count = batch_size or _batch(network, views)
    return _through(network, data, lambda images, _: views.plain(images), count, title)


def embed_views(
    network: nn.Module,
    data: Images,
    views: Views,
    *,
    seed: int,
    epoch: int = VIEW_EPOCH,
    rows: Tensor | None = None,
    batch_size: int | None = None,
    title: str = "embed views",
) -> Features:
    """Compute the features of two random views of each image, by ``seed``, ``epoch`` and the image alone.

    Args:
        network: as for `embed`.
        data: a split of N images.
        views: how views are made.
        seed: of the views.
        epoch: each gives other views.
        rows: (n,) increasing numbers of the images to embed; None embeds all.
        batch_size: images at a time.
        title: of the progress bar.

    Returns:
        Float32 features (2, N, ·) by layer, on the network's device.
    """

    def prepare(images: Tensor, indices: Tensor) -> Tensor:
        # (2n, …) with the views one after the other becomes (2n, …) with the views of an image together.
        made = views(images, indices, seed=seed, epoch=epoch)
        return torch.stack(made.chunk(2), dim=1).flatten(0, 1)

    both = _through(network, data, prepare, batch_size or math.ceil(_batch(network, views) / 2), title, rows)
    return {name: layer.view(-1, 2, layer.shape[1]).transpose(0, 1) for name, layer in both.items()}


def embed_corrupted(
    network: nn.Module,
    data: Images,
    views: Views,
    *,
    corruption: Corruption,
    severity: int,
    seed: int,
    batch_size: int | None = None,
    title: str = "embed corrupted",
) -> Features:
    """Compute the features of images that are resized as for `embed`, as bytes, and then corrupted.

    So a corruption acts on the pixels that the network sees, whatever the size of the files.
    """

    def prepare(images: Tensor, indices: Tensor) -> Tensor:
        if images.shape[-2:] != (views.size, views.size):
            size = (views.size, views.size)
            resized = F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)
            images = resized.round_().clamp_(0, 255).to(torch.uint8)
        return views.plain(corrupt(images, indices, corruption=corruption, severity=severity, seed=seed))

    return _through(network, data, prepare, batch_size or _batch(network, views), title)


def _batch(network: nn.Module, views: Views) -> int:
    return _ON_CUDA if device_of(network).type == "cuda" else max(1, _ON_CPU // views.size**2)


def crop_and_flip(views: Views) -> Views:
    """The same views with nothing but crop and flip left of them."""
    none: dict[str, Any] = dict.fromkeys(("degrees", "jitter", "grayscale", "blur", "solarize"), 0.0)
    return dataclasses.replace(views, **none)


@torch.inference_mode()
def _through(
    network: nn.Module,
    data: Images,
    prepare: Callable[[Tensor, Tensor], Tensor],
    batch_size: int,
    title: str,
    rows: Tensor | None = None,
) -> Features:
    device = device_of(network)
    features: Features = {}  # whole from the first batch on: many small ones would scatter over the heap
    rows = torch.arange(len(data)) if rows is None else rows
    batches: tuple[Tensor, ...] = rows.split(batch_size)
    with evaluation_mode(network), Progress(title, len(rows), unit="images") as job:
        done = 0
        for batch in batches:
            images = prepare(data.at(batch).to(device), batch.to(device))
            layers = by_layer(network(images.to(floating_dtype(network, images.dtype))))
            views = len(layers["backbone"]) // len(batch)
            for name, layer in layers.items():
                if name not in features:
                    shape = (views * len(rows), layer.shape[1])
                    features[name] = layer.new_empty(shape, dtype=torch.float32)
                features[name][views * done : views * (done + len(batch))] = layer
            done += len(batch)
            job.advance(len(batch))
    return features


def by_layer(output: Tensor | Layers) -> Features:
    """Return the output of a method or an encoder by layer; an encoder has the layer ``"backbone"`` alone."""
    return {"backbone": output} if isinstance(output, Tensor) else output._asdict()


def chosen_device(name: str) -> torch.device:
    """``cpu``, ``cuda``, or with ``auto`` the better of those that there are.

    Raises:
        InputError: ``cuda`` where there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("--device cuda: there is no CUDA device")
    return torch.device(("cuda" if available else "cpu") if name == "auto" else name)
