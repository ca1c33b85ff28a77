"""Image files in folders."""

import os
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.data.datasets.decoded import DecodedData, Undecoded
from ssl_vision.data.images import Images
from ssl_vision.data.loading.decoding import squares
from ssl_vision.data.loading.file_listing import Listing, class_of, count_images, list_images
from ssl_vision.data.loading.fingerprint import digest_of_content, digest_of_files
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError

_ON_DISK = 2**36
"""Maximum size of squares that are stored by default."""

NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""Recognised directory names of each split in lower case; the first one is the default."""

_OPTIONS = {"train": "--data.train", "val": "--data.val_folder", "test": "--data.test"}
_TITLES = {"train": "train", "val": "validation", "test": "test"}


class ImageFolder(DecodedData):
    """Images in folders, with optional labels given by the names of their class folders.

    The class of root/train/cat/**/x.png is cat; root/train/x.png has no label. Folders directly below root
    with these names, in upper or lower case, are splits and not classes: train and training; val, valid and
    validation; test and testing. Without a train folder, all other images below root are the train split.

    Files are sorted by name and decoded once to RGB squares of `image_size`: the EXIF orientation is applied,
    the shorter side is resized and the longer one centre cropped. Of an animation, the first frame is used;
    of 16-bit channels, the upper 8 bits or `pixel_range`; transparency is dropped. If the squares take more
    than 1 GiB, they are written to a file, from which batches are read. The file is created again if an image
    is changed, added or removed. If they take more than 64 GiB, images are decoded for each batch instead.

    Symbolic links are followed, except into folders that contain them.

    Args:
        root: Folder of the images.
        train: Subfolder to pretrain on. By default, all of the names above are recognised, and root itself is
            used if there is none.
        val_folder: Subfolder of the validation split, with the same class folders as train. By default, all
            of the names above are recognised.
        test: Subfolder of the test split. By default, all of the names above are recognised.
        image_size: Side of the stored images in pixels.
        stream: Decode images again for each batch, in worker processes, and store no squares. By default,
            this is done if the squares of the train split take more than 64 GiB.
        workers: Number of worker processes for each device, 0 for none. Default: the number of cores, divided
            by the devices.
        **options: Options of `DecodedData` and its base classes.

    Attributes:
        skipped: Paths relative to root of undecodable files in the splits read so far.

    Raises:
        InputError: image_size is not in 1..4096, or cache is none of its three values.

    Example:
        >>> data = ImageFolder(root="photos", image_size=96)
        >>> data.root.name, data.image_size
        ('photos', 96)
    """

    def __init__(
        self,
        *,
        root: str | Path,
        train: str = "train",
        val_folder: str = "val",
        test: str = "test",
        image_size: int = 96,
        stream: bool | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, image_size=image_size, **options)
        self.train, self.val_folder, self.test = map(os.path.expanduser, (train, val_folder, test))
        self.image_size: int = image_size
        self.stream = stream
        self.workers = workers
        self._listings: dict[Split, Listing] = {}
        self._contents: dict[Split, dict[str, str]] = {}

    def prepare_data(self) -> None:
        """Write the cache if it is used, in one process per machine.

        With several processes, errors are ignored here, because `setup` raises them in all processes.
        """
        try:
            splits = self._stored_splits("validate")
            if self.trainer is not None:
                self.check(*splits)
            if not self._streams:
                self._write_caches(*splits)
        except InputError:
            if self.trainer is None or self.trainer.world_size == 1:
                raise

    def read(self, split: Split) -> Images:
        """Decode a split; "pretrain" is the same as "train".

        Raises:
            InputError: the folder does not exist or contains no images, a file cannot be decoded, or a class
                is not in the train split.
        """
        if split == "pretrain":
            return self.split("train")
        self.check(split)
        listing = self.listing(split)
        if self._streams:
            classes = listing.classes if split == "train" else self.classes
            return self._encoded(listing, classes, side=self.image_size, workers=self.workers)
        undecoded = self._undecoded(split)
        images, file, contents = self._stored(undecoded)
        self._contents[split] = {undecoded.prefix + name: content for name, content in contents.items()}
        names = [class_of(name) for name in contents]
        classes = tuple(sorted({*names} - {""})) if split == "train" else self.classes
        if split != "train":
            _refuse_other_classes(listing.folder, names, classes)
        positions = {name: position for position, name in enumerate(classes)}
        return Images(images, torch.tensor([positions.get(name, -1) for name in names]), classes, file=file)

    @cached_property
    def _streams(self) -> bool:
        """True if images are decoded for each batch."""
        if self.stream is not None:
            return self.stream
        return len(self.listing("train").paths) * 3 * self.image_size**2 > _ON_DISK

    def has(self, split: Split) -> bool:
        """Return True if a split has a folder; the train split always has one, which may be root.

        Raises:
            InputError: the folder chosen for the split does not exist.
        """
        return split in ("pretrain", "train") or self._folders.find(split) is not None

    def check(self, *splits: Split) -> None:
        """Check the folders, file names and class names of splits, without decoding images.

        Raises:
            InputError: a folder does not exist or contains no images, or a class is not in the train split.
        """
        for split in splits:
            listing = self.listing(split)
            if split in ("val", "test"):
                _refuse_other_classes(listing.folder, listing.classes, self.listing("train").classes)

    def folder_of(self, split: Split) -> Path:
        """Return the folder of a split.

        Raises:
            InputError: there is none.
        """
        name = "train" if split == "pretrain" else split
        folder = self._folders.find(name)
        if folder is None and name == "train":
            return self.root
        if folder is None:
            advice = self._folders.advice(name)
            raise InputError(f"no folder for the {_TITLES[name]} split in {self.root}: {advice}")
        return folder

    @property
    def contents(self) -> dict[str, str]:
        """Digest of the content of each image used by `fit`, by path; empty if images are not stored."""
        if self._streams:
            return {}
        splits = self._stored_splits("validate")
        for split in splits:
            self.split(split)
        return {path: content for split in splits for path, content in self._contents[split].items()}

    def fingerprint(self) -> str:
        """Compute a digest of the paths and contents of the image files used by `fit`, which it decodes.

        For images that are decoded for each batch, sizes are used instead of contents.

        Raises:
            InputError: a folder does not exist or contains no images.
        """
        if not self._streams:
            return digest_of_files(self.contents)
        splits = self._stored_splits("validate")
        return digest_of_content(" ".join(self.listing(each).digest(times=False) for each in splits).encode())

    @cached_property
    def _folders(self) -> "SplitFolders":
        return SplitFolders(self.root, {"train": self.train, "val": self.val_folder, "test": self.test})

    def listing(self, split: Split) -> Listing:
        """Return the listing of a split, which is made only once."""
        name: Split = "train" if split == "pretrain" else split
        if name not in self._listings:
            folder = self.folder_of(name)
            others = self._folders.others(folder) if name == "train" else set()
            self._listings[name] = list_images(folder, but=others)
            if folder == self.root and (taken := sorted(path.name for path in others if path.is_dir())):
                rank_zero_warn(f"folders of {folder} that are splits, not classes: {', '.join(taken)}")
            if name == "train" and folder.parent == self.root and self.train == NAMES["train"][0]:
                rest = count_images(self.root, but={folder, *self._folders.others(self.root)})
                if rest:
                    rank_zero_warn(
                        f"{rest:,} images beside {folder}, which is taken as the train split, are left out; "
                        "--data.train . uses all"
                    )
        return self._listings[name]

    def _prefix(self, listing: Listing) -> str:
        """Return the path of a listed folder relative to root, to which names of files are added."""
        path = os.path.relpath(listing.folder, self.root)
        return "" if path == "." else path + os.sep

    def _undecoded(self, split: Split) -> Undecoded:
        listing = self.listing(split)
        folder, names, side = listing.folder, listing.names, self.image_size
        return Undecoded(
            "all" if folder == self.root else quote(os.path.relpath(folder, self.root), safe=""),
            folder, names, listing.digest,
            lambda: squares(folder, names, side=side, strict=self.strict, pixel_range=self.pixel_range),
            side=side, prefix=self._prefix(listing),
        )  # fmt: skip


def _refuse_other_classes(folder: Path, labels: Collection[str], classes: Collection[str]) -> None:
    """Raise an error for a class that is not in the train split; ignore labels if train has no classes."""
    unknown = {*labels} - {"", *classes}
    if classes and unknown:
        raise InputError(f"{folder / min(unknown)} is a class that the train split does not have")


class SplitFolders:
    """Directories of the splits below a root.

    A chosen directory must exist. Otherwise, a directory with one of the recognised names of the split is
    used, in upper or lower case; the default name takes precedence.

    Args:
        root: Directory of the images.
        chosen: Path of each split's directory below root; the default name means that none was chosen.

    Raises:
        InputError: the root does not exist or cannot be read.
    """

    def __init__(self, root: Path, chosen: dict[str, str]) -> None:
        if not root.is_dir():
            raise InputError(f"no folder {root}: give the directory of the images with --data.root")
        self.root = root
        self.chosen = chosen
        try:
            with os.scandir(root) as entries:
                folders = [entry.name for entry in entries if entry.is_dir()]
        except OSError as error:
            raise InputError(f"{root} cannot be read ({error.strerror})") from error
        self._folders = sorted(name for name in folders if not name.startswith("."))

    def find(self, split: str) -> Path | None:
        """Return the directory of a split, or None.

        Raises:
            InputError: the chosen directory does not exist, or several directories match the split.
        """
        name = self.chosen[split]
        if (folder := self.root / name).is_dir():
            return folder
        if self._is_chosen(split):
            raise InputError(f"no folder {folder} for the {_TITLES[split]} split: {self.advice(split)}")
        matches = self._matches(split)
        if len(matches) > 1:
            raise InputError(
                f"{self.root}: {_listed(matches)} could each be the {_TITLES[split]} split; "
                f"choose one with {_OPTIONS[split]} FOLDER"
            )
        return self.root / matches[0] if matches else None

    def others(self, folder: Path) -> set[Path]:
        """Return the directories of the other splits, whose images are excluded from a train directory.

        If root itself is the train split because there is no train directory, directories with recognised
        names are always excluded.
        """
        names = {self.chosen["val"], self.chosen["test"]}
        if folder.resolve() == self.root.resolve():
            for split in ("val", "test"):
                if not self._is_chosen("train") or not self._is_chosen(split):
                    names |= set(self._matches(split))
        return {self._inside(self.root / name) for name in names}

    def _inside(self, folder: Path) -> Path:
        """Return a directory as a path below root, however it is written, if it is inside root."""
        top, real = self.root.resolve(), folder.resolve()
        return self.root / real.relative_to(top) if real.is_relative_to(top) else folder

    def _is_chosen(self, split: str) -> bool:
        return self.chosen[split] != NAMES[split][0]

    def _matches(self, split: str) -> list[str]:
        return [name for name in self._folders if name.lower() in NAMES[split]]

    def advice(self, split: str) -> str:
        """Return how to set the directory of a split."""
        if not self._folders:
            labelled = "give a folder of labelled images with --data ImageFolder --data.root LABELLED"
            return f"it has no folders of splits or classes, hence no labels; {labelled}"
        return f"set it with {_OPTIONS[split]} FOLDER (folders: {_listed(self._folders)})"


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 12 else [*names[:11], f"{len(names) - 11} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
