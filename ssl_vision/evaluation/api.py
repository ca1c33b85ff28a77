"""Evaluation of any module on any labelled data sets under any protocol."""

import os
import sys
from collections.abc import Sequence
from os import PathLike

import torch
from torch import nn

from ssl_vision.data import ImageData, Images, Views
from ssl_vision.data.datasets.map_style import MapDataset, prepared_views, read_dataset
from ssl_vision.data.images import numbered
from ssl_vision.data.module import Split
from ssl_vision.encoders import Encoder, ModuleEncoder
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.measure import run_protocol
from ssl_vision.evaluation.measurement import Source
from ssl_vision.evaluation.protocol import read_protocols
from ssl_vision.evaluation.results import Evaluation
from ssl_vision.evaluation.rows import Row
from ssl_vision.evaluation.splits import Pixels, Splits
from ssl_vision.methods import Layers, Method


def evaluate(
    encoder: nn.Module,
    *,
    train: MapDataset,
    test: MapDataset,
    protocol: str | PathLike[str] | Sequence[str | PathLike[str]] = "macl",
    views: Views | None = None,
    seed: int = 0,
    baselines: bool = False,
) -> Evaluation:
    """Evaluate an encoder on labelled data sets.

    The encoder runs on its own device in evaluation mode, without gradients; fine-tuning trains a copy. A
    measurement that is not possible is left out with a line on stderr that gives the reason.

    Args:
        encoder: module that maps images (N, 3, H, W) to features (N, F), or a method of
            ``ssl_vision.methods``, whose projection head is evaluated, too.
        train: map-style data set of pairs (image, label); further values, such as a name, are ignored. Its
            images are the neighbours of kNN and train the linear classifiers.
        test: map-style data set of pairs (image, label), which are classified.
        protocol: name of a protocol of the package, ``"all"``, the path of your own ``.yaml`` file, or
            several of them.
        views: size and normalisation of the images that the encoder is given, and the augmentation of
            protocols that train on random views. Required if the data sets return PIL images or uint8
            tensors. Leave it out if their transforms return normalised floating-point tensors, which the
            encoder is given as they are; measurements that need augmented images are then left out.
        seed: seed of augmentation and of the classifiers.
        baselines: evaluate the raw pixels, too, for which the data sets must return images of bytes.

    Raises:
        InputError: the protocol is unknown, a data set cannot be read, has no labels or does not fit
            ``views``, the encoder does not return (N, F) features, baselines are wanted of normalised
            tensors, or nothing could be measured.

    Example:
        >>> import torch
        >>> images = torch.rand(30, 3, 8, 8)
        >>> data = [(image, row % 3) for row, image in enumerate(images)]
        >>> result = evaluate(nn.Flatten(), train=data, test=data, protocol="solo")
        >>> result.value("knn_top1", k=20) > 0.3
        True
    """
    names = [protocol] if isinstance(protocol, (str, PathLike)) else protocol
    protocols = read_protocols([os.fspath(each) for each in names], k=ImageData.knn_k)
    splits = _splits(train, test, views)
    if baselines and views is None:
        raise InputError("baselines=True requires data sets of PIL images or uint8 tensors, and views")
    name = type(encoder).__qualname__
    if not isinstance(encoder, (Method, Encoder)):
        try:
            height, width = splits.views.plain(splits.images["train"].at(torch.tensor([0]))).shape[-2:]
            encoder = ModuleEncoder(encoder, image_size=(height, width))
        except ValueError as error:
            raise InputError(str(error).partition("; image_size of ModuleEncoder")[0]) from error
    embedded = FeatureExtractor(
        encoder, splits,
        description=name, cache=None, seed=seed,
        layers=Layers._fields if isinstance(encoder, Method) else ("backbone",),
    )  # fmt: skip
    rows: dict[str, list[Row]] = {}
    for each in protocols:
        measured = rows[each.name] = []
        layers = tuple(layer for layer in each.layers if layer in embedded.layers)
        if missing := sorted(set(each.layers) - set(layers)):
            print(f"{each.name}: {', '.join(missing)} left out: an encoder has none", file=sys.stderr)
        for layer in layers:
            measured += run_protocol(each, Source("trained", layer, embedded, layers), splits, seed=seed)
        embedded.forget()
        if baselines:
            measured += run_protocol(each, Source("pixels", "raw", Pixels(splits)), splits, seed=seed)
    if not any(row.features == "trained" for each in rows.values() for row in each):
        raise InputError("nothing could be measured: the lines above say why")
    return Evaluation.of(protocols, rows, splits, name)


def _splits(train: MapDataset, test: MapDataset, views: Views | None) -> Splits:
    size = None if views is None else views.size
    images: dict[Split, Images] = {
        "train": read_dataset(train, size=size), "test": read_dataset(test, size=size),
    }  # fmt: skip
    prepared = {name: split.at(torch.tensor([0])).is_floating_point() for name, split in images.items()}
    if prepared["train"] != prepared["test"]:
        raise InputError("train and test must both return uint8 images, or both normalised tensors")
    if prepared["train"] and views is not None:
        raise InputError("views is given, but the data sets return tensors that are already normalised")
    if prepared["train"]:
        views = prepared_views(images["train"])
    if views is None:
        raise InputError("views is required: it is the size and the normalisation that the encoder expects")
    classes = tuple(sorted({*images["train"].classes, *images["test"].classes}, key=int))
    for split in images.values():
        ids = torch.tensor([*map(int, split.classes), -1])[split.labels]
        split.classes, split.labels = classes, numbered(ids, classes)
    return Splits(images, views, data=type(test).__name__).checked()
