"""Classification data sets of torchvision, by name."""

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torchvision import datasets

from ssl_vision.data.augment.views import Views
from ssl_vision.data.datasets.decoded import IMAGENET_VIEWS
from ssl_vision.data.datasets.map_data import MapData
from ssl_vision.data.datasets.map_style import MapDataset
from ssl_vision.data.datasets.torchvision_names import ARGUMENTS, DATASETS, EXCLUDED
from ssl_vision.data.loading.download import absent, fetching
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError


class Torchvision(MapData):
    """A classification data set of torchvision, by name.

    The files are those that the class of torchvision reads from root. Splits that torchvision does not have
    cannot be evaluated.

    Args:
        name: Name of the class in torchvision.datasets, such as Flowers102.
        root: Directory that torchvision reads.
        arguments: Further arguments of the class, such as {"size": "160px"}.
        image_size: Side of the stored squares in pixels. By default, squares of one size up to 96 pixels keep
            it, and other images become squares of the size of the views, but of at least 96 pixels.
        views: Random views of the images.
        **options: Options of `DecodedData` and `ImageData`.

    Raises:
        InputError: torchvision has no such data set, its images have no classes, or an argument is unknown.

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
        image_size: int | None = None,
        views: Views = IMAGENET_VIEWS,
        **options: Any,
    ) -> None:
        super().__init__(root=root, image_size=image_size, views=views, **options)
        if name in EXCLUDED:
            raise InputError(f"torchvision's {name} {EXCLUDED[name]}")
        if name not in DATASETS or not hasattr(datasets, name):
            names = ", ".join(DATASETS)
            raise InputError(f"torchvision has no classification data set {name}; there are {names}")
        self.name = name
        self.arguments = dict(arguments or {})
        if name == "FakeData":  # draws each image from torch's generator, which threads share
            self.workers = 1
        self._class = getattr(datasets, name)
        self._parameters = inspect.signature(self._class).parameters
        passed_on = any(each.kind is each.VAR_KEYWORD for each in self._parameters.values())
        for argument in () if passed_on else self.arguments:
            if argument not in self._parameters:
                raise InputError(f"torchvision's {name} has no argument {argument}")

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
        if self.download and "download" in self._constructor():
            for split in DATASETS[self.name]:
                try:
                    self._make(split)
                except (RuntimeError, OSError):
                    try:
                        with fetching(self.name, self.root):
                            self._make(split, download=True)
                    except ValueError as error:
                        raise InputError(f"{self.name}: {' '.join(str(error).split())}") from error
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
            if "download" in self._constructor():
                raise absent(self.name, self.root) from error
            cause = " ".join(str(error).split())
            raise InputError(
                f"{self.name} is missing or damaged at {self.root} ({cause}); it cannot be downloaded: "
                f"torchvision's documentation of {self.name} says where its files are"
            ) from error
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.name}: {' '.join(str(error).split())}") from error

    def class_names(self, dataset: MapDataset) -> tuple[str, ...]:
        """Return the names of the classes, from the attribute that the class of torchvision has."""
        if names := super().class_names(dataset):
            return names
        for attribute in ("categories", "all_categories"):
            if isinstance(categories := getattr(dataset, attribute, None), list):
                return tuple(map(str, categories))
        index = getattr(dataset, "class_to_idx", None)
        return tuple(sorted(index, key=index.__getitem__)) if isinstance(index, Mapping) else ()

    def _constructor(self) -> set[str]:
        """Return the names of the constructor's arguments, with those of its parents if it passes them on."""
        names: set[str] = set()
        for base in self._class.__mro__:
            parameters = inspect.signature(base.__init__).parameters.values()
            names |= {each.name for each in parameters}
            if all(each.kind is not each.VAR_KEYWORD for each in parameters):
                break
        return names

    def _make(self, split: str, **arguments: Any) -> MapDataset:
        value, accepted = DATASETS[self.name][split], self._constructor()
        if isinstance(value, dict):
            arguments |= value
        elif value is not None:
            arguments[next(each for each in ARGUMENTS if each in self._parameters)] = value
        arguments |= {"download": False} if "download" in accepted and "download" not in arguments else {}
        arguments |= {"root": self.root} if "root" in accepted else {}
        arguments |= {"split": "balanced"} if self.name == "EMNIST" else {}
        dataset = self._class(**arguments | self.arguments)
        if self.name == "SUN397":  # torchvision keeps the order in which the disk lists the files
            pairs = sorted(zip(dataset._image_files, dataset._labels, strict=True))
            dataset._image_files, dataset._labels = map(list, zip(*pairs, strict=True))
        if self.name == "INaturalist":
            dataset.index.sort()
        return cast(MapDataset, dataset)
