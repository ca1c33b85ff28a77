"""A user's own images, in folders."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from ssl_vision.data.images import Images
from ssl_vision.data.module import ImageData, Split
from ssl_vision.data.views import Views
from ssl_vision.errors import InputError

_EXTENSIONS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_VIEWS = Views(size=96, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class ImageFolder(ImageData):
    """Images below a folder, labelled by the subfolder they lie in or not at all.

    Of root/train/cat/**/x.png the class is cat; root/train/x.png has no label. Where there is no root/train,
    all of root but root/test is used. Files are taken in the order of their names and decoded once to squares
    of `image_size`: shorter side resized, centre cropped, RGB.

    Args:
        root: Folder of the images.
        train: Subfolder to pretrain on; root itself where there is no folder "train".
        test: Subfolder of the test split, with the same class folders.
        image_size: Side of the stored images, pixels.
        skip_corrupt: Leave out files that cannot be decoded, with a warning, instead of stopping.
        views: How views are made.
        **options: Of `ImageData`.

    Raises:
        InputError: image_size is below 1.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        train: str = "train",
        test: str = "test",
        image_size: int = 96,
        skip_corrupt: bool = False,
        views: Views = _VIEWS,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, **options)
        if image_size < 1:
            raise InputError(f"image_size must be 1 or more, not {image_size}")
        self.train = train
        self.test = test
        self.image_size = image_size
        self.skip_corrupt = skip_corrupt

    def read(self, split: Split) -> Images:
        """Decodes a split; "pretrain" is train.

        Raises:
            InputError: The folder is absent or holds no image, a file cannot be decoded, or a class of test
                is not one of train.
        """
        if split == "pretrain":
            return self.split("train")
        folder = self._folder(split)
        test = self.root / self.test
        walk = os.walk(folder, followlinks=True)
        paths = [Path(place, name) for place, _, names in walk for name in names]
        paths = sorted(path for path in paths if path.suffix.lower() in _EXTENSIONS)
        if split == "train" and test != folder:
            paths = [path for path in paths if test not in path.parents]
        if not paths:
            raise InputError(f"no images in {folder}: looked for {' '.join(sorted(_EXTENSIONS))}")
        images, paths = self._decode(paths)
        names = [_class(path, folder) for path in paths]
        classes = self.classes if split == "test" else tuple(sorted({*names} - {""}))
        unknown = {*names} - {"", *classes}
        if unknown:
            raise InputError(f"{folder / min(unknown)} is a class that the train split does not have")
        positions = {name: position for position, name in enumerate(classes)} | {"": -1}
        return Images(images, torch.tensor([positions[name] for name in names]), classes)

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

    def _decode(self, paths: list[Path]) -> tuple[Tensor, list[Path]]:
        """(N, 3, S, S) uint8 of the files that could be decoded, and those files."""
        images = np.empty((len(paths), 3, self.image_size, self.image_size), dtype=np.uint8)

        def decode(row: int) -> bool:
            try:
                images[row] = _square(paths[row], self.image_size)
            except Exception as error:  # damaged bytes make Pillow raise nearly anything
                if self.skip_corrupt:
                    return False
                cause = " ".join(str(error).split())
                raise InputError(
                    f"{paths[row]} cannot be decoded ({cause}): remove it or set skip_corrupt"
                ) from error
            return True

        pool = ThreadPoolExecutor()
        try:
            decoded = pool.map(decode, range(len(paths)))
            done = list(tqdm(decoded, total=len(paths), desc="Decoding images", unit="img", disable=None))
        finally:
            pool.shutdown(cancel_futures=True)
        corrupt = [path for path, good in zip(paths, done, strict=True) if not good]
        if not corrupt:
            return torch.from_numpy(images), paths
        if len(corrupt) == len(paths):
            raise InputError(f"none of the {len(paths)} images can be decoded, such as {paths[0]}")
        first = ", ".join(map(str, corrupt[:3])) + (", ..." if len(corrupt) > 3 else "")
        warnings.warn(f"skipped {len(corrupt)} of {len(paths)} images, not decodable: {first}", stacklevel=2)
        return torch.from_numpy(images[done]), [path for path, good in zip(paths, done, strict=True) if good]


def _class(path: Path, folder: Path) -> str:
    """The subfolder of `folder` that `path` lies in, or nothing for a file right in it."""
    parts = path.relative_to(folder).parts
    return parts[0] if len(parts) > 1 else ""


def _square(path: Path, side: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(3, side, side): upright, shorter side resized (antialiased bilinear), centre cropped, RGB."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file).convert("RGB")
    image = ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)
