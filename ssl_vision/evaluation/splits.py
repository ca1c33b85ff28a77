"""The labelled images that an evaluation uses, subsets of their labels, and their pixels as features."""

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ssl_vision.data import HuggingFace, ImageData, ImageFolder, Images, Shards, Torchvision, Views
from ssl_vision.data.loading.fingerprint import digest_of_images
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError, check
from ssl_vision.metrics.rows import LazyRows
from ssl_vision.runs.config import below_home, class_name, significant

Labels = Literal["all", "1%", "5%", "10%", "20%", "30%", "50%"]

SHARES = {"1%": 0.01, "5%": 0.05, "10%": 0.1, "20%": 0.2, "30%": 0.3, "50%": 0.5}

_SEED = 0
"""Seed of the subsets of the labels, which are the same images for everyone with the same data."""

_NO_SETTINGS = {
    "class_path", "root", "test", "batch_size", "eval_batch_size", "seed", "val", "val_folder",
    "val_share", "views.compile", "workers",
}  # fmt: skip
"""Options of data that other fields of a row state or that do not affect the evaluation."""


class Splits:
    """The labelled images that an evaluation uses.

    Args:
        images: "train" and "test", of which "train" keeps only its labelled images if it has any, or "train"
            alone.
        views: size and normalisation of the network's input, and its augmentation.
        data: name of the data set.
        evaluated: the split that "test" holds: "test", or "val" for data without a test split.
        superclasses: (C,) superclass of each class, or None.
        place: fields of a row that distinguish the data from other data of this name.
    """

    def __init__(
        self,
        images: Mapping[Split, Images],
        views: Views,
        *,
        data: str,
        evaluated: Split = "test",
        superclasses: Tensor | None = None,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        if {"train", "test"} <= images.keys():
            labelled = images["train"].labelled
            if labelled.any() and not labelled.all():
                images = {**images, "train": images["train"].select(labelled)}
        self.images, self.views, self.data, self.evaluated = images, views, data, evaluated
        self.superclasses, self.place = superclasses, dict(place or {})
        self._digests: dict[Split, str] = {}

    @classmethod
    def of(
        cls,
        data: ImageData,
        images: Mapping[Split, Images] | None = None,
        *,
        place: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the splits of a data module, or the given images of it."""
        if images is None:
            images = {"train": data.split("train"), "test": data.split(data.eval_split)}
        return cls(
            images, data.views,
            data=type(data).__name__, evaluated=data.eval_split if "test" in images else "train",
            superclasses=data.superclasses, place=place,
        )  # fmt: skip

    def checked(self) -> Self:
        """Return the splits if their labels allow a classification.

        Raises:
            InputError: the train split or the evaluated split has no labels, or train has one class.
        """
        if not all(images.labelled.any() for images in self.images.values()):
            raise InputError(
                f"{self.data} has no labels in train or {self.evaluated}: there is nothing to classify"
            )
        if name := self.images["train"].only_class:
            raise InputError(f"the train images of {self.data} have one class, {name}: nothing to classify")
        return self

    def with_views(self, views: Views) -> Self:
        """Return the same images and labels with other views."""
        other = copy.copy(self)
        other.views = views
        return other

    def train_labels(self, share: Labels = "all") -> Tensor:
        """Labels of the training split, shape (N,); -1 outside the share that is used."""
        return label_subset(self.images["train"].labels, share)

    def counts(self, share: Labels = "all") -> dict[str, float]:
        """Numbers of labelled test and training images, and the largest share of a class in the former."""
        test = self.images["test"].labels
        classes = test[test >= 0].bincount()
        return {
            "test_images": int(classes.sum()),
            "train_images": int((self.train_labels(share) >= 0).sum()),
            "chance": int(classes.max()) / int(classes.sum()),
        }

    def labelled_train(self, share: Labels) -> Images:
        """Training split with the labels of `train_labels`."""
        return self.images["train"].relabelled(self.train_labels(share))

    def digest(self, name: Split) -> str:
        """Hash of the pixels of a split, computed once."""
        if name not in self._digests:
            self._digests[name] = digest_of_images(self.images[name])
        return self._digests[name]


class Pixels:
    """The images themselves as features, converted from bytes when they are read.

    Args:
        splits: the images.
        seed: seed of classifiers.
    """

    name = "pixels"
    layers = ("raw",)
    epoch = 0
    weights = None

    def __init__(self, splits: Splits, *, seed: int = 0) -> None:
        self.splits, self.seed = splits, seed

    def forget(self) -> None:
        """Nothing is kept."""

    def plain(self, split: Split, layer: str) -> LazyRows:
        """Values in [0, 1], shape (N, 3 · H · W); all names of layers return the same values."""
        images = self.splits.images[split]
        width = math.prod(images.shape)
        return LazyRows(lambda rows: images.at(rows).flatten(1).float().div_(255), (len(images), width))


def label_subset(labels: Tensor, share: Labels) -> Tensor:
    """Return the labels of a training split with -1 outside a subset, which `stratified` draws with seed 0.

    Args:
        labels: labels of the whole training split, int64 of shape (N,).
        share: share of the labels to keep.
    """
    if share == "all":
        return labels
    keep = stratified(labels, SHARES[share], seed=_SEED)
    return labels.where(keep.to(labels.device), -1)


def stratified(labels: Tensor, share: float, *, seed: int) -> Tensor:
    """Draw a random ``share`` of the rows of each class, which depends only on labels and ``seed``.

    Of n rows of a class, round(share · n) are drawn, but at least one and, if there are two or more, not all
    of them. Rows labelled -1 are never drawn.

    Args:
        labels: integers of shape (N,), -1 for unlabelled rows.
        share: share of the rows in (0, 1).
        seed: seed of the random numbers.

    Returns:
        A mask on the CPU, bool of shape (N,).

    Raises:
        ValueError: ``share`` is out of range.
    """
    check("share", share, above=0, below=1)
    labels = labels.cpu()
    taken = torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for label in torch.unique(labels[labels >= 0]).tolist():
        rows = (labels == label).nonzero()[:, 0]
        count = min(max(1, round(share * len(rows))), max(1, len(rows) - 1))
        taken[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return taken


def same_data(own: Mapping[str, Any], data: ImageData) -> bool:
    """Return True if the data are of the run's data set; image folders are compared by their paths."""
    if type(data).__name__ != class_name(own):
        return False
    options = own.get("init_args") or {}
    if isinstance(data, (HuggingFace, Torchvision)):
        return data.title in (options.get("name"), options.get("path"))
    if isinstance(data, ImageFolder):
        return _has_root(options, data) and options.get("test", "test") == below_home(data.test)
    return not isinstance(data, Shards) or _has_root(options, data)


def _has_root(options: Mapping[str, Any], data: ImageData) -> bool:
    """Return True if the data have the root of the given options."""
    return "root" in options and data.root.resolve() == Path(options["root"]).expanduser().resolve()


def data_place(
    own: Mapping[str, Any], stored: Mapping[str, Any], given: Mapping[str, Any], data: ImageData
) -> dict[str, str]:
    """Return root, folder and settings of the data of an evaluation, as far as they apply.

    Args:
        own: data section of the run's config.
        stored: the same section with all defaults, or another class if that of the run cannot be built.
        given: data section with the options of the command.
        data: data module built from ``given``.
    """
    place: dict[str, str] = {}
    mine = own.get("init_args") or {}
    if "root" in given["init_args"]:
        place["root"] = str(mine["root"]) if _has_root(mine, data) else below_home(str(data.root.resolve()))
    if isinstance(data, ImageFolder):
        place["folder"] = below_home(data.test if data.eval_split == "test" else data.val_folder)
    if isinstance(data, Shards):
        place["folder"] = data.patterns[data.eval_split]
    before, now = (significant({"data": each}) for each in (stored, given))
    names = {key: key.removeprefix("data.").removeprefix("init_args.") for key in now}
    changed = [key for key in now if before.get(key) != now[key] and names[key] not in _NO_SETTINGS]
    if changed:
        place["settings"] = ", ".join(f"{names[key]} {below_home(now[key])}" for key in sorted(changed))
    return place
