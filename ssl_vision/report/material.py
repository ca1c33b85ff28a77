"""What a run's page is made of: its files, its images, its features."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from ssl_vision.cli.classes import built
from ssl_vision.cli.parser import one_line
from ssl_vision.data import ImageData, Images
from ssl_vision.errors import InputError
from ssl_vision.evaluation.cache import FeatureCache
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.rebuild import ROOT_NEEDED, safe_data, trained_model
from ssl_vision.evaluation.splits import Splits
from ssl_vision.methods import Layers
from ssl_vision.metrics.neighbours import Neighbours, nearest
from ssl_vision.metrics.vote import vote
from ssl_vision.report.page import Missing
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.registry import Run

SHOWN = 2000
"""Images at most that the page carries for its map."""

_SPLITS = {"train": "training", "val": "validation", "test": "test"}

NEAR = 5
"""Neighbours that are shown of an image."""


@dataclass(frozen=True)
class FeatureView:
    """What a network makes of a split's images, and what their neighbours say of them.

    Args:
        images: N of them.
        split: which they are, in words.
        features: (N, F) by layer.
        bank: the images among which neighbours are sought; None where that is `images` themselves.
        bank_features: (M, F) of the backbone.
        k: neighbours that vote.
        temperature: of the vote.
        classes: names of the classes; of images and bank alike.
    """

    images: Images
    split: str
    features: dict[str, Tensor]
    bank: Images | None
    bank_features: Tensor
    k: int
    temperature: float
    classes: tuple[str, ...]

    @cached_property
    def neighbours(self) -> Neighbours:
        """Of each image, max(k, 5) at most in the bank, itself left out, by cosine of the backbone."""
        own = int(self.bank is None)
        count = min(max(self.k, NEAR) + own, len(self.bank_features))
        found = nearest(self.features["backbone"], self.bank_features, count)
        if not own:
            return found
        other = found.index != torch.arange(len(self.images))[:, None]
        other[:, -1] &= other.sum(dim=1) < count  # an image that is not among its own neighbours has equals
        return Neighbours(*(each[other].view(len(self.images), count - 1) for each in found))

    @property
    def voters(self) -> int:
        """Neighbours that vote: k, or all of a smaller bank."""
        return min(self.k, len(self.bank or self.images))

    @cached_property
    def scores(self) -> Tensor | None:
        """(N, C) the score that the vote gives each class; None where images or bank have no labels."""
        if self.bank is None or not self.bank.labelled.all() or not self.images.labelled.any():
            return None
        return vote(
            self.neighbours, self.bank.labels, len(self.classes), k=self.voters, temperature=self.temperature
        )

    @property
    def predicted(self) -> Tensor | None:
        """(N,) the class that the vote gives each image; None where there are no scores."""
        return None if self.scores is None else self.scores.argmax(dim=1)

    @cached_property
    def shown(self) -> Tensor:
        """Rows that the map shows: all, or `SHOWN` of them, evenly spaced."""
        count = min(len(self.images), SHOWN)
        return torch.arange(count) * len(self.images) // count

    def name(self, label: int) -> str:
        """Of a class; -1 is no class."""
        return self.classes[label] if label >= 0 else "no label"


@dataclass
class ReportContext:
    """What the sections of a run's page draw from.

    Args:
        run: its folder.
        data: its images, where they are read already.
        embedded: its features, where they are made already.
        embed: whether features are made where they are not.
        device: where.
        cache: keep features in the run folder.
        root: folder of the run's images, instead of the one in its config.
        allowed: classes outside this package that the run may name.
    """

    run: Run
    data: ImageData | None = None
    embedded: FeatureExtractor | None = None
    embed: bool = True
    device: str = "auto"
    cache: bool = True
    root: str | None = None
    allowed: Collection[str] = ()

    @property
    def seed(self) -> int:
        """Of the run."""
        return int(self.run.setting("seed") or 0)

    def images(self) -> ImageData:
        """The run's data.

        Raises:
            Missing: it cannot be read.
        """
        if self.data is None:
            try:
                data = self._data()
                data.prepare_data()
                data.split("pretrain")
            except (InputError, OSError) as error:
                raise Missing(f"the run's images cannot be read ({error})") from error
            self.data = data
        return self.data

    @cached_property
    def look(self) -> FeatureView | str:
        """The features of the run's images, or why there are none."""
        if self.embedded is None and not self.embed:
            return (
                f"it needs the features of images: ssl-vision evaluate {self.run.folder.path}, "
                f"or ssl-vision report {self.run.folder.path}"
            )
        try:
            return _look(self.embedded or self._embedded(), self.run.config.get("metrics") or {})
        except Missing as error:
            return str(error)
        except (InputError, ValueError) as error:
            return f"there are no features ({' '.join(str(error).split())})"

    def features(self) -> FeatureView:
        """The features of the run's images.

        Raises:
            Missing: there are none.
        """
        if isinstance(self.look, str):
            raise Missing(self.look)
        return self.look

    def _embedded(self) -> FeatureExtractor:
        checkpoint = read_checkpoint(self.run.folder.last)
        data = self.images()
        try:
            images: Any = {"train": data.split("train"), "test": data.split(data.eval_split)}
        except InputError:
            images = {"train": _some(data.split("pretrain"))}
        if not images["train"].labelled.any():
            images = {"train": _some(images["train"])}
        model = trained_model(checkpoint, allowed=self.allowed).to(chosen_device(self.device))
        cache = FeatureCache(self.run.folder.features) if self.cache else None
        return FeatureExtractor(
            model, Splits.of(data, images),
            description=checkpoint.config["model"], layers=Layers._fields, cache=cache, seed=self.seed,
        )  # fmt: skip

    def _data(self) -> ImageData:
        """The data module that the run's config describes, with the run's seed.

        Raises:
            InputError: the config describes none, or where another user's images are.
        """
        file, config = self.run.folder.config_file, self.run.config
        try:
            section = safe_data(config, where=file, owned=self.run.folder.owned, allowed=self.allowed)
            options = section["init_args"]
            if self.root is not None:
                options["root"] = self.root
            if options.get("root") == ROOT_NEEDED:
                raise InputError(
                    f"{file}: belongs to another user: give the images to ssl-vision report with --data.root"
                )
            config = {**config, "data": section}
            data = built(pl.LightningDataModule, "data", config, where=file, allowed=self.allowed)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{file}: describes no data: {one_line(str(error))}") from error
        if not isinstance(data, ImageData):
            raise InputError(f"{type(data).__name__} is no ImageData")
        return data


def _some(images: Images) -> Images:
    """As many as the map shows."""
    count = min(len(images), SHOWN)
    return images.select(torch.arange(count) * len(images) // count)


def _look(embedded: FeatureExtractor, metrics: dict[str, Any]) -> FeatureView:
    images = embedded.splits.images
    name: Any = "test" if "test" in images else "train"
    features = {layer: embedded.plain(name, layer).cpu() for layer in embedded.layers}
    bank, bank_features = None, features["backbone"]
    if name == "test":
        bank, bank_features = images["train"], embedded.plain("train", "backbone").cpu()
        known = bank.labelled
        if known.any() and not known.all():
            bank, bank_features = bank.select(known), bank_features[known]
    count = len(images[name])
    return FeatureView(
        images[name], f"{count:,} {_SPLITS[embedded.splits.evaluated]} images", features, bank,
        bank_features, k=int(metrics.get("k") or 200), temperature=float(metrics.get("temperature") or 0.1),
        classes=images["train"].classes,
    )  # fmt: skip
