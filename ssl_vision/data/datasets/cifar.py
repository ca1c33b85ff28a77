"""CIFAR-10 and CIFAR-100, read by torchvision."""

import pickle
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchvision import datasets

from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.images import Images
from ssl_vision.data.loading.download import fetch, missing_data
from ssl_vision.data.module import ImageData, Split

_VIEWS10 = Views()
_VIEWS100 = Views(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


class _CIFAR(ImageData):
    """Data set of torchvision's reader of the CIFAR files."""

    _title: ClassVar[str]
    _reader: ClassVar[Any]

    def prepare_data(self) -> None:
        """Download the archive (170 MB) if `download` is set and files are missing or damaged."""
        if self.download:
            try:
                self._reader(self.root)
            except RuntimeError:
                fetch(self._title, self._reader, self.root)

    @property
    def folder(self) -> Path:
        """Directory of the official files."""
        return self.root / str(self._reader.base_folder)

    def read(self, split: Split) -> Images:
        """Read a split; "pretrain" is the same as "train"."""
        if split == "pretrain":
            return self.split("train")
        try:
            data = self._reader(self.root, train=split == "train")
        except RuntimeError as error:
            raise missing_data(self._title, self.folder, folder=self._reader.base_folder) from error
        images = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
        return Images(images, torch.tensor(data.targets), tuple(data.classes))


class CIFAR10(_CIFAR):
    """60,000 images of 32x32 pixels in 10 classes (Krizhevsky, 2009): 50,000 train, 10,000 test.

    Args:
        root: Directory that contains cifar-10-batches-py.
        views: Random views of the images.
        **options: Options of `ImageData`.

    Example:
        >>> data = CIFAR10(root="data", batch_size=512)
        >>> data.root.name, data.batch_size
        ('data', 512)
    """

    _title = "CIFAR-10"
    _reader = datasets.CIFAR10

    def __init__(self, *, root: str | Path = "data", views: Views = _VIEWS10, **options: Any) -> None:
        super().__init__(root=root, views=views, **options)


class CIFAR100(_CIFAR):
    """60,000 images of 32x32 pixels in 100 fine classes (Krizhevsky, 2009): 50,000 train, 10,000 test.

    Args:
        root: Directory that contains cifar-100-python.
        views: Random views of the images.
        **options: Options of `ImageData`.

    Example:
        >>> data = CIFAR100(root="data", batch_size=512)
        >>> data.root.name, data.batch_size
        ('data', 512)
    """

    _title = "CIFAR-100"
    _reader = datasets.CIFAR100

    def __init__(self, *, root: str | Path = "data", views: Views = _VIEWS100, **options: Any) -> None:
        super().__init__(root=root, views=views, **options)

    @cached_property
    def superclasses(self) -> Tensor:
        """The superclass (0 to 19) of each class, (100,) int64, from the official files.

        Raises:
            InputError: the files are missing or damaged.
        """
        test = self.split("test")  # also checks the file that is read here
        path = self.folder / "test"
        coarse = pickle.loads(path.read_bytes(), encoding="latin1")["coarse_labels"]
        return torch.zeros(len(test.classes), dtype=torch.int64).scatter_(
            0, test.labels, torch.tensor(coarse)
        )
