"""Index of the images in tar files, which allows them to be read in any order."""

import hashlib
import json
import os
import tarfile
import warnings
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssl_vision.data.loading.listing import EXTENSIONS, Integers, Names
from ssl_vision.data.loading.stored_arrays import Arrays, load_arrays, store_arrays
from ssl_vision.errors import InputError
from ssl_vision.progress import tracked

_VERSION = 3
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
        shards: Index in `paths` of the tar file of each image, (N,).
        names: Path of each image within its tar file.
        offsets: Position of the first byte of each image in its tar file.
        sizes: Size of each image in bytes.
        labels: Class index of each image, (N,); -1 for images without a label.
        states: Size in bytes and modification time in nanoseconds of each tar file, (number of files, 2).
        classes: Names of the classes.
    """

    paths: tuple[Path, ...]
    shards: Integers
    names: Names
    offsets: Integers
    sizes: Integers
    labels: Integers
    states: Integers
    classes: tuple[str, ...]

    def path(self, row: int) -> str:
        """Return the tar file and the member of an image."""
        return f"{self.paths[int(self.shards[row])]}/{self.names[row]}"

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

    def digest(self, *, times: bool = True) -> str:
        """Return 16 hexadecimal digits of the names, sizes and labels of all images.

        Args:
            times: Include the sizes and modification times of the tar files, which a copy may not share.
        """
        digest = hashlib.sha256(self.names.packed.data)
        for numbers in (self.sizes, self.labels, *([self.states] if times else [])):
            digest.update(numbers.data)
        digest.update(repr(self.classes).encode())
        return digest.hexdigest()[:16]


def index_tars(paths: Sequence[Path], *, place: Path, label_key: str) -> TarIndex:
    """Index tar files, or read their stored index if their sizes and modification times are the same.

    The members of a sample have the same path up to the first dot of their file name, as in WebDataset. The
    label of a sample is its member `.cls`, or else the entry `label_key` of its member `.json`, or else the
    first folder of its path; the label -1 means none. If all labels are integers
    below the number of images, they are class indices;
    others are sorted. Images whose file names have a second dot are left out, with a warning.

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
        arrays = _arrays(paths, label_key) | {"states": states}
        store_arrays(file, arrays)
    packed = {name: Names(arrays.pop(name)) for name in ("names", "classes")}
    return TarIndex(tuple(paths), names=packed["names"], classes=tuple(packed["classes"]), **arrays)


def _arrays(paths: Sequence[Path], label_key: str) -> Arrays:
    columns = {name: array("q") for name in ("shards", "offsets", "sizes", "labels")}
    packed, positions, left_out = bytearray(), dict[str, int](), list[str]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        indexed = pool.map(lambda path: _samples(path, label_key, left_out), paths)
        for shard, samples in enumerate(tracked(indexed, "indexing", total=len(paths), unit="shards")):
            for name, offset, size, label in samples:
                packed += os.fsencode(name) + b"\0"
                position = positions.setdefault(label, len(positions)) if label else -1
                for column, number in zip(columns.values(), (shard, offset, size, position), strict=True):
                    column.append(number)
    if not packed:
        raise InputError(f"no images in {paths[0]} and {len(paths) - 1} more tar files")
    if left_out:
        warnings.warn(
            f"{len(left_out)} images are left out because their file names have a second dot, such as "
            f"{min(left_out)}; write the tar files without it",
            stacklevel=4,
        )
    integers = all(label.isdecimal() and len(label) <= _DIGITS for label in positions)
    largest = max(map(int, positions), default=-1) if integers else -1
    integers &= largest < len(columns["labels"])
    classes = list(map(str, range(largest + 1))) if integers else sorted(positions)
    final = {name: number for number, name in enumerate(classes)}
    order = np.array([*(final[str(int(label)) if integers else label] for label in positions), -1])
    arrays: Arrays = {name: np.frombuffer(column, dtype=np.int64) for name, column in columns.items()}
    names = {"names": np.frombuffer(packed, dtype=np.uint8), "classes": Names.of(classes).packed}
    return arrays | {"labels": order[arrays["labels"]]} | names


def _samples(path: Path, label_key: str, left_out: list[str]) -> list[_Sample]:
    """Return the first image of each sample of a tar file, and add images with a second dot to `left_out`."""
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
                    if member.isfile() and os.path.splitext(file)[1].lower() in EXTENSIONS:
                        left_out.append(f"{path}/{name}")
                    continue
                if not member.isfile() or member.issparse():
                    raise ValueError(f"{name} is a link or a sparse file; store the file itself")
                if is_image:
                    label = name.partition("/")[0] if "/" in name else ""
                    position = (member.offset_data, member.size)
                    images.setdefault(sample, _Sample(_checked(name), *position, _checked(label)))
                    continue
                content = tar.extractfile(member).read().decode()  # type: ignore[union-attr]
                if suffix == "cls":
                    labels[sample] = _label(content.strip())
                else:
                    entries = json.loads(content)
                    value = entries.get(label_key) if isinstance(entries, dict) else None
                    if value is not None:
                        labels.setdefault(sample, _label(str(value)))
            assert tar.fileobj is not None
            tar.fileobj.seek(tar.offset)
            block = tar.fileobj.read(tarfile.BLOCKSIZE)  # where tarfile stops without an error
            if len(block) < tarfile.BLOCKSIZE or block.strip(b"\0"):
                raise ValueError(f"damaged or incomplete at byte {tar.offset}")
    except (tarfile.TarError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as an uncompressed tar file ({error})") from error
    return [image._replace(label=labels.get(sample, image.label)) for sample, image in images.items()]


def _label(text: str) -> str:
    """Return the label that a member states, which is empty for -1."""
    if text.startswith("-") and text[1:].isdecimal() and text != "-1":
        raise ValueError(f"label {text} is below -1, which means no label")
    return "" if text == "-1" else _checked(text)


def _checked(text: str) -> str:
    """Return a name that can be packed."""
    if b"\0" in os.fsencode(text):
        raise ValueError(f"{text!r} contains a zero byte")
    return text
