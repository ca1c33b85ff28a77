"""Classification data sets of torchvision, by name."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torchvision import datasets

from ssl_vision.data.datasets.map_style import MapData
from ssl_vision.data.images import MapDataset
from ssl_vision.data.loading.download import fetching, missing_data
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError

Splits = dict[str, dict[str, Any]]

_TRAIN_TEST: Splits = {"train": {"split": "train"}, "test": {"split": "test"}}
_TRAIN_VAL: Splits = {"train": {"split": "train"}, "val": {"split": "val"}}
_ALL: Splits = _TRAIN_VAL | _TRAIN_TEST
_BOOLEAN: Splits = {"train": {"train": True}, "test": {"train": False}}
_ONE: Splits = {"train": {}}

DATASETS: dict[str, Splits] = {
    "CIFAR10": _BOOLEAN,
    "CIFAR100": _BOOLEAN,
    "CLEVRClassification": _TRAIN_VAL,
    "Caltech101": _ONE,
    "Caltech256": _ONE,
    "Country211": _TRAIN_TEST | {"val": {"split": "valid"}},
    "DTD": _ALL,
    "EMNIST": {"train": {"split": "balanced"}, "test": {"split": "balanced", "train": False}},
    "EuroSAT": _ONE,
    "FER2013": _TRAIN_TEST,
    "FGVCAircraft": _ALL,
    "FakeData": {"train": {}, "test": {"random_offset": 1_000_000}},
    "FashionMNIST": _BOOLEAN,
    "Flowers102": _ALL,
    "Food101": _TRAIN_TEST,
    "GTSRB": _TRAIN_TEST,
    "INaturalist": {"train": {"version": "2021_train"}, "val": {"version": "2021_valid"}},
    "ImageNet": _TRAIN_VAL,
    "Imagenette": _TRAIN_VAL,
    "KMNIST": _BOOLEAN,
    "LFWPeople": _TRAIN_TEST,
    "MNIST": _BOOLEAN,
    "OxfordIIITPet": {"train": {"split": "trainval"}, "test": {"split": "test"}},
    "PCAM": _ALL,
    "Places365": {"train": {"split": "train-standard"}, "val": {"split": "val"}},
    "QMNIST": _BOOLEAN,
    "RenderedSST2": _ALL,
    "SEMEION": _ONE,
    "STL10": _TRAIN_TEST,
    "SUN397": _ONE,
    "SVHN": _TRAIN_TEST,
    "StanfordCars": _TRAIN_TEST,
    "USPS": _BOOLEAN,
}
"""Splits of each data set, with the constructor's arguments that select them."""

_NOT_DOWNLOADED = ("FER2013", "FakeData", "ImageNet")
"""Data sets without the argument `download`."""


class Torchvision(MapData):
    """A classification data set of torchvision, by name.

    The files are those that the class of torchvision reads from root. Splits that torchvision does not have
    cannot be evaluated.

    Args:
        name: Name of the class in torchvision.datasets, such as Flowers102.
        root: Directory that torchvision reads.
        arguments: Further arguments of the class, such as {"size": "160px"}.
        **options: Options of `MapData` and its base classes.

    Raises:
        InputError: torchvision has no such data set, or its images have no classes.

    Example:
        >>> data = Torchvision(name="FakeData", arguments={"size": 20, "image_size": [3, 16, 16]})
        >>> len(data.split("train")), data.num_classes, data.has("val")
        (20, 10, False)
    """

    name: str
    workers = os.cpu_count() or 1

    def __init__(
        self,
        *,
        name: str,
        root: str | Path = "data",
        arguments: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, **options)
        if name not in DATASETS or not hasattr(datasets, name):
            names = ", ".join(DATASETS)
            raise InputError(f"torchvision has no classification data set {name}; there are {names}")
        self.name = name
        self.arguments = dict(arguments or {})
        if name == "FakeData":  # draws each image from torch's generator, which threads share
            self.workers = 1

    @property
    def title(self) -> str:
        """Name of the data set."""
        return self.name

    @property
    def identity(self) -> str:
        """Text that distinguishes this data set from others in a cache directory."""
        return f"{self.name} {sorted(self.arguments.items())}"

    def has(self, split: Split) -> bool:
        """Return True if torchvision has the split."""
        return split == "pretrain" or split in DATASETS[self.name]

    def _missing_split(self, split: Split) -> str:
        present = " and ".join(DATASETS[self.name])
        return f"torchvision's {self.name} has no {split} split, only {present}"

    def prepare_data(self) -> None:
        """Download missing files if `download` is set, and write the caches that are used."""
        if self.download and self.name not in _NOT_DOWNLOADED:
            for split in DATASETS[self.name]:
                try:
                    self._make(split)
                except (RuntimeError, OSError):
                    with fetching(self.name, self.root):
                        self._make(split, download=True)
        super().prepare_data()

    def open(self, split: Split) -> MapDataset:
        """Open a split.

        Raises:
            InputError: its files are missing or damaged, a package that reads them is missing, or an argument
                is invalid.
        """
        try:
            return self._make("train" if split == "pretrain" else split)
        except (RuntimeError, OSError) as error:
            if isinstance(error.__context__, ImportError):
                raise InputError(f"{self.name} requires another package: {error.__context__}") from error
            if self.name not in _NOT_DOWNLOADED:
                raise missing_data(self.name, self.root) from error
            cause = " ".join(str(error).split())
            raise InputError(
                f"{self.name} is missing or damaged at {self.root} ({cause}); it cannot be downloaded: "
                f"torchvision's documentation of {self.name} says where its files are"
            ) from error

    def class_names(self, dataset: MapDataset) -> tuple[str, ...]:
        """Return the names of the classes, from the attribute that the class of torchvision has."""
        if names := super().class_names(dataset):
            return names
        for attribute in ("categories", "all_categories"):
            if isinstance(categories := getattr(dataset, attribute, None), list):
                return tuple(map(str, categories))
        index = getattr(dataset, "class_to_idx", None)
        return tuple(sorted(index, key=index.__getitem__)) if isinstance(index, Mapping) else ()

    def _make(self, split: str, **arguments: Any) -> MapDataset:
        arguments |= DATASETS[self.name][split]
        if self.name != "FakeData":
            arguments["root"] = self.root
        try:
            dataset = getattr(datasets, self.name)(**arguments | self.arguments)
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.name}: {' '.join(str(error).split())}") from error
        if self.name == "SUN397":  # torchvision keeps the order in which the disk lists the files
            pairs = sorted(zip(dataset._image_files, dataset._labels, strict=True))
            dataset._image_files, dataset._labels = map(list, zip(*pairs, strict=True))
        if self.name == "INaturalist":
            dataset.index.sort()
        return cast(MapDataset, dataset)
