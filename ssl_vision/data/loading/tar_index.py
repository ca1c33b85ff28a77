"""Index of the images in tar files, which allows them to be read in any order."""

import hashlib
import json
import os
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ssl_vision.data.loading.listing import EXTENSIONS, Integers, Names, store
from ssl_vision.errors import InputError
from ssl_vision.progress import tracked

_VERSION = 1
_DIGITS = 6
"""Largest number of digits of a label that is the position of a class and not its name."""


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
        shards: Tar file of each image, its position in `paths`.
        names: Path of each image within its tar file.
        offsets: Position of the first byte of each image in its tar file.
        sizes: Size of each image in bytes.
        labels: Position of the class of each image; -1 for images without a label.
        classes: Names of the classes.
    """

    paths: tuple[Path, ...]
    shards: Integers
    names: Names
    offsets: Integers
    sizes: Integers
    labels: Integers
    classes: tuple[str, ...]

    def path(self, row: int) -> str:
        """Return the tar file and the member of an image."""
        return os.path.join(self.paths[int(self.shards[row])], self.names[row])

    def content(self, row: int) -> bytes:
        """Read a compressed image.

        Raises:
            OSError: the tar file cannot be read, or is shorter than when it was indexed.
        """
        size = int(self.sizes[row])
        file = os.open(self.paths[int(self.shards[row])], os.O_RDONLY)
        try:
            content = os.pread(file, size, int(self.offsets[row]))
        finally:
            os.close(file)
        if len(content) != size:
            raise OSError("the tar file is too short")
        return content

    def digest(self) -> str:
        """Return 16 hexadecimal digits of the names, sizes and labels of all images."""
        digest = hashlib.sha256(self.names.packed.data)
        for numbers in (self.sizes, self.labels):
            digest.update(np.ascontiguousarray(numbers).data)
        digest.update(repr(self.classes).encode(errors="surrogateescape"))
        return digest.hexdigest()[:16]


def index_tars(paths: Sequence[Path], *, place: Path, label_key: str) -> TarIndex:
    """Index tar files, or read their stored index if their sizes and modification times are the same.

    The members of a sample have the same path up to the first dot of their file name, as in WebDataset. The
    label of a sample is its member `.cls`, or else the entry `label_key` of its member `.json`, or else the
    first folder of its path. Labels that are all integers are used as they are; others are sorted.

    Args:
        paths: The tar files, uncompressed.
        place: Directory of the stored index.
        label_key: Key of the label in `.json` members.

    Raises:
        InputError: a file is not an uncompressed tar file, or there are no images.
    """
    states = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, paths)]
    key = f"{_VERSION} {label_key} {[str(path) for path in paths]} {states}"
    digest = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]
    file = place / f"{paths[0].name}-{digest}.index"
    try:
        stored = torch.load(file, mmap=True, weights_only=True)
        arrays = {name: tensor.numpy() for name, tensor in stored.items()}
    except (OSError, RuntimeError, ValueError):  # missing or damaged
        arrays = _arrays(paths, label_key)
        store(file, {name: torch.from_numpy(values) for name, values in arrays.items()})
    names, classes = Names(arrays.pop("names")), tuple(Names(arrays.pop("classes")))
    return TarIndex(paths=tuple(paths), names=names, classes=classes, **arrays)


def _arrays(
    paths: Sequence[Path], label_key: str
) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]:
    columns = {name: array("q") for name in ("shards", "offsets", "sizes", "labels")}
    packed, positions = bytearray(), dict[str, int]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        indexed = pool.map(lambda path: list(_samples(path, label_key)), paths)
        for shard, samples in enumerate(tracked(indexed, "indexing", total=len(paths), unit="shards")):
            for name, offset, size, label in samples:
                packed += os.fsencode(name) + b"\0"
                position = positions.setdefault(label, len(positions)) if label else -1
                for column, number in zip(columns.values(), (shard, offset, size, position), strict=True):
                    column.append(number)
    if not packed:
        raise InputError(f"no images in {paths[0]} and {len(paths) - 1} more tar files")
    integers = all(label.isdecimal() and len(label) <= _DIGITS for label in positions)
    largest = max(map(int, positions), default=-1) if integers else -1
    classes = list(map(str, range(largest + 1))) if integers else sorted(positions)
    final = {name: number for number, name in enumerate(classes)}
    order = np.array([*(final[str(int(label)) if integers else label] for label in positions), -1])
    arrays = {name: np.frombuffer(column, dtype=np.int64) for name, column in columns.items()}
    names = {"names": np.frombuffer(packed, dtype=np.uint8), "classes": Names.of(classes).packed}
    return arrays | {"labels": order[arrays["labels"]]} | names


def _samples(path: Path, label_key: str) -> Iterator[_Sample]:
    """Yield the first image of each sample of a tar file."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, name = os.path.split(member.name.removeprefix("./"))
                start, _, suffix = name.partition(".")
                sample = os.path.join(folder, start)
                if f".{suffix.lower()}" in EXTENSIONS:
                    images.setdefault(sample, member)
                elif suffix in ("cls", "json"):
                    file = tar.extractfile(member)
                    assert file is not None
                    content = file.read()
                    if suffix == "cls":
                        labels[sample] = content.decode().strip()
                    elif isinstance(entries := json.loads(content), dict) and label_key in entries:
                        labels.setdefault(sample, str(entries[label_key]))
    except (tarfile.TarError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an uncompressed tar file ({error})") from error
    for sample, member in images.items():
        name = member.name.removeprefix("./")
        label = labels.get(sample, name.partition("/")[0] if "/" in name else "")
        yield _Sample(name, member.offset_data, member.size, label)
