"""Images in tar files."""

import hashlib
import json
import os
import secrets
import tarfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssl_vision.data.datasets.encoded import EncodedData
from ssl_vision.data.images import Images
from ssl_vision.data.loading.file_listing import EXTENSIONS, Integers, digest_of, is_image_name, packed
from ssl_vision.data.loading.fingerprint import digest_of_content
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError
from ssl_vision.progress import tracked

_VERSION = 6
_OPTIONS = {
    "pretrain": "--data.train", "train": "--data.train", "val": "--data.val_files", "test": "--data.test",
}  # fmt: skip
_DIGITS = 6
"""Largest number of digits of a label that is the position of a class and not its name."""

Arrays = dict[str, NDArray[Any]]
"""Arrays by name."""


class Shards(EncodedData):
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
        workers: Number of worker processes for each device, 0 for none. Default: the number of cores, divided
            by the devices.
        **options: Options of `EncodedData` and `ImageData`.

    Raises:
        InputError: image_size is not in 1..4096, or pixel_range is empty.

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
        workers: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(root=root, image_size=image_size, **options)
        self.patterns = {"pretrain": train, "train": train, "val": val_files, "test": test}
        self.label_key = label_key
        self.image_size: int = image_size
        self.workers = workers
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
            present = {index.classes[label] for label in np.unique(index.labels) if label >= 0}
            if unknown := present - {*self.index("train").classes}:
                raise InputError(
                    f"the {split} split of {self.root} has the class {min(unknown)}, "
                    "which the train split does not have"
                )

    def index(self, split: Split) -> "TarIndex":
        """Return the index of a split, which is read only once.

        Raises:
            InputError: there are no tar files or images of the split.
        """
        pattern = self.patterns[split]
        if pattern not in self._indices:
            paths = self._paths(split)
            if not paths:
                raise InputError(f"no files {self.root / pattern}; set their pattern with {_OPTIONS[split]}")
            self._indices[pattern] = index_tars(paths, place=self._cache_place(), label_key=self.label_key)
        return self._indices[pattern]

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
        classes = self.index("train").classes
        return self._encoded(self.index(split), classes, side=self.image_size, workers=self.workers)

    def fingerprint(self) -> str:
        """Compute a digest of the names, sizes and labels of the images used by `fit`.

        Raises:
            InputError: there are no tar files or images.
        """
        digests = " ".join(self.index(split).digest(times=False) for split in self._stored_splits("validate"))
        return digest_of_content(digests.encode())

    def _paths(self, split: Split) -> list[Path]:
        pattern = self.patterns[split]
        try:
            return sorted(self.root.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                f"{_OPTIONS[split]} '{pattern}' is not a pattern relative to {self.root} ({error})"
            ) from error


class _Sample(NamedTuple):
    name: str
    offset: int
    size: int
    label: str


@dataclass(frozen=True)
class TarIndex:
    """Position of each image in its tar file, in the order of the files and of their members.

    Args:
        paths: Paths of the tar files.
        shards: Index in `paths` of the tar file of each image, (N,).
        names: Encoded path of each image within its tar file.
        offsets: Position of the first byte of each image in its tar file.
        sizes: Size of each image in bytes.
        labels: Class index of each image, (N,); -1 for images without a label.
        states: Size in bytes and modification time in nanoseconds of each tar file, (number of files, 2).
        classes: Names of the classes.
    """

    paths: tuple[Path, ...]
    shards: Integers
    names: NDArray[np.bytes_]
    offsets: Integers
    sizes: Integers
    labels: Integers
    states: Integers
    classes: tuple[str, ...]

    def path(self, row: int) -> str:
        """Return the tar file and the member of an image."""
        return f"{self.paths[int(self.shards[row])]}/{os.fsdecode(self.names[row])}"

    def content(self, row: int) -> bytes:
        """Read a compressed image.

        Raises:
            OSError: the tar file cannot be read, or is shorter than when it was indexed.
        """
        with self.paths[int(self.shards[row])].open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), int(self.sizes[row]), int(self.offsets[row]))
        if len(content) != self.sizes[row]:
            raise OSError("the tar file is too short")
        return content

    def digest(self, *, times: bool = True) -> str:
        """Return 16 hexadecimal digits of the names, sizes and labels of all images.

        Args:
            times: Include the sizes and modification times of the tar files, which a copy may not share.
        """
        numbers = self.sizes, self.labels, *([self.states] if times else [])
        return digest_of(self.names, *numbers, about=repr(self.classes))


def index_tars(paths: Sequence[Path], *, place: Path, label_key: str) -> TarIndex:
    """Index tar files, or read their stored index if their sizes and modification times are the same.

    The members of a sample have the same path up to the first dot of their file name, as in WebDataset. The
    label of a sample is its member `.cls`, or else the entry `label_key` of its member `.json`, or else the
    first folder of its path; the label -1 means none. If all labels are integers below the number of images,
    they are class indices; others are sorted. Further images of a sample, and those whose file names have a
    second dot or another type, are left out, with a warning.

    Args:
        paths: The tar files, uncompressed.
        place: Directory of the stored index.
        label_key: Key of the label in `.json` members.

    Raises:
        InputError: a file is damaged or not an uncompressed tar file, it stores an image as a link, a label
            is below -1, or there are no images.
    """
    try:
        states = np.array([(status.st_size, status.st_mtime_ns) for status in map(os.stat, paths)])
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read ({error.strerror})") from error
    key = repr((_VERSION, label_key, [os.path.relpath(path, place) for path in paths]))
    file = place / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.index"
    arrays = load_arrays(file)
    if arrays is None or not np.array_equal(arrays["states"], states):
        arrays = _index_arrays(paths, label_key) | {"states": states}
        store_arrays(file, arrays)
    classes = tuple(map(os.fsdecode, arrays.pop("classes").tolist()))
    return TarIndex(tuple(paths), classes=classes, **arrays)


