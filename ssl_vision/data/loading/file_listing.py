"""Lists of the image files below a folder, which need a few dozen bytes for each file."""

import hashlib
import mimetypes
import os
import secrets
import time
from array import array
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.data.loading.decoding import read_content
from ssl_vision.errors import InputError

EXTENSIONS = {
    ".apng", ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png",
    ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
}  # fmt: skip
"""Extensions of image files, matched case-insensitively."""

_DIGITS = 16
_FOLDER = -2
"""Size of a folder, which distinguishes it from files."""
_VERSION = 4
_THREADS = 8
_STORED_ARRAYS = ("names", "sizes", "modified", "labels", "classes", "folders", "folders_modified")
_STORED = 2**16
"""Number of files from which a listing is stored."""
_RECENT = 2 * 10**9
"""Age in nanoseconds below which a folder may change again without changing its modification time."""

Integers = NDArray[np.int64]

Arrays = dict[str, NDArray[Any]]
"""One-dimensional arrays by name."""


class Names(Sequence[str]):
    """Strings packed into one array of bytes, each followed by a zero byte.

    Args:
        packed: uint8 array of the encoded strings.
    """

    def __init__(self, packed: NDArray[np.uint8]) -> None:
        self.packed = packed
        self._ends = np.flatnonzero(packed == 0)

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        """Pack strings."""
        packed = bytearray().join(os.fsencode(name) + b"\0" for name in names)
        return cls(np.frombuffer(packed, dtype=np.uint8))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        index = range(len(self))[index]
        start = self._ends[index - 1] + 1 if index else 0
        return os.fsdecode(self.packed[start : self._ends[index]].tobytes())


class FilesOfFolder(NamedTuple):
    """Files of one folder that follow each other in a listing.

    Attributes:
        prefix: Path of the folder relative to the listed one, with a trailing separator unless it is empty.
        names: Sorted names of the files.
        sizes: Their sizes in bytes; -1 for a link without a target.
        modified: Their modification times in nanoseconds since 1970.
    """

    prefix: str
    names: list[str]
    sizes: list[int]
    modified: list[int]


@dataclass(frozen=True)
class Listing:
    """Snapshot of the image files below a folder, sorted by the components of their paths.

    Args:
        folder: The folder.
        names: Paths of the files relative to it.
        sizes: Size of each file in bytes; -1 if the file does not exist.
        modified: Modification time of each file in nanoseconds since 1970.
        labels: Class index of each file, (N,) int32; -1 for files without a class.
        classes: Sorted names of the folders directly below the folder.
        stored: True if sizes and modification times are from an earlier listing.
    """

    folder: Path
    names: Names
    sizes: Integers
    modified: Integers
    labels: NDArray[np.int32]
    classes: tuple[str, ...]
    stored: bool = False

    @classmethod
    def of(cls, folder: Path, files: Iterable[FilesOfFolder]) -> "Listing":
        """Pack sorted files."""
        packed, sizes, modified, labels = bytearray(), array("q"), array("q"), array("i")
        classes: list[str] = []
        for prefix, names, file_sizes, times in files:
            start, separator, _ = prefix.partition(os.sep)
            if separator and (not classes or classes[-1] != start):
                classes.append(start)
            label = len(classes) - 1 if separator else -1
            packed += b"".join(os.fsencode(f"{prefix}{name}\0") for name in names)
            sizes.extend(file_sizes)
            modified.extend(times)
            labels.extend([label] * len(names))
        return cls(
            folder,
            Names(np.frombuffer(packed, dtype=np.uint8)),
            np.frombuffer(sizes, dtype=np.int64),
            np.frombuffer(modified, dtype=np.int64),
            np.frombuffer(labels, dtype=np.int32),
            tuple(classes),
        )

    def path(self, row: int) -> str:
        """Return the path of a file."""
        return os.path.join(self.folder, self.names[row])

    def content(self, row: int) -> bytes:
        """Read a file.

        Raises:
            OSError: it cannot be read.
        """
        return read_content(Path(self.path(row)))

    def digest(self, *, times: bool = True) -> str:
        """Return 16 hexadecimal digits of all names, sizes and modification times, without reading files.

        Args:
            times: False leaves out the modification times, which a copy of the folder may not share.
        """
        digest = hashlib.sha256(self.names.packed.data)
        for numbers in (self.sizes, *([self.modified] if times else [])):
            digest.update(numbers.data)
        return digest.hexdigest()[:_DIGITS]


