"""What an evaluation measures, networks and labelled images, and its measurement under protocols."""

import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from ssl_vision.data import Images, Views
from ssl_vision.data.datasets.map_style import MapDataset, prepared_views, read_dataset
from ssl_vision.data.images import numbered
from ssl_vision.data.module import Split
from ssl_vision.descriptions import stored_description
from ssl_vision.encoders import Encoder, ModuleEncoder, measure_num_features
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor, embedding_by_all
from ssl_vision.evaluation.measurement import Measurement, Source
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.results import Evaluation, Row, described_protocol
from ssl_vision.evaluation.splits import Pixels, Splits
from ssl_vision.hub import local_file
from ssl_vision.methods import Layers, Method
from ssl_vision.pretrained.backbones import has_description, pretrained, read_backbone
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.checkpoint import is_checkpoint
from ssl_vision.runs.weights import load_encoder_weights, read_weights

_TAKEN = ("trained", "untrained", "pixels")
"""Names of the rows that an evaluation has without the option."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class Network(NamedTuple):
    """A network that is measured."""

    name: str
    """Name in rows; see `Row.features`."""
    extractor: FeatureExtractor
    epoch: int = 0
    """Number of epochs that a run trained the network for."""
    about: str = ""
    """File and weights of a network of ``--beside``."""


@dataclass(frozen=True)
class Subject:
    """What an evaluation measures.

    Args:
        networks: the networks, of which the first is the trained one.
        splits: the labelled images.
        about: description of the trained network.
        pixels: True to measure raw pixels, too.
    """

    networks: tuple[Network, ...]
    splits: Splits
    about: str
    pixels: bool = False

    @classmethod
    def of_module(
        cls,
        encoder: nn.Module,
        *,
        train: MapDataset,
        test: MapDataset,
        views: Views | None = None,
        seed: int = 0,
        baselines: bool = False,
    ) -> Self:
        """Return a module and labelled data sets as a subject.

        The encoder runs on its own device in evaluation mode, without gradients; fine-tuning trains a copy.

        Args:
            encoder: module that maps images (N, 3, H, W) to features (N, F), or a method of
                ``ssl_vision.methods``, whose projection head is evaluated, too.
            train: map-style data set of pairs (image, label); further values, such as a name, are ignored.
                Its images are the neighbours of kNN and train the linear classifiers.
            test: map-style data set of pairs (image, label), which are classified.
            views: size and normalisation of the images that the encoder is given, and the augmentation of
                protocols that train on random views. Required if the data sets return PIL images or uint8
                tensors. Leave it out if their transforms return normalised floating-point tensors, which the
                encoder is given as they are; measurements that need augmented images are then left out.
            seed: seed of augmentation and of the classifiers.
            baselines: evaluate the raw pixels, too, for which the data sets must return images of bytes.

        Raises:
            InputError: a data set cannot be read, has no labels or does not fit ``views``, the encoder does
                not return (N, F) features, or baselines are wanted of normalised tensors.
        """
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
        extractor = FeatureExtractor(
            encoder, splits,
            description=name, cache=None, seed=seed,
            layers=Layers._fields if isinstance(encoder, Method) else ("backbone",),
        )  # fmt: skip
        return cls((Network("trained", extractor),), splits, name, pixels=baselines)

    def checked(self) -> Self:
        """Return the subject if its networks accept images of the size that they are given.

        Raises:
            InputError: a network does not.
        """
        for name, extractor, *_ in self.networks:
            views = extractor.splits.views
            try:
                measure_num_features(extractor.encoder, views.size, views.channels)
            except ValueError as error:
                raise InputError(f"{name}: {error}; --data.views.size sets the size of the images") from error
        return self


def run_protocols(subject: Subject, protocols: Sequence[Protocol]) -> Evaluation:
    """Measure a subject under protocols.

    A network without the layers of a protocol is measured at the encoder.

    Args:
        subject: networks and images.
        protocols: layers and measurements.

    Raises:
        InputError: nothing of the trained network could be measured.
    """
    networks, splits, pixels = subject.networks, subject.splits, subject.pixels
    trained, seed = networks[0].name, networks[0].extractor.seed
    rows: list[Row] = []
    with embedding_by_all([network.extractor for network in networks]):
        if pixels and any(images.digest for images in splits.images.values()):
            print("raw pixels are left out: the images are decoded for each batch", file=sys.stderr)
            pixels = False
        for protocol in protocols:
            if missing := sorted(set(protocol.layers) - set(networks[0].extractor.layers)):
                print(f"{protocol.name}: {', '.join(missing)} left out: an encoder has none", file=sys.stderr)
            for name, extractor, epoch, _ in networks:
                known = [layer for layer in protocol.layers if layer in extractor.layers]
                layers = tuple(known or ["backbone"])
                for layer in layers:
                    source = Source(name, layer, extractor, layers, epoch)
                    rows += run_protocol(protocol, source, extractor.splits, seed=seed)
                extractor.forget()
            if pixels:
                rows += run_protocol(protocol, Source("pixels", "raw", Pixels(splits)), splits, seed=seed)
    if not any(row.features == trained for row in rows):
        raise InputError(f"nothing of the {trained} network could be measured: the lines above say why")
    train, test = splits.images["train"], splits.images["test"]
    split = "test split" if splits.evaluated == "test" else "validation split, as there is no test split"
    counts = f"{len(test)} images) against {len(train)} labelled train images"
    about = [f"{splits.data}: {split} ({counts}, {subject.about}"]
    about += [f"{network.name}: {network.about}" for network in networks if network.about]
    described = {each.name: described_protocol(each, len(train)) for each in protocols}
    return Evaluation(tuple(rows), "\n".join(about), described)


def run_protocol(protocol: Protocol, source: Source, splits: Splits, *, seed: int) -> Iterator[Row]:
    """Measure one representation under a protocol and yield the rows.

    A measurement that is not possible, for example because training diverges, is omitted and reported on
    stderr with the reason. Equal rows, of kNN with different k above the number of images, are yielded once.
    The arguments are those of `Measurement.measure`.
    """
    yielded: list[Row] = []
    grouped: dict[type[Measurement], list[Measurement]] = {}
    for measurement in protocol.measurements:
        grouped.setdefault(type(measurement), []).append(measurement)
    values_of = {kind: kind.measure_all(group, source, splits, seed) for kind, group in grouped.items()}
    for measurement in protocol.measurements:
        try:
            values = list(next(values_of[type(measurement)]))
        except InputError:  # for example, of an image that cannot be decoded
            raise
        except (ValueError, torch.OutOfMemoryError) as error:
            reason = " ".join(str(error).split())
            subject = f"{protocol.name}: {measurement.kind} of {source.features} {source.layer}"
            print(f"{subject} is left out: {reason}", file=sys.stderr)
            continue
        for metric, value, about in values:
            counts = splits.counts(about.get("labels") or "all") if metric.endswith("_top1") else {}
            conditions = {"augmentation": "none", **splits.place, **counts, **about}
            row = Row(
                source.features, source.layer, metric, value, splits.evaluated,
                data=splits.data, protocol=protocol.name, epoch=source.epoch, seed=seed,
                weights=source.network.weights if source.network else None,
                conditions=conditions | stored_description(metric),
            )  # fmt: skip
            if row not in yielded:
                yielded.append(row)
                yield row


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


def networks_beside(
    values: Sequence[str],
    trained: FeatureExtractor,
    untrained: Callable[[], Encoder],
    *,
    allow_class: Collection[str],
) -> list[Network]:
    """Build the networks of ``--beside NAME=FILE``.

    A run, a checkpoint of ``ssl-vision fit`` and an exported encoder, which may be on the Hugging Face Hub,
    state the size and the normalisation of their images. Other files hold weights of the encoder that is
    evaluated, which is given the same images.

    Args:
        values: values of the option.
        trained: the network that is evaluated, whose images, device, cache and seed these share.
        untrained: builds its encoder with random weights.
        allow_class: classes outside this package that the files may name.

    Raises:
        InputError: a name is invalid or occurs twice, or a file cannot be used.
    """
    networks: list[Network] = []
    for value in values:
        name, _, file = value.partition("=")
        if not file or not _NAME.fullmatch(name) or name in _TAKEN:
            raise InputError(
                f"--beside {value}: expected NAME=FILE, with a name other than {', '.join(_TAKEN)}"
            )
        if any(name == network.name for network in networks):
            raise InputError(f"--beside: two networks are named {name}")
        with local_file(file) as path:
            read = _read_encoder(path.expanduser(), trained.splits, untrained, allow_class)
        encoder, description, splits, epoch, used = read
        extractor = FeatureExtractor(
            encoder.to(trained.device), splits,
            description=description, layers=("backbone",), cache=trained.cache, seed=trained.seed,
        )  # fmt: skip
        networks.append(Network(name, extractor, epoch, f"{file}{used}"))
    return networks


def _read_encoder(
    path: Path, splits: Splits, untrained: Callable[[], Encoder], allow_class: Collection[str]
) -> tuple[Encoder, Any, Splits, int, str]:
    """Return an encoder, its description, the images as it expects them, its epoch and what was read."""
    used = ""
    if path.is_dir() or is_checkpoint(path):
        run = open_run(path, allow_class=allow_class)
        (encoder, about), epoch = pretrained(run), run.checkpoint.epoch
        used = f", epoch {epoch}"
    elif has_description(path):
        (encoder, about), epoch = read_backbone(path, allow_class=allow_class), 0
    else:
        encoder = untrained()
        options = "the encoder that is evaluated"
        used = load_encoder_weights(encoder, read_weights(path, option="--beside"), path, options=options)
        return encoder, str(encoder), splits, 0, f": {used}"
    views = dataclasses.replace(splits.views, size=about.size, mean=about.mean, std=about.std)
    return encoder, about.encoder, splits.with_views(views), epoch, used
