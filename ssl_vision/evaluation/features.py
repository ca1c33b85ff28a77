"""Features of a split's images, of any network."""

import dataclasses
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssl_vision.data import Images, Views
from ssl_vision.data.loading.prefetch import batches_of_workers
from ssl_vision.encoders import device_of, evaluation_mode, floating_dtype
from ssl_vision.errors import InputError
from ssl_vision.evaluation.processes import gathered, is_first
from ssl_vision.methods import Layers
from ssl_vision.metrics.rows import CPU, LazyRows
from ssl_vision.progress import Progress

Features = dict[str, Tensor]
"""Float32 features by layer, shape (N, ·)."""

Prepare = Callable[[Tensor, Tensor], Tensor]
"""Function of uint8 images (N, C, H, W) and their indices (N,) that returns network inputs."""

VIEW_EPOCH = 0

IN_MEMORY = 2**30
"""Maximum size in bytes of features that are kept in memory."""

_ROWS = 4096
"""Number of rows that are read at a time."""

_ON_CPU = 2**17
"""Maximum number of pixels in a batch on a CPU, 128 images of 32 x 32, which bounds the activations."""
_ON_CUDA = 512
"""Number of images in a batch on a CUDA device."""


def embed(
    network: nn.Module,
    data: Images,
    views: Views,
    *,
    title: str = "embed",
) -> Features:
    """Compute the features of a split's images, un-augmented, in evaluation mode.

    The network's training mode, parameters and BatchNorm statistics do not change.

    Args:
        network: a method, which gives three layers, or an encoder, whose features are the layer
            ``"backbone"``, on the device of the computation.
        data: a split of N images.
        views: size and normalisation of the images.
        title: title of the progress bar.

    Returns:
        Float32 features (N, ·) by layer, on the network's device, or in a mapped file if they are large.
    """
    prepare = partial(_plain, views=views)
    return _in_batches(network, data, prepare, images_at_once(network, views), title)


def embed_views(
    network: nn.Module,
    data: Images,
    views: Views,
    *,
    seed: int,
    epoch: int = VIEW_EPOCH,
    rows: Tensor | None = None,
    title: str = "embed views",
) -> Features:
    """Compute the features of two random views of each image, given by ``seed``, ``epoch`` and image.

    Args:
        network: as for `embed`.
        data: a split of N images.
        views: augmentations, size and normalisation.
        seed: seed of the views.
        epoch: epoch of the views; each gives different ones.
        rows: increasing indices of the images to embed, shape (n,); None embeds all.
        title: title of the progress bar.

    Returns:
        Float32 features (2, N, ·) by layer, on the network's device, or in a mapped file if they are large.
    """
    prepare = partial(_two_views, views=dataclasses.replace(views, compile=False), seed=seed, epoch=epoch)
    count = math.ceil(images_at_once(network, views) / 2)
    both = _in_batches(network, data, prepare, count, title, rows)
    return {name: layer.view(-1, 2, layer.shape[1]).transpose(0, 1) for name, layer in both.items()}


def _plain(images: Tensor, indices: Tensor, *, views: Views) -> Tensor:
    return views.plain(images)


def _two_views(images: Tensor, indices: Tensor, *, views: Views, seed: int, epoch: int) -> Tensor:
    # Reorder (2n, …) so that the two views of an image are adjacent.
    rendered = views(images, indices, seed=seed, epoch=epoch)
    return torch.stack(rendered.chunk(2), dim=1).flatten(0, 1)


