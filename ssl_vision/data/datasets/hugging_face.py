"""Data sets of the Hugging Face Hub, and files in its formats."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.data.datasets.image_folder import NAMES
from ssl_vision.data.datasets.map_style import MapData
from ssl_vision.data.images import MapDataset
from ssl_vision.data.loading.decoding import open_image
from ssl_vision.data.loading.file_listing import count_images
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError
from ssl_vision.optional import needed

_LABELS = ("label", "labels", "fine_label", "class", "target")
_SAVED = ("dataset_dict.json", "state.json")


class HuggingFace(MapData):
    """A data set of the Hugging Face Hub, or a local one in its formats, read by the package datasets.

    The image column is the one with the feature type Image. The label column is the one with the feature type
    ClassLabel, or else the first of integers or strings named label, labels, fine_label, class or target;
    without one, training is without labels.

    Args:
        path: Name on the Hub, local folder, or .parquet file.
        config: Configuration of the data set, for those that have several.
        image_column: Column of the images.
        label_column: Column of the labels; integers, strings or ClassLabel.
        train_split: Split to train on. By default, train or training, or the only one.
        validation_split: Validation split. By default, val, valid or validation, if there is one.
        test_split: Test split. By default, test or testing, if there is one.
        **options: Options of `MapData` and its base classes. Nothing is downloaded unless `download` is
            set.

    Example:
        >>> data = HuggingFace(path="ylecun/mnist", image_size=28)
        >>> data.path, data.image_size
        ('ylecun/mnist', 28)
    """

    workers = os.cpu_count() or 1

    def __init__(
        self,
        *,
        path: str,
        config: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        train_split: str | None = None,
        validation_split: str | None = None,
        test_split: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root="", **options)
        self.path = path
        self.config = config
        self.image_column = image_column
        self.label_column = label_column
        self._chosen = {"train": train_split, "val": validation_split, "test": test_split}

    @property
    def title(self) -> str:
        """Name of the data set."""
        return self.path

    @property
    def identity(self) -> str:
        """Text that distinguishes this data set from others in a cache directory."""
        place = os.path.realpath(self.path) if os.path.exists(self.path) else self.path
        contents = [rows._fingerprint for rows in self._splits_by_name.values()]
        return f"{place} {self.config} {self._columns} {contents}"

    def has(self, split: Split) -> bool:
        """Return True if the data set has the split."""
        return split == "pretrain" or split in self._rows

    def _missing_split(self, split: Split) -> str:
        option = "validation" if split == "val" else split
        return (
            f"{self.path} has no {option} split, only {', '.join(self._splits_by_name)}; "
            f"choose one with --data.{option}_split"
        )

    def open(self, split: Split) -> MapDataset:
        """Return the rows of a split, with images as they are stored."""
        from datasets import Image

        image, label = self._columns
        columns = [image] if label is None else [image, label]
        rows = self._rows["train" if split == "pretrain" else split].select_columns(columns)
        return cast(MapDataset, rows.cast_column(image, Image(decode=False)))

    def class_names(self, dataset: MapDataset) -> tuple[str, ...]:
        """Return the names of the classes: those of ClassLabel, or all strings of the train split."""
        return tuple(self._positions)

    def pair(self, item: Any, where: str) -> tuple[Any, Any]:
        """Return the image and the label of a row."""
        image, label = self._columns
        stored = item[image]
        content = stored["bytes"] if stored["bytes"] is not None else Path(stored["path"]).read_bytes()
        value = None if label is None else item[label]
        if isinstance(value, str):
            if value not in self._positions:
                raise InputError(f"{where} has the class {value}, which the train split does not have")
            value = self._positions[value]
        return open_image(content), value

    @cached_property
    def _splits_by_name(self) -> dict[str, Any]:
        datasets = needed("datasets", extra="huggingface")
        path = Path(self.path).expanduser()
        try:
            with nullcontext() if self.download else _offline():
                if any((path / name).is_file() for name in _SAVED):
                    loaded = datasets.load_from_disk(str(path))
                elif path.suffix == ".parquet":
                    loaded = datasets.load_dataset("parquet", data_files=str(path))
                else:
                    name = str(path.resolve()) if path.is_dir() else self.path
                    loaded = datasets.load_dataset(name, self.config)
        except Exception as error:  # of any package that reads or downloads files
            cause = " ".join(str(error).split())[:200]
            advice = "" if self.download or path.exists() else "; download it with --data.download true"
            raise InputError(f"{self.path} cannot be read ({cause}){advice}") from error
        splits = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
        used, images = sum(map(len, splits.values())), count_images(path) if path.is_dir() else 0
        if used < images:
            reason = "datasets chooses files by names such as train and test; --data ImageFolder reads all"
            rank_zero_warn(f"{used:,} of {images:,} images in {path} are used: {reason}")
        return splits

    @cached_property
    def _rows(self) -> dict[str, Any]:
        """The rows of each split that the data set has."""
        rows: dict[str, Any] = {}
        stored = self._splits_by_name
        for split, chosen in self._chosen.items():
            if chosen is not None and chosen not in stored:
                raise InputError(f"{self.path} has no split {chosen}, only {', '.join(stored)}")
            taken = rows.get("train")
            names = [name for name in NAMES[split] if stored.get(name) not in (None, taken)]
            if split == "train" and len(stored) == 1:
                names = list(stored)
            if chosen or names:
                rows[split] = stored[chosen or names[0]]
        if "train" not in rows:
            raise InputError(f"{self.path}: choose one of {', '.join(stored)} with --data.train_split")
        return rows

    @cached_property
    def _columns(self) -> tuple[str, str | None]:
        """Names of the columns of images and labels."""
        from datasets import ClassLabel, Image, Value

        features = self._rows["train"].features
        labels = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
        labels = labels or [name for name in _LABELS if isinstance(features.get(name), Value)][:1]
        label = self._column("label", self.label_column, labels)
        images = [name for name, kind in features.items() if isinstance(kind, Image) or _is_file(kind)]
        image = str(self._column("image", self.image_column, images))
        if image not in images and not isinstance(features[image], Value):
            raise InputError(
                f"{self.path}: the column {image} holds {features[image]}, not one image in each row"
            )
        return image, label

    def _column(self, kind: str, chosen: str | None, columns: Sequence[str]) -> str | None:
        """Return the chosen column, or the only one of a kind."""
        present = list(self._rows["train"].features)
        if chosen is not None and chosen not in present:
            raise InputError(f"{self.path} has no column {chosen}, only {', '.join(present)}")
        if chosen is None and len(columns) != 1 and (columns or kind == "image"):
            raise InputError(
                f"{self.path} has {'several' if columns else 'no'} columns of {kind}s among "
                f"{', '.join(columns or present)}; choose one with --data.{kind}_column"
            )
        return chosen or next(iter(columns), None)

    @cached_property
    def _positions(self) -> dict[str, int]:
        """Positions of the classes by name."""
        from datasets import ClassLabel, Value

        _, label = self._columns
        kind = None if label is None else self._rows["train"].features[label]
        names = kind.names if isinstance(kind, ClassLabel) else []
        if isinstance(kind, Value) and "string" in kind.dtype:
            names = sorted(name for name in self._rows["train"].unique(label) if name is not None)
        return {name: position for position, name in enumerate(names)}


def _is_file(feature: Any) -> bool:
    """Return True for the struct in which Image is stored, in files without the data set's features."""
    return isinstance(feature, dict) and {"bytes", "path"} <= feature.keys()


@contextmanager
def _offline() -> Iterator[None]:
    """Keep the packages of Hugging Face from using the network."""
    import datasets.config
    import datasets.data_files
    import huggingface_hub.constants

    resolve_pattern = datasets.data_files.resolve_pattern

    def resolve(pattern: str, *args: Any, **options: Any) -> Any:
        if "://" in pattern and not pattern.startswith("hf://"):  # in a README.md
            raise OSError(f"{pattern} is not on this disk; download it with --data.download true")
        return resolve_pattern(pattern, *args, **options)

    with (
        patch.object(datasets.config, "HF_HUB_OFFLINE", True),
        patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
        patch.object(datasets.data_files, "resolve_pattern", resolve),
    ):
        yield