def list_images(folder: Path, *, but: Collection[Path] = (), place: Path | None = None) -> Listing:
    """List the image files at any depth below a folder, but not in hidden folders, which are reported.

    Folders are read in several threads. A listing of 65,536 files or more is stored and used again as long as
    the modification times of all folders below `folder` are the same. Files that are added, removed or
    renamed are therefore noticed, but not those that are overwritten.

    Args:
        folder: The folder.
        but: Excluded folders.
        place: Directory of stored listings. None always reads the folders.

    Raises:
        InputError: the folder does not exist, contains no images, or cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    file = None if place is None else listing_file(place, folder, but)
    if file is not None and (listing := read_listing(file, folder)) is not None:
        return listing
    walk = _Walk(folder, but)
    listing = Listing.of(folder, walk.files())
    if not len(listing.names):
        excluded = sorted(path.name for path in but if path.is_dir() and folder in path.parents)
        searched = f"{folder} outside {' and '.join(excluded)}" if excluded else str(folder)
        advice = "; set the folder of training images with --data.train FOLDER" if excluded else ""
        raise InputError(f"no images in {searched}: looked for {' '.join(sorted(EXTENSIONS))}{advice}")
    if file is not None and len(listing.names) >= _STORED:
        write_listing(file, listing, walk.folders)
    if hidden := sum(map(count_images, walk.hidden)):
        names = ", ".join(sorted({path.name for path in walk.hidden}))
        rank_zero_warn(f"{hidden:,} images below {folder} are left out, in hidden folders: {names}")
    if walk.unread:
        kinds = ", ".join(f"{count:,} {extension}" for extension, count in sorted(walk.unread.items()))
        rank_zero_warn(f"images below {folder} are left out, as their type is not read: {kinds}")
    return listing


def count_images(folder: Path, *, but: Collection[Path] = ()) -> int:
    """Count the image files that `list_images` lists; 0 if there are none."""
    return sum(len(files.names) for files in _Walk(folder, but).files())


class _Walk:
    """Reads the folders below a folder in threads.

    Args:
        folder: The folder.
        but: Excluded folders.

    Attributes:
        folders: Modification time of each folder that was read, by its path relative to the folder; -1 if the
            folder has just been modified.
        hidden: Hidden folders, which are not read.
        unread: Number of image files of other types, by extension.
    """

    def __init__(self, folder: Path, but: Collection[Path]) -> None:
        self.folders: dict[str, int] = {}
        self.hidden: list[Path] = []
        self.unread = Counter[str]()
        self._root = str(folder)
        self._excluded = {_identity(os.stat(path)) for path in but if path.is_dir()}

    def files(self) -> Iterator[FilesOfFolder]:
        """Yield the image files in order."""
        self._pool = ThreadPoolExecutor(_THREADS)
        try:
            parts: deque[Any] = deque([self._pool.submit(self._read, "", frozenset())])
            while parts:  # each part is released once it is used
                part = parts.popleft()
                if isinstance(part, Future):
                    parts.extendleft(reversed(part.result()))
                else:
                    yield part
        finally:  # without waiting, as in `prefetched`
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, prefix: str, above: frozenset[tuple[int, int]]) -> list[Any]:
        """Return the files of a folder, and futures of its subfolders; nothing if it contains itself."""
        path = os.path.join(self._root, prefix)
        try:
            status = os.stat(path)
            identity = _identity(status)
            if identity in above or identity in self._excluded:
                return []
            recent = time.time_ns() - status.st_mtime_ns < _RECENT
            self.folders[prefix] = -1 if recent else status.st_mtime_ns
            with os.scandir(path) as entries:
                states = sorted(filter(None, map(self._state, entries)))
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read ({error.strerror})") from error
        parts: list[Any] = []
        for is_folder, group in groupby(states, key=lambda state: state[1] == _FOLDER):
            names, sizes, modified = map(list, zip(*group, strict=True))
            if not is_folder:
                parts.append(FilesOfFolder(prefix, names, sizes, modified))
                continue
            for name in names:
                if name.startswith(".") or name == "__MACOSX":
                    self.hidden.append(Path(path, name))
                else:
                    parts.append(self._pool.submit(self._read, prefix + name + os.sep, above | {identity}))
        return parts

    def _state(self, entry: "os.DirEntry[str]") -> tuple[str, int, int] | None:
        """Return name, size and modification time of an image file or a folder, whose size is `_FOLDER`."""
        extension = os.path.splitext(entry.name)[1].lower()
        try:
            if entry.is_dir():
                return entry.name, _FOLDER, 0
            if extension not in EXTENSIONS:
                self.unread.update([extension] if is_image_name(entry.name) else [])
                return None
            status = entry.stat()
        except OSError:  # a link to itself or without a target
            return (entry.name, -1, 0) if extension in EXTENSIONS else None
        return entry.name, status.st_size, status.st_mtime_ns


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Return what tells a folder from all others, by whatever path or link it is reached."""
    return status.st_dev, status.st_ino


