"""The labelled images that an evaluation uses, and their pixels as features."""

import copy
import math
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from ssl_vision.data import ImageData, Images, Views
from ssl_vision.data.loading.fingerprint import digest_of_images
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError
from ssl_vision.evaluation.subset import Labels, label_subset
from ssl_vision.metrics.rows import LazyRows


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
        self._labels: dict[Labels, Tensor] = {}

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

    @classmethod
    def labelled(cls, data: ImageData, *, place: Mapping[str, Any]) -> Self:
        """Return the splits of a data module, downloaded if its options say so.

        Raises:
            InputError: the train split or the evaluated split has no labels.
        """
        data.prepare_data()
        return cls.of(data, place=place).checked()

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
        if share not in self._labels:
            self._labels[share] = label_subset(self.images["train"].labels, share)
        return self._labels[share]

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
    """

    def __init__(self, splits: Splits) -> None:
        self.splits = splits

    def plain(self, split: Split, layer: str) -> LazyRows:
        """Values in [0, 1], shape (N, 3 · H · W); all names of layers return the same values."""
        images = self.splits.images[split]
        width = math.prod(images.shape)
        return LazyRows(lambda rows: images.at(rows).flatten(1).float().div_(255), (len(images), width))
