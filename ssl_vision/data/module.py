"""Base class of the data modules."""

import dataclasses
import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from ssl_vision.data.augment.random_views import EpochViews, Views
from ssl_vision.data.augment.view_parameters import LARGEST_SIDE
from ssl_vision.data.images import Batch, Images
from ssl_vision.data.loading.fingerprint import digest_of_splits
from ssl_vision.data.loading.loader import Batches, DeviceCopies
from ssl_vision.data.random import Stream, fold
from ssl_vision.errors import InputError, check, check_choice
from ssl_vision.lightning_private import batches_of_epoch

Split = Literal["pretrain", "train", "val", "test"]

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Dtype of the views under mixed precision, to which autocast would convert them anyway."""

LARGEST_BATCH = 2**20
"""Maximum batch size per process."""

QUERIES = 0
"""Index of the validation loader of the queries."""

BANK = 1
"""Index of the validation loader of the labelled bank."""


def image_data(trainer: pl.Trainer) -> "ImageData | None":
    """Return the data module of a trainer, or None if it has none of this package."""
    data = getattr(trainer, "datamodule", None)  # Lightning sets it only if it is given one
    return data if isinstance(data, ImageData) else None


class ImageData(pl.LightningDataModule):
    """Base class of the data modules. Subclasses implement `read`, and `prepare_data` if they can download.

    Training uses the split "pretrain", in which no validation query has a label. Validation uses two loaders
    of labelled images: the bank, whose labels are used for prediction, and the queries, whose labels are
    predicted.

    Args:
        root: Directory of the data sets; ~ is the home directory.
        views: Random views of the images.
        progressive_resizing: Smaller views in the first epochs of training, which take less time: {10: 16,
            20: 24} makes views of 16 pixels for 10 epochs, of 24 pixels until epoch 20 and of `views.size`
            from then on, as FFCV-SSL does (Bordes et al. 2023). Validation and evaluation use `views.size`.
        batch_size: Batch size per process for training.
        eval_batch_size: Batch size per process for validation.
        val: Validation queries. "train": a share of the labelled train images is held out, and the others are
            the bank; pretraining uses all of them, but not the labels of the queries. "leave_one_out": every
            labelled train image is a query, whose bank is all others; pretraining uses no labels. "val" or
            "test": that split provides the queries, and the labelled train images are the bank. "auto": "val"
            if the data set has a validation split; otherwise "leave_one_out" for fewer than `few_labels`
            labels, unless training reads labels; otherwise "train".
        val_share: Held-out share of the labelled train images for "train", in (0, 0.5].
        test_share: Share of the labelled train images that become the test split, in (0, 0.5], for a data set
            without one. They are drawn with a fixed seed, so they are the same in all runs, and they are in
            no other split. Default: none are drawn.
        download: Download the data if it is missing.
        seed: Seed of the batch order and the views. Default: torch's initial seed.
        changed: What happens if a run continues on other images than before: "refuse" raises an error, and
            "allow" warns.
        resident: Maximum share of a CUDA device's free memory for images, in [0, 1]. Images that do not fit
            stay on the host, which does not change the batches.

    Attributes:
        knn_k: Default number of neighbours for kNN; smaller for data sets with small classes.
        few_labels: Number of labelled train images below which `val="auto"` leaves one out; 0: never. For
            data sets of image files, it is 2,000: a tenth of fewer labels is fewer than 200 queries, whose
            accuracy of 50 % has a 95 % interval of more than ± 6.9 points.
        skipped: Names of undecodable images in the splits read so far.

    Raises:
        InputError: a value is out of range.

    Example:
        >>> import torch
        >>> class Noise(ImageData):
        ...     def read(self, split):
        ...         images = torch.randint(256, (100, 3, 8, 8), dtype=torch.uint8)
        ...         return Images(images, torch.arange(100) % 2, ("even", "odd"))
        >>> len(Noise(root="", views=Views(size=8)).split("train"))
        100
    """

    knn_k: ClassVar[int] = 200
    few_labels: ClassVar[int] = 0
    skipped: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        root: str | Path,
        views: Views,
        progressive_resizing: dict[int, int] | None = None,
        batch_size: int = 256,
        eval_batch_size: int = 512,
        val: Literal["auto", "train", "leave_one_out", "val", "test"] = "auto",
        val_share: float = 0.1,
        test_share: float | None = None,
        download: bool = False,
        seed: int | None = None,
        changed: Literal["refuse", "allow"] = "refuse",
        resident: float = 0.5,
    ) -> None:
        super().__init__()
        for name, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            check(name, size, at_least=1, at_most=LARGEST_BATCH)
        self.progressive_resizing = progressive_resizing or {}
        for end, size in self.progressive_resizing.items():
            if end < 1 or not 1 <= size <= LARGEST_SIDE:
                raise InputError(
                    f"progressive_resizing must map numbers of epochs to sides in 1..{LARGEST_SIDE}, "
                    f"not {end} to {size}"
                )
        check_choice("val", val, ("auto", "train", "leave_one_out", "val", "test"))
        check("val_share", val_share, above=0, at_most=0.5)
        check("test_share", test_share, above=0, at_most=0.5)
        check_choice("changed", changed, ("refuse", "allow"))
        check("resident", resident, at_least=0, at_most=1)
        self.root = Path(os.path.expanduser(root))
        self.views = views
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.val = val
        self.val_share = val_share
        self.test_share = test_share
        self.download = download
        self.seed = torch.initial_seed() if seed is None else seed
        self.changed = changed
        self.resident = resident
        self._device_copies = DeviceCopies(resident)
        self._splits: dict[Split, Images] = {}
        self._epoch_views: EpochViews | None = None
        self._views_deferred = False

    def __str__(self) -> str:
        return f"{type(self).__name__}(root={str(self.root)!r}, views={self.views})"

    def read(self, split: Split) -> Images:
        """Read a split: "pretrain" for training, "train", "val" and "test" for evaluation.

        The labelled images of "pretrain" are those of "train" in the same order. Otherwise, training uses no
        labels if train images are held out as queries, because their rows in "pretrain" are unknown.

        Raises:
            InputError: the data is missing or damaged.
        """
        raise NotImplementedError

    def split(self, name: Split) -> Images:
        """Return a split, which is read only once.

        Raises:
            InputError: as `read`; or `test_share` is set and there is a test split, or no labelled image.
        """
        if name not in self._splits:
            self._splits |= (
                self._train_and_test() if self._draws_test and name != "val" else {name: self.read(name)}
            )
            actual, expected = self._splits[name].shape[0], self.views.channels
            if actual != expected:
                raise InputError(f"the images have {actual} channels, but views.mean has {expected} numbers")
        return self._splits[name]

    @property
    def _draws_test(self) -> bool:
        """True if the test split is a share of the train images."""
        if self.test_share is not None and self.has("test"):
            raise InputError(f"{type(self).__name__} has a test split; leave out test_share")
        return self.test_share is not None

    def _train_and_test(self) -> dict[Split, Images]:
        """Divide the train images into train and test."""
        assert self.test_share is not None
        images = self.read("train")
        rows = images.labelled.nonzero().flatten()
        count = round(self.test_share * len(rows))
        if not count:
            raise InputError(
                f"test_share {self.test_share} selects none of {len(rows)} labelled train images"
            )
        held_out = torch.zeros(len(images), dtype=torch.bool)
        held_out[rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:count]]] = True
        rank_zero_info(
            f"images: {count:,} of {len(rows):,} labelled train images are held out as the test split"
        )
        train = images.separate(~held_out)
        return {"train": train, "pretrain": train, "test": images.separate(held_out)}

    def has(self, split: Split) -> bool:
        """Return True if the data set has a split; by default, all but "val"."""
        return split != "val"

    def check(self, *splits: Split) -> None:
        """Check that splits exist and match, without decoding images.

        Raises:
            InputError: a split is missing, or does not match the train split.
        """
        for split in splits:
            if not self.has(split):
                raise InputError(self._missing_split(split))

    def _missing_split(self, split: Split) -> str:
        """Return the message for a split that the data set does not have."""
        return f"{type(self).__name__} has no {split} split"

    def check_evaluated(self) -> None:
        """Check the splits that an evaluation uses, without decoding images.

        Raises:
            InputError: a split is missing, or does not match the train split.
        """
        self.check("train", *([] if self._draws_test else [self.eval_split]))

    @property
    def val_split(self) -> Literal["train", "val", "test"]:
        """The split of the validation queries."""
        if self.val == "auto":
            return "val" if self.has("val") else "train"
        return "train" if self.val == "leave_one_out" else self.val

    @property
    def leaves_one_out(self) -> bool:
        """True if every labelled train image is a query, and no label is used in training."""
        if self.val not in ("auto", "leave_one_out") or self.val_split != "train":
            return False
        labels = int(self.split("train").labelled.sum())
        few = labels < self.few_labels and not self._reads_labels
        return labels > 1 and (few or self.val == "leave_one_out")

    @property
    def _reads_labels(self) -> bool:
        """True if the module or a callback reads labels in training, or if a module does not state it."""
        trainer: Any = self.trainer
        if trainer is None or any(getattr(each, "reads_labels", False) for each in trainer.callbacks):
            return True
        return bool(getattr(trainer.lightning_module, "reads_labels", True))

    @property
    def eval_split(self) -> Literal["val", "test"]:
        """The split used for evaluation: "test", or "val" for a data set without a test split."""
        return "val" if not self._draws_test and not self.has("test") and self.has("val") else "test"

    @property
    def contents(self) -> dict[str, str]:
        """Digest of the content of each image file used by `fit`, by path; empty if no files are decoded."""
        return {}

    def fingerprint(self) -> str:
        """Compute a digest of the images used by `fit`.

        Raises:
            InputError: the data is missing or damaged.
        """
        splits: dict[str, Images] = {name: self.split(name) for name in self._splits_of("fit")}
        if splits["pretrain"] is splits["train"]:
            del splits["train"]
        return digest_of_splits(splits)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the train split."""
        return self.split("train").classes

    @property
    def num_classes(self) -> int:
        """Number of classes of the train split."""
        return len(self.classes)

    @property
    def superclasses(self) -> Tensor | None:
        """(C,) int64, the superclass of each class; None for a data set without superclasses."""
        return None

    def heldout(self, count: int) -> Tensor:
        """Return a mask (count,) of the train rows that are held out as queries if val="train".

        Held-out rows are evenly spaced, so that rows sorted by class are held out in equal shares.
        """
        numbers = (torch.arange(count + 1, dtype=torch.float64) * self.val_share + 1e-9).floor()
        return numbers.diff() > 0

    def _queries(self, images: Images) -> Tensor:
        """Return a mask (N,) of the train images that are held out as queries if val="train".

        They are labelled, unless no image is. If the order of the classes repeats with the period of the
        held-out rows, so that these lack classes, rows are held out in the order of their classes.
        """
        candidates = images.labelled if images.labelled.any() else ~images.labelled
        rows, labels = candidates.nonzero()[:, 0], images.labels[candidates]
        held_out = self.heldout(len(rows))
        by_class = torch.zeros_like(held_out)
        by_class[labels.argsort(stable=True)] = held_out
        if len(labels[by_class].unique()) > len(labels[held_out].unique()):
            held_out = by_class
        return torch.zeros(len(images), dtype=torch.bool).index_fill(0, rows[held_out], True)

    def _pretraining_images(self) -> Images:
        """Return the split "pretrain", in which no validation query has a label."""
        images, train = self.split("pretrain"), self.split("train")
        if self.val_split != "train":
            return images
        labels, known = torch.full_like(images.labels, -1), train.labelled
        if not self.leaves_one_out and torch.equal(images.labels[images.labelled], train.labels[known]):
            labels[images.labelled] = train.labels.masked_fill(self._queries(train), -1)[known]
        return images.relabelled(labels)

    def setup(self, stage: str) -> None:
        """Read the splits of a stage, so that missing data is reported before the stage starts."""
        self._epoch_views, self._views_deferred = None, False
        self.check(*self._stored_splits(stage))
        for split in self._splits_of(stage):
            self.split(split)
        if stage == "fit" and (name := self.split("train").only_class):
            rank_zero_warn(
                f"all labelled train images are of one class, {name}: every accuracy will be 100 %"
            )
        if stage == "fit" and self.val == "leave_one_out" and self.trainer and self._reads_labels:
            raise InputError("training reads labels, but --data.val leave_one_out hides them; use train")

    def _splits_of(self, stage: str) -> tuple[Split, ...]:
        """Return the splits of a stage, without duplicates."""
        if stage not in ("fit", "validate"):
            return ()
        splits: list[Split] = ["pretrain"] if stage == "fit" else []
        return tuple(dict.fromkeys([*splits, "train", self.val_split]))

    def _stored_splits(self, stage: str) -> tuple[Split, ...]:
        """Return the splits of a stage, without a test split that is drawn from the train images."""
        return tuple(split for split in self._splits_of(stage) if split != "test" or not self._draws_test)

    def teardown(self, stage: str) -> None:
        """Release the device memory."""
        self._device_copies.clear()

    def train_dataloader(self) -> Batches:
        """Return the loader of the split "pretrain": a new order every epoch, full batches only.

        Images that are held out as validation queries are trained on without their labels.

        Raises:
            InputError: the global batch contains fewer than two images.
        """
        if self.batch_size * (self.trainer.world_size if self.trainer else 1) < 2:
            raise InputError("batch_size must be 2 or more, because objectives compare different images")
        return self._batches(self._pretraining_images(), training=True)

    def val_dataloader(self) -> list[Batches]:
        """Return the loaders [queries, bank] of labelled images.

        Only the loader of the queries is returned if no train image has a label, or if `leaves_one_out`.

        Raises:
            InputError: the bank is empty, or there are fewer than two queries.
        """
        train = self.split("train")
        if self.leaves_one_out:
            return [self._batches(train.separate(train.labelled), training=False)]
        bank = train.select(train.labelled)
        labelled = len(bank) > 0
        if self.val_split == "train":
            source, advice = f"val_share {self.val_share}", "; set a larger --data.val_share, up to 0.5"
            candidates, held_out = bank if labelled else train, self._queries(train)
            queries = train.separate(held_out)
            bank = train.separate(train.labelled & ~held_out)
        else:
            source, advice = f"the {self.val_split} split", "; --data.val train uses held-out train images"
            candidates = self.split(self.val_split)
            queries = candidates.select(candidates.labelled) if labelled else candidates
        if not labelled:
            if len(queries) < 2:
                counts = f"{len(queries)} of {len(candidates)}"
                raise InputError(f"{source} leaves {counts} images as queries, but 2 are required{advice}")
            return [self._batches(queries, training=False)]
        if len(queries) < 2 or not len(bank):
            counts = f"{len(queries)} queries and {len(bank)} labelled bank images"
            raise InputError(f"{source} leaves {counts}, but 2 and 1 are required{advice}")
        return [self._batches(queries, training=False), self._batches(bank, training=False)]

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Make the model's input on the device of the batch.

        During training, these are two views, which differ between epochs. Otherwise, these are the plain
        images, and for the queries also two views, which are the same at every epoch and not compiled.
        """
        if self.trainer is not None and self.trainer.training:
            views = self._training_views_on(batch.images.device)
            views.set_epoch(self.trainer.current_epoch)
            return batch if self._views_deferred else views(batch)
        query_views: Tensor | None = None
        if dataloader_idx == QUERIES:
            seed = fold(self.seed, Stream.QUERIES)
            eager = dataclasses.replace(self.views, compile=False)
            query_views = eager(batch.images, batch.indices, seed=seed, epoch=0)
        return batch._replace(images=self.views.plain(batch.images), views=query_views)

    def training_views(self, epoch: int) -> Views:
        """Return the views of an epoch of training, of a size that depends on `progressive_resizing`."""
        sizes = sorted(self.progressive_resizing.items())
        size = next((size for end, size in sizes if epoch < end), self.views.size)
        return self.views if size == self.views.size else dataclasses.replace(self.views, size=size)

    def defer_views(self, device: torch.device) -> EpochViews:
        """Leave the views of the training batches to the caller, until `setup` is called again.

        Args:
            device: Device of the batches.

        Returns:
            A function that makes the views of a batch.
        """
        self._views_deferred = True
        return self._training_views_on(device)

    def _training_views_on(self, device: torch.device) -> EpochViews:
        """Return the function that makes the views of training batches on a device."""
        if self._epoch_views is None:
            precision = None if self.trainer is None else self.trainer.precision
            dtype = _DTYPES.get(str(precision), torch.float32)
            self._epoch_views = EpochViews(self.training_views, seed=self.seed, dtype=dtype, device=device)
        return self._epoch_views

    def _batches(self, data: Images, *, training: bool) -> Batches:
        trainer = self.trainer
        device = trainer.strategy.root_device if trainer else torch.device("cpu")
        return Batches(
            self._device_copies.on(data, device),
            batch_size=self.batch_size if training else self.eval_batch_size,
            shuffle=training,
            drop_last=training,
            seed=self.seed,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
            device=device,
            completed=self._completed if trainer and training else None,
        )

    def _completed(self) -> int:
        """Return the number of batches of the current epoch that the trainer has trained on.

        Lightning restores a loader's own state only if it creates the loader after restoring its loops, but
        `Trainer.estimated_stepping_batches`, which schedules need, creates the loader earlier.
        """
        trainer: Any = self.trainer
        return batches_of_epoch(trainer) if trainer.training else 0
