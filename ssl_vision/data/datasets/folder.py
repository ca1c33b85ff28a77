"""Image files in folders."""

import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.data.augment.views import Views
from ssl_vision.data.datasets.decoded import IMAGENET_VIEWS, DecodedData
from ssl_vision.data.datasets.encoded import encoded_images
from ssl_vision.data.datasets.split_folders import SplitFolders
from ssl_vision.data.images import Images
from ssl_vision.data.loading.decoded_cache import Undecoded
from ssl_vision.data.loading.decoding import squares
from ssl_vision.data.loading.file_listing import Listing, count_images, list_images
from ssl_vision.data.loading.fingerprint import (
    FileRecord,
    Fingerprint,
    digest_of_content,
    digest_of_files,
)
from ssl_vision.data.loading.prefetch import ahead
from ssl_vision.data.loading.worker_processes import check_workers, worker_processes
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError
from ssl_vision.progress import tracked

_ON_DISK = 2**36
"""Maximum size of squares that are stored by default."""


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
        views: Random views of the images.
        stream: Decode images again for each batch, in worker processes, and store no squares. By default,
            this is done if the squares of the train split take more than 64 GiB.
        workers: Number of worker processes for each device, 0 for none. Default: the number of cores, divided
            by the devices.
        **options: Options of `DecodedData` and `ImageData`.

    Attributes:
        skipped: Paths relative to root of undecodable files in the splits read so far.

    Raises:
        InputError: image_size is not in 1..4096, cache is none of its three values, or workers is negative.

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
        views: Views = IMAGENET_VIEWS,
        stream: bool | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, image_size=image_size, **options)
        check_workers(workers)
        self.train, self.val_folder, self.test = map(os.path.expanduser, (train, val_folder, test))
        self.image_size = image_size
        self.stream = stream
        self.workers = workers
        self._listings: dict[Split, Listing] = {}
        self._contents: dict[str, str] = {}

    def prepare_data(self) -> None:
        """Write the cache if it is used, in one process per machine.

        With several processes, errors are ignored here, because `setup` raises them in all processes.
        """
        try:
            splits = self._stored_splits("validate")
            if self.trainer is not None:
                self.check(*splits)
            for split in splits:
                if not self.has(split) or self._streams:
                    continue
                if self._large(images := self._undecoded(split), self.image_size):
                    self._cached(images, self.image_size, where=self.folder_of(split))
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
            return encoded_images(
                listing, listing.classes if split == "train" else self.classes,
                side=self.image_size, pixel_range=self.pixel_range, strict=self.strict,
                workers=worker_processes(self.workers, self.trainer.num_devices if self.trainer else None),
            )  # fmt: skip
        prefix = self._prefix(listing)
        images, file, contents = self._stored(
            self._undecoded(split), self.image_size, where=listing.folder, prefix=prefix
        )
        self._contents |= {prefix + name: content for name, content in contents.items()}
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
        return len(self.listing("train").names) * 3 * self.image_size**2 > _ON_DISK

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
        folders = self._folders
        if split in ("pretrain", "train"):
            return folders.find("train") or self.root
        return folders.get(split)

    def fingerprint(self, known: Mapping[str, FileRecord] | None = None) -> Fingerprint:
        """Compute a digest of the paths and contents of the image files used by `fit`.

        For images that are decoded for each batch, sizes are used instead of contents.

        No image is decoded, and files that were decoded before or whose records are unchanged are not read.

        Args:
            known: Earlier records by path. Files with unchanged size and modification time are not read
                again.

        Raises:
            InputError: a folder does not exist or contains no images.
        """
        splits = self._stored_splits("validate")
        if self._streams:
            digests = " ".join(self.listing(split).digest(times=False) for split in splits)
            return Fingerprint(digest_of_content(digests.encode()), files={}, compared="paths or file sizes")
        known = known or {}
        states = {
            path: state
            for listing in map(self.listing, splits)
            for path, state in zip(self._paths(listing), listing.states, strict=True)
        }
        contents = {
            path: file.content
            for path, file in known.items()
            if states.get(path) == (file.size, file.modified)
        }
        contents |= self._contents
        unread = [path for path in states if path not in contents]
        workers = os.cpu_count() or 1
        read = tracked(
            ahead(self._content, unread, workers=workers, depth=8 * workers),
            "checking", total=len(unread), unit="images",
        )  # fmt: skip
        contents |= dict(zip(unread, read, strict=True))
        undecodable = set(self.skipped)
        undecodable |= {
            path for path, file in known.items()
            if not file.decoded and file.content == contents.get(path) and path not in self._contents
        }  # fmt: skip
        files = {
            path: FileRecord(*state, contents[path], path not in undecodable)
            for path, state in states.items()
        }
        return Fingerprint(digest_of_files(files), files)

    def _content(self, path: str) -> str:
        file = self.root / path
        try:
            return digest_of_content(file.read_bytes()) if file.is_file() else ""
        except OSError:
            return ""

    @cached_property
    def _folders(self) -> SplitFolders:
        return SplitFolders(self.root, {"train": self.train, "val": self.val_folder, "test": self.test})

    def listing(self, split: Split) -> Listing:
        """Return the listing of a split, which is made only once, and stored only for streaming."""
        name: Split = "train" if split == "pretrain" else split
        if name not in self._listings:
            folder = self.folder_of(name)
            others = self._folders.others(folder) if name == "train" else set()
            self._listings[name] = list_images(folder, but=others, place=self._cache_place())
            if self._listings[name].stored and not self._streams:
                self._listings[name] = list_images(folder, but=others)
            if name == "train":
                self._report_splits(folder)
        return self._listings[name]

    def _report_splits(self, folder: Path) -> None:
        """Warn if folders are taken as splits beside other images."""
        taken = self._folders.taken(folder)
        rest = count_images(self.root, but=taken) if taken else 0
        if rest and (count := sum(map(count_images, taken))):
            names = ", ".join(sorted(path.name for path in taken))
            others = "trained on" if folder == self.root else "left out; --data.train . uses all"
            rank_zero_warn(
                f"{count:,} of {count + rest:,} images below {self.root} are in folders taken as splits "
                f"({names}), and the others are {others}"
            )

    def _prefix(self, listing: Listing) -> str:
        """Return the path of a listed folder relative to root, to which names of files are added."""
        path = os.path.relpath(listing.folder, self.root)
        return "" if path == "." else path + os.sep

    def _paths(self, listing: Listing) -> list[str]:
        """Return paths of listed files relative to root."""
        prefix = self._prefix(listing)
        return [prefix + name for name in listing.names]

    def _undecoded(self, split: Split) -> Undecoded:
        listing = self.listing(split)
        folder, names = listing.folder, listing.names
        return Undecoded(
            label="all" if folder == self.root else quote(os.path.relpath(folder, self.root), safe=""),
            names=names,
            digest=listing.digest,
            squares=lambda: squares(
                folder, names, side=self.image_size, strict=self.strict, pixel_range=self.pixel_range
            ),
        )


def class_of(name: str) -> str:
    """Return the first folder of a relative path; empty for a file directly in the folder."""
    first, _, rest = name.partition(os.sep)
    return first if rest else ""


def _refuse_other_classes(folder: Path, labels: Collection[str], classes: Collection[str]) -> None:
    """Raise an error for a class that is not in the train split; ignore labels if train has no classes."""
    unknown = {*labels} - {"", *classes}
    if classes and unknown:
        raise InputError(f"{folder / min(unknown)} is a class that the train split does not have")
