"""A user's own images, in folders."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from ssl_vision.data.cache import Cache, Cached, cache_place
from ssl_vision.data.decoding import Square, corrupt, squares
from ssl_vision.data.images import Images
from ssl_vision.data.module import ImageData, Split
from ssl_vision.data.views import LARGEST_SIDE, Views
from ssl_vision.errors import InputError

EXTENSIONS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Files with these endings, whatever their case, are images."""
_IN_MEMORY = 2**30
_VIEWS = Views(size=96, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class ImageFolder(ImageData):
    """Images below a folder, labelled by the subfolder they lie in or not at all.

    Of root/train/cat/**/x.png the class is cat; root/train/x.png has no label. Where there is no root/train,
    all of root but root/test is used. Files are taken in the order of their names and decoded once to squares
    of `image_size`: upright as EXIF says, shorter side resized, centre cropped, RGB; of an animation the
    first frame, of 16 bits a channel the upper 8, without transparency. Squares above 1 GiB in all go to a
    file, from which batches are read; it is made again when an image is changed, added or removed.

    Links are followed, but not into a folder that they lie in.

    Args:
        root: Folder of the images.
        train: Subfolder to pretrain on; root itself where there is no folder "train".
        test: Subfolder of the test split, with the same class folders.
        image_size: Side of the stored images, pixels.
        strict: Stop at a file that cannot be decoded, instead of leaving it out with a warning.
        cache: Whether squares are kept in a file: "auto" where they exceed 1 GiB, "always" or "never".
        cache_dir: Folder of that file; None is root/.ssl_vision_cache, or the user's cache folder where root
            cannot be written to.
        views: How views are made.
        **options: Of `ImageData`.

    Attributes:
        skipped: Paths within root of the files, in the splits read so far, that cannot be decoded.

    Raises:
        InputError: image_size is not in 1..4096, or cache is none of the three.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        train: str = "train",
        test: str = "test",
        image_size: int = 96,
        strict: bool = False,
        cache: Literal["auto", "always", "never"] = "auto",
        cache_dir: str | Path | None = None,
        views: Views = _VIEWS,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, **options)
        if image_size < 1:
            raise InputError(f"image_size must be 1 or more, not {image_size}")
        if image_size > LARGEST_SIDE:
            raise InputError(f"image_size must be {LARGEST_SIDE} or less, not {image_size}")
        if cache not in ("auto", "always", "never"):
            raise InputError(f"cache must be auto, always or never, not {cache}")
        self.train = train
        self.test = test
        self.image_size = image_size
        self.strict = strict
        self.cache = cache
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))
        self.skipped: tuple[str, ...] = ()

    def prepare_data(self) -> None:
        """Makes the cache where one is wanted, so that one process of a machine does it for all.

        Where other processes wait for this one, what is wrong with the images is said by `setup`, in all.
        """
        try:
            for split in ("train", "test") if self.val == "test" else ("train",):
                folder = self._folder(split)
                names = self._names(split, folder)
                if self._large(names):
                    self._cached(folder, names)
        except InputError:
            if self.trainer is None or self.trainer.world_size == 1:
                raise

    def read(self, split: Split) -> Images:
        """Decodes a split; "pretrain" is train.

        Raises:
            InputError: The folder is absent or holds no image, a file cannot be decoded, or a class of test
                is not one of train.
        """
        if split == "pretrain":
            return self.split("train")
        folder = self._folder(split)
        names = self._names(split, folder)
        file = None
        if self._large(names):
            file, skipped = self._cached(folder, names)
            images = file.mapped()
        else:
            images, skipped = self._decoded(folder, names)
        if skipped:
            self._warn(folder, skipped, len(names))
            self.skipped += tuple(os.path.relpath(folder / name, self.root) for name in skipped)
            unusable = set(skipped)
            names = [name for name in names if name not in unusable]
        labels = [_class(name) for name in names]
        classes = self.classes if split == "test" else tuple(sorted({*labels} - {""}))
        unknown = {*labels} - {"", *classes}
        if unknown:
            raise InputError(f"{folder / min(unknown)} is a class that the train split does not have")
        positions = {name: position for position, name in enumerate(classes)} | {"": -1}
        return Images(images, torch.tensor([positions[name] for name in labels]), classes, file=file)

    def _folder(self, split: Split) -> Path:
        if not self.root.is_dir():
            raise InputError(f"no folder {self.root}")
        name = self.test if split == "test" else self.train
        folder = self.root / name
        if folder.is_dir():
            return folder
        if split == "test" or name != "train":
            raise InputError(f"no folder {folder} for the {split} split")
        return self.root

    def _names(self, split: Split, folder: Path) -> list[str]:
        """Paths of a split's image files within its folder."""
        return image_names(folder, but=self.root / self.test if split == "train" else None)

    def _large(self, names: list[str]) -> bool:
        """Whether the squares go to a file."""
        size = len(names) * 3 * self.image_size**2
        return self.cache == "always" or (self.cache == "auto" and size > _IN_MEMORY)

    def _decoded(self, folder: Path, names: list[str]) -> tuple[Tensor, list[str]]:
        """The images of the files that can be decoded, and the names of the others."""
        images = np.empty((len(names), 3, self.image_size, self.image_size), dtype=np.uint8)
        left = dict.fromkeys(names)
        for row, (name, pixels) in enumerate(self._squares(folder, names)):
            images[row] = pixels
            del left[name]
        return torch.from_numpy(images[: len(names) - len(left)]), list(left)

    def _cached(self, folder: Path, names: list[str]) -> Cached:
        """The same in a file, which is made where it is not there."""
        place = cache_place(self.root, self.cache_dir)
        label = "all" if folder == self.root else quote(os.path.relpath(folder, self.root), safe="")
        cache = Cache(place, label, folder=folder, names=names, side=self.image_size)
        cached = cache.read()
        if cached is None:
            cache.write(lambda: self._squares(folder, names))
            cached = cache.read()
        if cached is None:
            raise InputError(f"{place} was changed while it was written to: start again")
        if cached.skipped and self.strict:
            raise corrupt(folder / cached.skipped[0], "as found when it was read")
        return cached

    def _squares(self, folder: Path, names: list[str]) -> Iterator[tuple[str, Square]]:
        return squares(folder, names, side=self.image_size, strict=self.strict)

    def _warn(self, folder: Path, skipped: list[str], count: int) -> None:
        first = ", ".join(str(folder / name) for name in skipped[:3]) + (", ..." if len(skipped) > 3 else "")
        message = f"skipped {len(skipped)} of {count} images, not decodable: {first}"
        warnings.warn(message, stacklevel=3)


def image_names(folder: Path, *, but: Path | None = None) -> list[str]:
    """Paths of the image files below a folder, within it, in the order of their names.

    Args:
        folder: Where to look, at any depth.
        but: A folder below it that is left out.

    Raises:
        InputError: There is no such folder, or no image in it, or a folder that cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    names = []
    above = {str(folder): {_identity(folder)}}
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_unreadable):
        around = above.pop(place)
        inside = {name: _identity(path) for name in folders if (path := Path(place, name)) != but}
        folders[:] = [name for name, identity in inside.items() if identity not in around]
        above |= {os.path.join(place, name): around | {inside[name]} for name in folders}
        below = os.path.relpath(place, folder)
        names += [
            file if below == "." else os.path.join(below, file)
            for file in files
            if os.path.splitext(file)[1].lower() in EXTENSIONS
        ]
    if not names:
        raise InputError(f"no images in {folder}: looked for {' '.join(sorted(EXTENSIONS))}")
    return sorted(names, key=lambda name: name.split(os.sep))


def _identity(folder: Path) -> tuple[int, int]:
    """What tells a folder from others, by whatever path it is reached."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def _unreadable(error: OSError) -> NoReturn:
    raise InputError(f"{error.filename} cannot be read ({error.strerror})") from error


def _class(name: str) -> str:
    """The subfolder that a file lies in, or nothing for a file right in the folder."""
    first, _, rest = name.partition(os.sep)
    return first if rest else ""
