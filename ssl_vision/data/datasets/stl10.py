"""STL-10, read from the official binary files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.images import Images
from ssl_vision.data.loading.download import fetch, missing_data
from ssl_vision.data.module import ImageData, Split
from ssl_vision.errors import InputError

_VIEWS = Views(size=96, mean=(0.4467, 0.4398, 0.4066), std=(0.2603, 0.2566, 0.2713))
_SIDE = 96


class STL10(ImageData):
    """113,000 images of 96x96 pixels (Coates, Ng & Lee, 2011): 5,000 train, 8,000 test, 100,000 unlabeled.

    Pretraining uses train and unlabeled. Only sizes are checked, because MD5 checksums take longer than
    reading.

    Args:
        root: Directory that contains stl10_binary.
        views: Random views of the images.
        unlabeled: Pretrain on the unlabeled images, too; False uses only train.
        **options: Options of `ImageData`.

    Example:
        >>> data = STL10(root="data", unlabeled=False)
        >>> data.root.name, data.unlabeled
        ('data', False)
    """

    def __init__(
        self,
        *,
        root: str | Path = "data",
        views: Views = _VIEWS,
        unlabeled: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(root=root, views=views, **options)
        self.unlabeled = unlabeled

    @property
    def folder(self) -> Path:
        """Directory of the binary files."""
        return self.root / "stl10_binary"

    def prepare_data(self) -> None:
        """Download the archive (2.6 GB) if `download` is set and a file is missing."""
        names = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"]
        names += ["unlabeled_X.bin"] if self.unlabeled else []
        if self.download and not all((self.folder / name).is_file() for name in names):
            fetch("STL-10", datasets.STL10, self.root)

    def read(self, split: Split) -> Images:
        """Read a split; "pretrain" is train followed by unlabeled, whose labels are -1.

        The images of pretrain are read into memory, those of train and test are mapped from their files.
        """
        if split == "pretrain" and not self.unlabeled:
            return self.split("train")
        if split == "train" and self.unlabeled and "pretrain" in self._splits:
            pretrain = self.split("pretrain")
            return pretrain.select(pretrain.labelled)
        part = "test" if split == "test" else "train"
        names = [f"{part}_X.bin"] + (["unlabeled_X.bin"] if split == "pretrain" else [])
        stored = [self._images(name) for name in names]
        labels = torch.full((sum(map(len, stored)),), -1)
        labels[: len(stored[0])] = self._labels(part, len(stored[0]))
        classes = tuple(self._file("class_names.txt").read_text().split())
        return Images(torch.cat(stored) if len(stored) > 1 else stored[0], labels, classes)

    def _images(self, name: str) -> Tensor:
        """Map the images of a file, which are stored column by column, into memory."""
        path = self._file(name)
        try:
            columns = np.memmap(path, np.uint8, mode="c").reshape(-1, 3, _SIDE, _SIDE)
        except ValueError as error:  # of its size
            raise InputError(f"{path} is damaged; download it with --data.download true") from error
        return torch.from_numpy(columns).transpose(2, 3)

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise missing_data("STL-10", path, folder=self.folder.name)
        return path

    def _labels(self, part: str, count: int) -> Tensor:
        path = self._file(f"{part}_y.bin")
        labels = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).long() - 1
        if len(labels) != count:
            raise InputError(f"{path} contains {len(labels)} labels for {count} images")
        if labels.min() < 0 or labels.max() > 9:
            raise InputError(f"{path} contains labels outside 1..10")
        return labels
