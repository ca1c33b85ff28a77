"""Lists of the image files below a folder."""

import hashlib
import mimetypes
import os
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from stat import S_ISDIR
from typing import Any

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
_THREADS = 8

Integers = NDArray[np.int64]


def packed(names: list[str]) -> NDArray[np.bytes_]:
    """Encode names in one array, which worker processes share; strings would be copied when they are used."""
    return np.array([os.fsencode(name) for name in names], dtype=np.bytes_)


def digest_of(names: NDArray[np.bytes_], *others: NDArray[Any], about: str = "") -> str:
    """Return 16 hexadecimal digits of names, further arrays and a text."""
    digest = hashlib.sha256(b"".join(name + b"\0" for name in names.tolist()))
    for array in others:
        digest.update(array.data)
    digest.update(about.encode())
    return digest.hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class Listing:
    """Snapshot of the image files below a folder, sorted by the components of their paths.

    Args:
        folder: The folder.
        paths: Encoded paths of the files relative to it, (N,).
        sizes: Size of each file in bytes; -1 if the file does not exist.
        modified: Modification time of each file in nanoseconds since 1970.
        labels: Class index of each file, (N,); -1 for files without a class.
        classes: Sorted names of the folders directly below the folder.
    """

    folder: Path
    paths: NDArray[np.bytes_]
    sizes: Integers
    modified: Integers
    labels: Integers
    classes: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Paths of the files relative to the folder."""
        return list(map(os.fsdecode, self.paths.tolist()))

    def path(self, row: int) -> str:
        """Return the path of a file."""
        return os.path.join(self.folder, os.fsdecode(self.paths[row]))

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
        return digest_of(self.paths, self.sizes, *([self.modified] if times else []))


def list_images(folder: Path, *, but: Collection[Path] = ()) -> Listing:
    """List the image files at any depth below a folder, but not in hidden folders.

    Folders are read in several threads.

    Args:
        folder: The folder.
        but: Excluded folders.

    Raises:
        InputError: the folder does not exist, contains no images, or cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    files, unread = _walk(folder, but)
    if not files:
        excluded = sorted(path.name for path in but if path.is_dir() and folder in path.parents)
        searched = f"{folder} outside {' and '.join(excluded)}" if excluded else str(folder)
        advice = "; set the folder of training images with --data.train FOLDER" if excluded else ""
        raise InputError(f"no images in {searched}: looked for {' '.join(sorted(EXTENSIONS))}{advice}")
    if unread:
        kinds = ", ".join(f"{count:,} {extension}" for extension, count in sorted(unread.items()))
        rank_zero_warn(f"images below {folder} are left out, as their type is not read: {kinds}")
    names = [name for name, _, _ in files]
    labels = list(map(class_of, names))
    classes = tuple(sorted({*labels} - {""}))
    positions = {label: position for position, label in enumerate(classes)} | {"": -1}
    return Listing(
        folder,
        packed(names),
        sizes=np.array([size for _, size, _ in files]),
        modified=np.array([modified for _, _, modified in files]),
        labels=np.array([positions[label] for label in labels]),
        classes=classes,
    )


def count_images(folder: Path, *, but: Collection[Path] = ()) -> int:
    """Count the image files that `list_images` lists; 0 if there are none."""
    files, _ = _walk(folder, but)
    return len(files)


def class_of(name: str) -> str:
    """Return the first folder of a relative path; empty for a file directly in the folder."""
    first, _, rest = name.partition(os.sep)
    return first if rest else ""


def _walk(folder: Path, but: Collection[Path]) -> tuple[list[tuple[str, int, int]], Counter[str]]:
    """Return the image files below a folder in order, and the numbers of those of other types by extension.

    The files are tuples of path, size and modification time, which the garbage collector ignores. Links are
    followed, except into folders that contain them. A link without a target has the size -1.
    """
    excluded = {_identity(os.stat(path)) for path in but if path.is_dir()}
    files: list[tuple[str, int, int]] = []
    unread: list[str] = []

    def read(part: tuple[str, frozenset[tuple[int, int]]]) -> list[tuple[str, frozenset[tuple[int, int]]]]:
        """Add the files of a folder, and return its subfolders, with the identities of those above them."""
        prefix, above = part
        path = os.path.join(folder, prefix)
        try:
            identity = _identity(os.stat(path))
            if identity in above or identity in excluded:
                return []
            with os.scandir(path) as scanned:
                entries = list(scanned)
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read ({error.strerror})") from error
        folders = []
        for entry in entries:
            name = prefix + entry.name
            extension = os.path.splitext(name)[1].lower()
            status = _status(entry)
            if status is not None and S_ISDIR(status.st_mode):
                if not entry.name.startswith(".") and entry.name != "__MACOSX":
                    folders.append((name + os.sep, above | {identity}))
            elif extension in EXTENSIONS:
                state = (status.st_size, status.st_mtime_ns) if status is not None else (-1, 0)
                files.append((name, *state))
            elif is_image_name(name):
                unread.append(extension)
        return folders

    level: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    with ThreadPoolExecutor(_THREADS) as pool:
        while level:
            level = list(chain.from_iterable(pool.map(read, level)))
    files.sort(key=lambda file: file[0].replace(os.sep, "\0"))
    return files, Counter(unread)


def _status(entry: "os.DirEntry[str]") -> os.stat_result | None:
    """Return the status of a file or a folder; None for a link to itself or without a target."""
    try:
        return entry.stat()
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Return what tells a folder from all others, by whatever path or link it is reached."""
    return status.st_dev, status.st_ino


def is_image_name(name: str) -> bool:
    """Return True if the extension of a file is that of an image of any type."""
    extension = os.path.splitext(name)[1].lower()
    return extension in EXTENSIONS or (mimetypes.guess_type(f"x{extension}")[0] or "").startswith("image/")
