"""Images in tar files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_vision.data.augment.views import Views
from ssl_vision.data.datasets.decoded import IMAGENET_VIEWS, check_decoding
from ssl_vision.data.datasets.encoded import encoded_images
from ssl_vision.data.images import Images
from ssl_vision.data.loading.decoded_cache import cache_place
from ssl_vision.data.loading.decoding import PixelRange
from ssl_vision.data.loading.fingerprint import FileRecord, Fingerprint, digest_of_content
from ssl_vision.data.loading.tar_index import TarIndex, index_tars
from ssl_vision.data.loading.worker_processes import check_workers, worker_processes
from ssl_vision.data.module import ImageData, Split
from ssl_vision.errors import InputError


class Shards(ImageData):
    """Images in uncompressed tar files, such as those of WebDataset, decoded for each batch.

    The members of a sample have the same path up to the first dot of the file name. The label of a sample is
    its member `.cls`, or else the entry `label_key` of its member `.json`, or else the first folder of its
    path; -1 means no label.

    The tar files are indexed once, and images are then read at their positions. Order, views and continued
    runs therefore have the same guarantees as with image files, but the tar files must be on a disk that
    allows random access.

    Args:
        root: Folder of the tar files.
        train: Pattern of the tar files to pretrain on, relative to root.
        val_files: Pattern of the tar files of the validation split.
        test: Pattern of the tar files of the test split.
        label_key: Key of the label in `.json` members.
        image_size: Side of the decoded squares in pixels.
        views: Random views of the images.
        pixel_range: Values of grey images of more than 8 bits that become black and white.
        strict: Raise an error for an image that cannot be decoded, instead of replacing it with a warning.
        workers: Number of worker processes for each device, 0 for none. Default: the number of cores, divided
            by the devices.
        cache_dir: Directory of the index. Default: root/.ssl_vision_cache, or the user's cache directory if
            root is not writable.
        **options: Options of `ImageData`.

    Raises:
        InputError: image_size is not in 1..4096, pixel_range is empty, or workers is negative.

    Example:
        >>> data = Shards(root="shards", train="train-*.tar")
        >>> data.has("val")
        False
    """

    def __init__(
        self,
        *,
        root: str | Path,
        train: str = "train*.tar",
        val_files: str = "val*.tar",
        test: str = "test*.tar",
        label_key: str = "label",
        image_size: int = 96,
        views: Views = IMAGENET_VIEWS,
        pixel_range: PixelRange | None = None,
        strict: bool = False,
        workers: int | None = None,
        cache_dir: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, **options)
        check_workers(workers)
        check_decoding(image_size, pixel_range)
        self.patterns = {"train": train, "val": val_files, "test": test}
        self.label_key = label_key
        self.image_size = image_size
        self.pixel_range = pixel_range
        self.strict = strict
        self.workers = workers
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))
        self._indices: dict[str, TarIndex] = {}

    def has(self, split: Split) -> bool:
        """Return True if there are tar files of a split."""
        return bool(self._paths(split))

    def check(self, *splits: Split) -> None:
        """Index the tar files of splits, and check that their classes are those of the train split.

        Raises:
            InputError: a split has no tar files or no images, shares a file with train, or has a class that
                train lacks.
        """
        for split in splits:
            index = self.index(split)
            if split in ("val", "test") and (both := {*self._paths(split)} & {*self._paths("train")}):
                raise InputError(
                    f"{min(both)} matches the patterns of train ({self.patterns['train']}) and of {split} "
                    f"({self.patterns[split]}): change one of them"
                )
            present = {index.classes[label] for label in set(index.labels.tolist()) if label >= 0}
            if unknown := present - {*self.index("train").classes}:
                raise InputError(
                    f"the {split} split of {self.root} has the class {min(unknown)}, "
                    "which the train split does not have"
                )

    def index(self, split: Split) -> TarIndex:
        """Return the index of a split, which is read only once.

        Raises:
            InputError: there are no tar files or images of the split.
        """
        name = "train" if split == "pretrain" else split
        if name not in self._indices:
            paths = self._paths(split)
            if not paths:
                pattern = self.patterns[name]
                option = "val_files" if name == "val" else name
                raise InputError(f"no files {self.root / pattern}; set their pattern with --data.{option}")
            place = cache_place(self.root, self.cache_dir)
            self._indices[name] = index_tars(paths, place=place, label_key=self.label_key)
        return self._indices[name]

    def prepare_data(self) -> None:
        """Index the tar files, in one process per machine."""
        self.check(*self._stored_splits("fit"))

    def read(self, split: Split) -> Images:
        """Return the images of a split; "pretrain" is the same as "train".

        Raises:
            InputError: there are none, or they have a class that train does not have.
        """
        if split == "pretrain":
            return self.split("train")
        self.check(split)
        return encoded_images(
            self.index(split), self.index("train").classes,
            side=self.image_size, pixel_range=self.pixel_range, strict=self.strict,
            workers=worker_processes(self.workers, self.trainer.num_devices if self.trainer else None),
        )  # fmt: skip

    def fingerprint(self, known: Mapping[str, FileRecord] | None = None) -> Fingerprint:
        """Compute a digest of the names, sizes and labels of the images used by `fit`.

        Args:
            known: Not used.

        Raises:
            InputError: there are no tar files or images.
        """
        digests = " ".join(self.index(split).digest(times=False) for split in self._stored_splits("validate"))
        return Fingerprint(digest_of_content(digests.encode()), files={}, compared="names, sizes or labels")

    def _paths(self, split: Split) -> list[Path]:
        name = "train" if split == "pretrain" else split
        try:
            return sorted(self.root.glob(self.patterns[name]))
        except (ValueError, NotImplementedError) as error:
            option = "val_files" if name == "val" else name
            raise InputError(
                f"--data.{option} '{self.patterns[name]}' is not a pattern relative to {self.root} ({error})"
            ) from error
