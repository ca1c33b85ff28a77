"""Features of the images of a loader, computed by an encoder inside a LightningModule."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor, nn

from ssl_vision.callbacks.objective_eval import submodule_at
from ssl_vision.encoders import evaluation_mode
from ssl_vision.encoders.encoder import flattened, floating_dtype
from ssl_vision.errors import InputError


@isolate_rng()
@torch.no_grad()
def embedded(pl_module: pl.LightningModule, path: str, loader: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Return features (N, F), float32, and labels (N,) of all images of a loader, on the module's device.

    The global random generators, from which loaders draw, keep their state.

    Args:
        pl_module: the module that holds the encoder.
        path: submodule path of the encoder. It runs in evaluation mode, and its mode is restored.
        loader: batches that begin with images and labels.

    Raises:
        InputError: the module has no such submodule, a batch has another form, or the encoder does not return
            (N, F) features.
    """
    encoder = submodule_at(pl_module, path)
    with evaluation_mode(encoder):
        rows = [
            (feature_vectors(encoder(_input(images, encoder, pl_module)), path), labels.long())
            for images, labels in _pairs(loader, "images and labels")
        ]
    features, labels = (torch.cat(column) for column in zip(*rows, strict=True))
    return features, labels.to(pl_module.device)


@isolate_rng()
@torch.no_grad()
def embedded_pairs(pl_module: pl.LightningModule, path: str, loader: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Return the features (N, F) of the first and of the second views of all images of a loader.

    Args:
        pl_module: the module that holds the encoder.
        path: submodule path of the encoder.
        loader: batches that begin with two views of the same images.

    Raises:
        InputError: as for `embedded`.
    """
    encoder = submodule_at(pl_module, path)
    with evaluation_mode(encoder):
        rows = [
            tuple(feature_vectors(encoder(_input(view, encoder, pl_module)), path) for view in pair)
            for pair in _pairs(loader, "two views")
        ]
    first, second = (torch.cat(column) for column in zip(*rows, strict=True))
    return first, second


def _input(images: Tensor, encoder: nn.Module, pl_module: pl.LightningModule) -> Tensor:
    """Return images on the module's device, and in the encoder's dtype unless they are integers."""
    dtype = floating_dtype(encoder, images.dtype) if images.is_floating_point() else images.dtype
    return images.to(pl_module.device, dtype)


def _pairs(loader: Iterable[Any], what: str) -> Iterator[tuple[Tensor, Tensor]]:
    empty = True
    for batch in loader:
        pair = tuple(batch[:2]) if isinstance(batch, (tuple, list)) else ()
        if len(pair) < 2 or not all(isinstance(part, Tensor) for part in pair):
            raise InputError(f"a batch must begin with {what} as two tensors, got {type(batch).__name__}")
        empty = False
        yield pair[0], pair[1]
    if empty:
        raise InputError(f"a loader of {what} has no batches")


def feature_vectors(features: Any, path: str) -> Tensor:
    """Check the output of an encoder, and return it as (N, F) float32 features.

    Raises:
        InputError: the output has another shape, or is not a tensor.
    """
    features = flattened(features)
    if not isinstance(features, Tensor) or features.ndim != 2:
        actual = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(f"{path} must return features of shape (N, F), got {actual}")
    return features.float()
