"""Data sets with a class of their own: CIFAR-10, CIFAR-100, STL-10 and scikit-learn's digits."""

import pickle
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.images import Images
from ssl_vision.data.loading.download import fetch, missing_data
from ssl_vision.data.module import ImageData, Split
from ssl_vision.errors import InputError

_CIFAR10_VIEWS = Views()
_CIFAR100_VIEWS = Views(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


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

    def __init__(self, *, root: str | Path = "data", views: Views = _CIFAR10_VIEWS, **options: Any) -> None:
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

    def __init__(self, *, root: str | Path = "data", views: Views = _CIFAR100_VIEWS, **options: Any) -> None:
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


_STL10_VIEWS = Views(size=96, mean=(0.4467, 0.4398, 0.4066), std=(0.2603, 0.2566, 0.2713))
_STL10_SIDE = 96


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
        views: Views = _STL10_VIEWS,
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
            columns = np.memmap(path, np.uint8, mode="c").reshape(-1, 3, _STL10_SIDE, _STL10_SIDE)
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


_DIGITS_TRAIN = 1437
_DIGITS_VIEWS = Views(
    size=16,
    scale=(0.5, 1.0),
    degrees=15.0,
    hflip=0.0,
    saturation=0.0,
    hue=0.0,
    grayscale=0.0,
    blur=0.5,
    sigma=(0.1, 1.5),
    mean=(0.3054, 0.3054, 0.3054),
    std=(0.3755, 0.3755, 0.3755),
)


class Digits(ImageData):
    """1,797 scans of 8x8 pixels in 10 classes (Alpaydin & Kaynak, UCI optdigits); the first 1,437 are train.

    Images are sorted by writer, so the test and held-out images are by other writers. The data set is suited
    to a first run but too easy to rank objectives. Its smallest train class has 141 images, so kNN uses 20
    neighbours by default.

    Args:
        views: Random views of the images.
        **options: Options of `ImageData`.

    Example:
        >>> digits = Digits().split("train")
        >>> len(digits), digits.shape, digits.classes[:3]
        (1437, (3, 8, 8), ('0', '1', '2'))
    """

    knn_k = 20

    def __init__(self, *, views: Views = _DIGITS_VIEWS, **options: Any) -> None:
        super().__init__(root="", views=views, **options)

    def read(self, split: Split) -> Images:
        """Read a split; scan values v in 0..16 become round(255/16 v) in three equal channels."""
        if split == "pretrain":
            return self.split("train")
        from sklearn.datasets import load_digits

        digits = load_digits()
        part = slice(_DIGITS_TRAIN) if split == "train" else slice(_DIGITS_TRAIN, None)
        scans = torch.from_numpy(digits.images[part]).mul(255 / 16).round().to(torch.uint8)
        labels = torch.from_numpy(digits.target[part]).long()
        return Images(scans.unsqueeze(1).repeat(1, 3, 1, 1), labels, tuple(map(str, digits.target_names)))

    def heldout(self, count: int) -> Tensor:
        """Return a mask (count,) of the last ``val_share`` of the rows."""
        return torch.arange(count) >= count - round(self.val_share * count)
