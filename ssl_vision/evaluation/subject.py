"""What an evaluation measures, networks and labelled images, and its measurement under protocols."""

import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import nn

from ssl_vision.data import Images, Views
from ssl_vision.data.datasets.evaluation_pairs import prepared_views, read_dataset
from ssl_vision.data.images import MapDataset, class_positions
from ssl_vision.data.module import Split
from ssl_vision.descriptions import stored_description
from ssl_vision.encoders import Encoder, ModuleEncoder, measure_num_features
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor, embedding_by_all
from ssl_vision.evaluation.measurement import Source, knn_scores
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.results import START, Evaluation, Row, described_protocol, with_gains
from ssl_vision.evaluation.splits import Pixels, Splits
from ssl_vision.hub import local_file
from ssl_vision.methods import Layers, Method
from ssl_vision.pretrained.backbones import has_description, pretrained, read_backbone
from ssl_vision.pretrained.opened_run import OpenedRun, open_run
from ssl_vision.runs.checkpoint import is_checkpoint
from ssl_vision.runs.encoder_weights import load_encoder_weights, read_weights

_TAKEN = ("trained", START, "untrained", "pixels")
"""Names of the rows that an evaluation has without the option."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Subject:
    """What an evaluation measures.

    Args:
        networks: the networks, of which the first is the trained one.
        splits: the labelled images.
        about: description of the trained network.
        pixels: True to measure raw pixels, too.
    """

    networks: tuple[FeatureExtractor, ...]
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
        layers = Layers._fields if isinstance(encoder, Method) else ("backbone",)
        network = FeatureExtractor(encoder, splits, description=name, layers=layers, seed=seed)
        return cls((network,), splits, name, pixels=baselines)

    def checked(self) -> Self:
        """Return the subject if its networks accept images of the size that they are given.

        Raises:
            InputError: a network does not.
        """
        for network in self.networks:
            views = network.splits.views
            try:
                measure_num_features(network.encoder, views.size, views.channels)
            except ValueError as error:
                hint = "--data.views.size sets the size of the images"
                raise InputError(f"{network.name}: {error}; {hint}") from error
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
    networks, splits, trained = subject.networks, subject.splits, subject.networks[0]
    rows: list[Row] = []
    with embedding_by_all(networks):
        measured: list[FeatureExtractor | Pixels] = [*networks]
        if subject.pixels and any(images.digest for images in splits.images.values()):
            print("raw pixels are left out: the images are decoded for each batch", file=sys.stderr)
        elif subject.pixels:
            measured.append(Pixels(splits, seed=trained.seed))
        for protocol in protocols:
            if missing := sorted(set(protocol.layers) - set(trained.layers)):
                print(f"{protocol.name}: {', '.join(missing)} left out: an encoder has none", file=sys.stderr)
            for each in measured:
                layers = tuple(layer for layer in protocol.layers if layer in each.layers) or each.layers[:1]
                for layer in layers:
                    rows += run_protocol(protocol, Source(each, layer, layers, protocol.measurements))
                each.forget()
    knn_scores.cache_clear()  # which keeps the last network
    if not any(row.features == trained.name for row in rows):
        raise InputError(f"nothing of the {trained.name} network could be measured: the lines above say why")
    train, test = splits.images["train"], splits.images["test"]
    split = "test split" if splits.evaluated == "test" else "validation split, as there is no test split"
    counts = f"{len(test)} images) against {len(train)} labelled train images"
    about = [f"{splits.data}: {split} ({counts}, {subject.about}"]
    about += [f"{network.name}: {network.about}" for network in networks if network.about]
    described = {each.name: described_protocol(each, len(train)) for each in protocols}
    return Evaluation(tuple(with_gains(rows)), "\n".join(about), described)


def run_protocol(protocol: Protocol, source: Source) -> Iterator[Row]:
    """Measure one representation under a protocol and yield the rows.

    A measurement that is not possible, for example because training diverges, is omitted and reported on
    stderr with the reason. Equal rows, of kNN with different k above the number of images, are yielded once.
    """
    splits, seed = source.extractor.splits, source.extractor.seed
    yielded: list[Row] = []
    for measurement in protocol.measurements:
        try:
            values = list(measurement.measure(source, splits, seed))
        except InputError:  # for example, of an image that cannot be decoded
            raise
        except (ValueError, torch.OutOfMemoryError) as error:
            reason = " ".join(str(error).split())
            subject = f"{protocol.name}: {measurement.kind} of {source.features} {source.layer}"
            print(f"{subject} is left out: {reason}", file=sys.stderr)
            continue
        for metric, value, about, correct in values:
            counts = splits.counts(about.get("labels") or "all") if metric.endswith("_top1") else {}
            conditions = {"augmentation": "none", **splits.place, **counts, **about}
            row = Row(
                source.features, source.layer, metric, value, splits.evaluated,
                data=splits.data, protocol=protocol.name, epoch=source.extractor.epoch, seed=seed,
                weights=source.extractor.weights,
                conditions=conditions | stored_description(metric), correct=correct,
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
        split.classes, split.labels = classes, class_positions(ids, classes)
    return Splits(images, views, data=type(test).__name__).checked()


def compared(
    trained: FeatureExtractor,
    about: str,
    untrained: Callable[[], Method | Encoder],
    *,
    start: OpenedRun | None = None,
    others: Sequence[str],
    baseline: bool,
    pixels: bool,
    allow_class: Collection[str],
) -> Subject:
    """Return a subject of a network, its start, others to compare it with, and the network before training.

    The others are given as ``NAME=FILE``. A run, a checkpoint of ``ssl-vision fit`` and an exported encoder,
    which may be on the Hugging Face Hub, state the size and the normalisation of their images. Other files
    hold weights of the encoder that is evaluated, which is given the same images.

    Args:
        trained: the network that is evaluated, whose images, device, cache and seed the others share.
        about: description of the trained network.
        untrained: builds the network with random weights.
        start: the weights from which training started, or None. They are given the same images.
        others: names and files of the others.
        baseline: True to measure the network before training, too.
        pixels: True to measure raw pixels, too.
        allow_class: classes outside this package that the files may name.

    Raises:
        InputError: a name is invalid or occurs twice, a file cannot be used, or a network does not accept
            images of the size that it is given.
    """
    networks = [trained]
    if start is not None:
        encoder = pretrained(start).backbone
        networks.append(trained.with_network(encoder, name=START, about="initial weights of training"))
    for value in others:
        name, _, file = value.partition("=")
        taken = {*_TAKEN, *(network.name for network in networks)}
        if not file or not _NAME.fullmatch(name) or name in taken:
            names = ", ".join(sorted(taken))
            raise InputError(f"--other {value}: expected NAME=FILE, with a name other than {names}")
        networks.append(_read_network(local_file(file), file, name, trained, untrained, allow_class))
    if baseline:
        networks.append(trained.with_network(untrained(), name="untrained"))
    return Subject(tuple(networks), trained.splits, about, pixels=pixels).checked()


def _read_network(
    path: Path,
    file: str,
    name: str,
    trained: FeatureExtractor,
    untrained: Callable[[], Method | Encoder],
    allow_class: Collection[str],
) -> FeatureExtractor:
    if path.is_dir() or is_checkpoint(path):
        run = open_run(path, allow_class=allow_class)
        (encoder, about), epoch = pretrained(run), run.checkpoint.epoch
        file = f"{file}, epoch {epoch}"
    elif has_description(path):
        (encoder, about), epoch = read_backbone(path, allow_class=allow_class), 0
    else:
        network = untrained()
        encoder = network.backbone if isinstance(network, Method) else network
        options = "the encoder that is evaluated"
        used = load_encoder_weights(encoder, read_weights(path, option="--other"), path, options=options)
        return trained.with_network(encoder, name=name, description=str(encoder), about=f"{file}: {used}")
    views = dataclasses.replace(trained.splits.views, size=about.size, mean=about.mean, std=about.std)
    splits = trained.splits.with_views(views)
    return trained.with_network(
        encoder, name=name, description=about.encoder, splits=splits, epoch=epoch, about=file
    )
