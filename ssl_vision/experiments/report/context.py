"""The data of a run's report: its files, its images and its features."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ssl_vision.cli.config_objects import built
from ssl_vision.data import ImageData, Images
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureCache, FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.splits import Splits
from ssl_vision.experiments.report.page import Missing
from ssl_vision.methods import Layers
from ssl_vision.metrics.knn import vote
from ssl_vision.metrics.neighbours import Neighbours, nearest, nearest_others
from ssl_vision.metrics.rows import Features
from ssl_vision.pretrained.opened_run import ROOT_NEEDED, open_run, safe_data
from ssl_vision.runs.registry import Run

SHOWN = 2000
"""Largest number of images in the map of the page."""

_SPLITS = {"train": "training", "val": "validation", "test": "test"}

NEAR = 5
"""Number of neighbours shown for an image."""

_NO_LABEL = "no label"
"""What unlabelled images show instead of the name of a class."""


@dataclass(frozen=True)
class FeatureView:
    """Features of the images of a split, with their nearest neighbours and kNN predictions.

    Args:
        images: N images.
        split: description of the images for the reader.
        features: features by layer, shape (N, F).
        bank: images among which neighbours are searched; None searches among `images` themselves.
        bank_features: backbone features of the bank, shape (M, F).
        k: number of neighbours that vote.
        temperature: temperature of the vote.
        classes: names of the classes of images and bank, all different.
    """

    images: Images
    split: str
    features: dict[str, Tensor]
    bank: Images | None
    bank_features: Features
    k: int
    temperature: float
    classes: tuple[str, ...]

    @cached_property
    def neighbours(self) -> Neighbours:
        """The max(k, 5) nearest neighbours of each image, excluding itself, by cosine similarity."""
        count = max(self.k, NEAR)
        if self.bank is None:
            return nearest_others(self.features["backbone"], min(count, len(self.images) - 1))
        return nearest(self.features["backbone"], self.bank_features, min(count, len(self.bank_features)))

    @property
    def voters(self) -> int:
        """Number of neighbours that vote: k, or the size of a smaller bank."""
        return min(self.k, len(self.bank or self.images))

    @cached_property
    def scores(self) -> Tensor | None:
        """Score of each class, shape (N, C); None if the images or the bank have no labels."""
        if self.bank is None or not self.bank.labelled.all() or not self.images.labelled.any():
            return None
        return vote(
            self.neighbours, self.bank.labels, len(self.classes), k=self.voters, temperature=self.temperature
        )

    @property
    def predicted(self) -> Tensor | None:
        """Predicted classes, shape (N,); None without scores."""
        return None if self.scores is None else self.scores.argmax(dim=1)

    @cached_property
    def shown(self) -> Tensor:
        """Rows that the map shows: all, or `SHOWN` evenly spaced ones."""
        return evenly_spaced(len(self.images), SHOWN)

    def name(self, label: int) -> str:
        """Name of a class; -1 is "no label"."""
        return self.classes[label] if label >= 0 else _NO_LABEL


@dataclass
class ReportContext:
    """The data from which the sections of a run's report are made.

    Args:
        run: the run.
        data: images of the run, if they are already loaded.
        embedded: features of the run, if they are already computed.
        embed: compute missing features.
        device: device on which features are computed.
        cache: keep features in the run directory.
        root: directory of the images, instead of the one in the config.
        allow_class: classes outside this package that the run may name.
    """

    run: Run
    data: ImageData | None = None
    embedded: FeatureExtractor | None = None
    embed: bool = True
    device: str = "auto"
    cache: bool = True
    root: str | None = None
    allow_class: Collection[str] = ()

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.run.setting("seed") or 0)

    def images(self) -> ImageData:
        """The data module of the run.

        Raises:
            Missing: The images cannot be read.
        """
        if self.data is None:
            try:
                data = self._configured_data()
                data.prepare_data()
                data.split("pretrain")
            except (InputError, KeyError, OSError) as error:
                raise Missing(f"the run's images cannot be read ({error})") from error
            self.data = data
        return self.data

    @cached_property
    def _features(self) -> FeatureView | str:
        """The features of the images, or why there are none."""
        if self.embedded is None and not self.embed:
            return (
                f"this section requires features: run ssl-vision evaluate {self.run.folder.path}, "
                f"or ssl-vision report {self.run.folder.path}"
            )
        try:
            return _feature_view(self.extractor, self.run.config.get("metrics") or {})
        except Missing as error:
            return str(error)
        except (InputError, ValueError) as error:
            return f"the features cannot be computed ({' '.join(str(error).split())})"

    def feature_view(self) -> FeatureView:
        """The features of the images.

        Raises:
            Missing: There are none; the message says why.
        """
        if isinstance(self._features, str):
            raise Missing(self._features)
        return self._features

    def view_pairs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The projector's embeddings (n, D) of two views of some images of `feature_view`.

        Args:
            rows: increasing numbers of the images, shape (n,).

        Raises:
            Missing: There are none; the message says why.
        """
        self.feature_view()
        name: Any = "test" if "test" in self.extractor.splits.images else "train"
        try:
            first, second = self.extractor.pairs(name, ("projector",), rows=rows)["projector"]
        except ValueError as error:
            raise Missing(str(error)) from error
        return first.cpu(), second.cpu()

    @cached_property
    def extractor(self) -> FeatureExtractor:
        """The run's network with its images; raises as `open_run`, `images` and `OpenedRun.trained` do."""
        if self.embedded is not None:
            return self.embedded
        opened = open_run(self.run.folder.last, allow_class=self.allow_class)
        data = self.images()
        try:
            images: Any = {"train": data.split("train"), "test": data.split(data.eval_split)}
        except InputError:
            images = {"train": _subset(data.split("pretrain"))}
        if not images["train"].labelled.any():
            images = {"train": _subset(images["train"])}
        model = opened.trained().to(chosen_device(self.device))
        cache = FeatureCache(self.run.folder.features) if self.cache else None
        return FeatureExtractor(
            model, Splits.of(data, images),
            description=opened.config["model"], layers=Layers._fields, cache=cache, seed=self.seed,
        )  # fmt: skip

    def _configured_data(self) -> ImageData:
        """The data module in the config, with the seed of the run.

        Raises:
            InputError: The config has no valid data module, or belongs to another user.
        """
        file, config = self.run.folder.config_file, self.run.config
        section = safe_data(config, where=file, owned=self.run.folder.owned, allow_class=self.allow_class)
        options = section["init_args"]
        if self.root is not None:
            options["root"] = self.root
        if options.get("root") == ROOT_NEEDED:
            raise InputError(
                f"{file}: belongs to another user: pass the directory of the images with --data.root"
            )
        config = {**config, "data": section}
        data: ImageData = built(ImageData, "data", config, where=file, allow_class=self.allow_class)
        return data


def _subset(images: Images) -> Images:
    return images.select(evenly_spaced(len(images), SHOWN))


def evenly_spaced(size: int, most: int) -> Tensor:
    """Return the evenly spaced indices of at most so many of ``size`` items, including the first."""
    count = min(size, most)
    return torch.arange(count) * size // count


def _feature_view(embedded: FeatureExtractor, metrics: dict[str, Any]) -> FeatureView:
    images = embedded.splits.images
    name: Any = "test" if "test" in images else "train"
    features = {layer: embedded.plain(name, layer)[:].cpu() for layer in embedded.layers}
    bank: Images | None = None
    bank_features: Features = features["backbone"]
    if name == "test":
        bank, bank_features = images["train"], embedded.plain("train", "backbone").cpu()
    count = len(images[name])
    return FeatureView(
        images[name], f"{count:,} {_SPLITS[embedded.splits.evaluated]} images", features, bank,
        bank_features, k=int(metrics.get("k") or 200), temperature=float(metrics.get("temperature") or 0.1),
        classes=distinct(images["train"].classes),
    )  # fmt: skip


def distinct(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes with the number of the class after those that are not unique."""
    counts = Counter([*classes, _NO_LABEL])
    return tuple(f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(classes))