def is_image_name(name: str) -> bool:
    """Return True if the extension of a file is that of an image of any type."""
    extension = os.path.splitext(name)[1].lower()
    return extension in EXTENSIONS or (mimetypes.guess_type(f"x{extension}")[0] or "").startswith("image/")


def listing_file(place: Path, folder: Path, but: Collection[Path]) -> Path:
    """Return the path of a stored listing."""
    key = [os.path.relpath(folder, place), *(os.path.relpath(path, folder) for path in sorted(but))]
    return place / f"{hashlib.sha256(repr((_VERSION, key)).encode()).hexdigest()[:_DIGITS]}.listing"


def read_listing(file: Path, folder: Path) -> Listing | None:
    """Read a stored listing of a folder; None if there is none, or a folder has changed."""
    arrays = load_arrays(file, _STORED_ARRAYS)
    if arrays is None:
        return None
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            times = list(pool.map(lambda name: _mtime(folder, name), Names(arrays.pop("folders"))))
    except OSError:
        return None
    if times != arrays.pop("folders_modified").tolist():
        return None
    names, classes = Names(arrays.pop("names")), tuple(Names(arrays.pop("classes")))
    return Listing(folder, names, classes=classes, stored=True, **arrays)


def write_listing(file: Path, listing: Listing, folders: dict[str, int]) -> None:
    """Write a listing if the directory is writable.

    Args:
        file: Path of the stored listing.
        listing: The listing.
        folders: Modification time of each listed folder, by its relative path.
    """
    with suppress(OSError):
        before = _mtime(listing.folder, "")
        file.parent.mkdir(parents=True, exist_ok=True)
        if folders[""] == before:  # the new directory may have changed it
            folders[""] = _mtime(listing.folder, "")
    arrays: Arrays = {
        "names": listing.names.packed,
        "sizes": listing.sizes,
        "modified": listing.modified,
        "labels": listing.labels,
        "classes": Names.of(listing.classes).packed,
        "folders": Names.of(folders).packed,
        "folders_modified": np.array(list(folders.values())),
    }
    store_arrays(file, arrays)


def _mtime(folder: Path, name: str) -> int:
    return os.stat(os.path.join(folder, name)).st_mtime_ns


def load_arrays(file: Path, names: Collection[str]) -> Arrays | None:
    """Return the arrays of a file; None if there is no such file, or it is damaged."""
    try:
        with np.load(file) as stored:
            return {name: stored[name] for name in names} if stored.zip.testzip() is None else None
    except Exception:  # NumPy may raise nearly anything for damaged files
        return None


def store_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file, which is renamed when it is complete, if its directory is writable."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            np.savez(out, allow_pickle=False, **arrays)
        os.replace(partial, file)
    with suppress(OSError):
        partial.unlink(missing_ok=True)