def _index_arrays(paths: Sequence[Path], label_key: str) -> Arrays:
    """Index tar files; the arrays are the fields of `TarIndex`."""
    rows: list[tuple[int, int, int, int]] = []
    names, positions, left_out = list[str](), dict[str, int](), list[str]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        indexed = pool.map(lambda path: _samples(path, label_key, left_out), paths)
        for shard, samples in enumerate(tracked(indexed, "indexing", total=len(paths), unit="shards")):
            for name, offset, size, label in samples:
                names.append(name)
                position = positions.setdefault(label, len(positions)) if label else -1
                rows.append((shard, offset, size, position))
    if not names:
        raise InputError(f"no images in {paths[0]} and {len(paths) - 1} more tar files")
    if left_out:
        warnings.warn(
            f"{len(left_out)} images are left out, such as {min(left_out)}: a sample has one image, with one "
            f"dot in its file name, of these types: {' '.join(sorted(EXTENSIONS))}",
            stacklevel=4,
        )
    shards, offsets, sizes, labels = np.array(rows).T.copy()
    numbers = {label: int(label) for label in positions if label.isdecimal() and len(label) <= _DIGITS}
    largest = max(numbers.values(), default=-1)
    if len(numbers) == len(positions) and largest < len(labels):
        classes = list(map(str, range(largest + 1)))
    else:
        classes = sorted(positions)
        numbers = {label: number for number, label in enumerate(classes)}
    order = np.array([*(numbers[label] for label in positions), -1])
    return {
        "shards": shards, "offsets": offsets, "sizes": sizes, "labels": order[labels],
        "names": packed(names), "classes": packed(classes),
    }  # fmt: skip


def _samples(path: Path, label_key: str, left_out: list[str]) -> list[_Sample]:
    """Return the first image of each sample of a tar file, and add the others to `left_out`."""
    images: dict[str, _Sample] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # which would keep every member in memory
                name = member.name.removeprefix("./")
                folder, file = os.path.split(name)
                start, _, suffix = file.partition(".")
                sample, is_image = os.path.join(folder, start), f".{suffix.lower()}" in EXTENSIONS
                if member.isdir() or not (is_image or suffix in ("cls", "json")):
                    if member.isfile() and is_image_name(file):
                        left_out.append(f"{path}/{name}")
                    continue
                if not member.isfile() or member.issparse():
                    raise ValueError(f"{name} is a link or a sparse file; store the file itself")
                if not is_image:
                    content = tar.extractfile(member).read()  # type: ignore[union-attr]
                    label = _stated_label(name, content, None if suffix == "cls" else label_key)
                    if label is not None and (suffix == "cls" or sample not in labels):
                        labels[sample] = label
                elif sample in images:
                    left_out.append(f"{path}/{name}")
                else:
                    label = name.partition("/")[0] if "/" in name else ""
                    images[sample] = _Sample(name, member.offset_data, member.size, label)
            assert tar.fileobj is not None
            tar.fileobj.seek(tar.offset)
            block = tar.fileobj.read(tarfile.BLOCKSIZE)  # where tarfile stops without an error
            if len(block) < tarfile.BLOCKSIZE or block.strip(b"\0"):
                raise ValueError(f"damaged or incomplete at byte {tar.offset}")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an uncompressed tar file ({error})") from error
    return [image._replace(label=labels.get(sample, image.label)) for sample, image in images.items()]


def _stated_label(member: str, content: bytes, key: str | None) -> str | None:
    """Return the label that a member states, itself or under a key in JSON; empty for -1, None for none."""
    try:
        text = content.decode().strip()
        if key is not None:
            entries = json.loads(text)
            value = entries.get(key) if isinstance(entries, dict) else None
            if value is None:
                return None
            text = str(value)
        if text.startswith("-") and text[1:].isdecimal() and text != "-1":
            raise ValueError(f"label {text} is below -1, which means no label")
        return "" if text == "-1" else text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{member}: {error}") from error


def load_arrays(file: Path) -> Arrays | None:
    """Return the arrays of a file; None if there is no such file, or it is damaged."""
    try:
        with np.load(file) as stored:
            return dict(stored) if stored.zip.testzip() is None else None
    except Exception:  # NumPy may raise nearly anything for damaged files
        return None


def store_arrays(file: Path, arrays: Arrays) -> None:
    """Write arrays to a file, which is renamed when it is complete, if its directory is writable."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]  # no array is named allow_pickle
        os.replace(partial, file)
    with suppress(OSError):
        partial.unlink(missing_ok=True)