def images_at_once(network: nn.Module, views: Views) -> int:
    """Return the number of images in a batch: at most 2¹⁷ pixels on a CPU."""
    return _ON_CUDA if device_of(network).type == "cuda" else max(1, _ON_CPU // views.size**2)


def crop_and_flip(views: Views) -> Views:
    """Return the views with only crop and flip."""
    none: dict[str, Any] = dict.fromkeys(("degrees", "jitter", "grayscale", "blur", "solarize"), 0.0)
    return dataclasses.replace(views, **none)


@torch.inference_mode()
def _in_batches(
    network: nn.Module,
    data: Images,
    prepare: Prepare,
    batch_size: int,
    title: str,
    rows: Tensor | None = None,
) -> Features:
    features: Features = {}  # allocated at the first batch; many small tensors would fragment the heap
    rows = torch.arange(len(data)) if rows is None else rows
    batches: tuple[Tensor, ...] = rows.split(batch_size)
    with Progress(title, len(rows), unit="images") as job:
        done = 0
        outputs = gathered(partial(_outputs, network, data, prepare, batches), len(batches))
        for batch, layers in zip(batches, outputs, strict=is_first()):
            views = len(layers["backbone"]) // len(batch)
            for name, layer in layers.items():
                if name not in features:
                    shape = (views * len(rows), layer.shape[1])
                    features[name] = empty_rows(shape, device=device_of(network))
                features[name][views * done : views * (done + len(batch))] = layer
            done += len(batch)
            job.advance(len(batch))
    return features


@torch.inference_mode()
def _outputs(
    network: nn.Module, data: Images, prepare: Prepare, batches: tuple[Tensor, ...], share: slice
) -> Iterator[Features]:
    """Compute the output of the network for a share of the batches, by layer."""
    device = device_of(network)
    with evaluation_mode(network):
        batches = batches[share]
        pixels = (
            (decoded.images for decoded in batches_of_workers(data, iter(batches), pin=False))
            if data.workers
            else map(data.at, batches)
        )
        for batch, squares in zip(batches, pixels, strict=True):
            images = prepare(squares.to(device), batch.to(device))
            layers = by_layer(network(images.to(floating_dtype(network, images.dtype))))
            alone = share == slice(None)
            yield layers if alone else {name: layer.cpu() for name, layer in layers.items()}


def by_layer(output: Tensor | Layers) -> Features:
    """Return the output of a method or an encoder by layer; an encoder has only the layer ``"backbone"``."""
    return {"backbone": output} if isinstance(output, Tensor) else output._asdict()


def chosen_device(name: str) -> torch.device:
    """Return the device; ``auto`` selects CUDA if it is available.

    The processes of torchrun on a machine use its CUDA devices in turn.

    Raises:
        InputError: the device is ``cuda`` and there is no CUDA device.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("--device cuda: there is no CUDA device")
    device = torch.device(("cuda" if available else "cpu") if name == "auto" else name)
    local = int(os.environ.get("LOCAL_RANK") or 0)
    return (
        torch.device("cuda", local % torch.cuda.device_count()) if device.type == "cuda" and local else device
    )


def empty_rows(shape: tuple[int, int], *, device: torch.device = CPU) -> Tensor:
    """Return an uninitialised tensor for float32 rows, in memory or, above `IN_MEMORY`, in a temporary file.

    Args:
        shape: (N, F).
        device: device of rows in memory; mapped rows are on the CPU. Their file, in the system's directory
            for temporary files, has no name there, and its space is freed with the tensor.

    Raises:
        InputError: the directory for temporary files is too small.
    """
    size = 4 * math.prod(shape)
    if size <= IN_MEMORY:
        return torch.empty(shape, device=device)
    with tempfile.TemporaryFile() as file:
        if sys.platform == "linux":  # a full disk raises an error here; later, it would raise a signal
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise InputError(
                    f"{tempfile.gettempdir()}: {error.strerror} for {size / 2**30:.1f} GiB of features: "
                    "set TMPDIR to another directory"
                ) from error
        return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=shape))


def is_large(features: Tensor) -> bool:
    """Return True for features, or views of them, that take more than `IN_MEMORY`."""
    return features.untyped_storage().nbytes() > IN_MEMORY


def in_parts(features: Tensor, device: torch.device) -> Tensor | LazyRows:
    """Return large features as rows that are read and moved to a device on access, others as they are."""
    if not is_large(features):
        return features
    return LazyRows(lambda rows: features[rows].to(device), (len(features), features.shape[1]), device=device)


def is_finite(values: Tensor) -> bool:
    """Return True if all values, of shape (…, N, F), are finite, with a few rows in memory at a time."""
    return all(bool(part.isfinite().all()) for part in values.split(_ROWS, dim=-2))
