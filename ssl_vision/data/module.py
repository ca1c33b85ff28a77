"""From a data set to the loaders and the views of a training run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor

from ssl_vision.data.augment.views import Views
from ssl_vision.data.images import Batch, Images
from ssl_vision.data.loading.device_cache import Resident
from ssl_vision.data.loading.fingerprint import FileRecord, Fingerprint, digest_of_splits
from ssl_vision.data.loading.loader import Batches
from ssl_vision.data.random import Stream, fold
from ssl_vision.errors import InputError

Split = Literal["pretrain", "train", "val", "test"]

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""What autocast makes of the views anyway."""

LARGEST_BATCH = 2**20
"""Images that a process may see at a time."""

QUERIES, BANK = 0, 1
"""Which validation loader is which."""


class ImageData(pl.LightningDataModule):
    """Base of the data modules: a subclass implements `read`, and `prepare_data` where it can download.

    Training sees the split "pretrain", without labels. Validation has two loaders of labelled images: a bank,
    whose labels are known, and queries, whose labels are to be found.

    Args:
        root: Folder of the data sets; ~ is the user's home.
        views: How views are made.
        batch_size: Images for each process and training step.
        eval_batch_size: Images for each process and validation step.
        val: Split that validation takes its queries from. "train": a share of the labelled train images is
            held out, and the rest is the bank; pretraining sees all of them, without labels. "val", "test":
            the queries are that split, and the labelled train images are the bank. "auto": "val" if the data
            set has a validation split, "train" otherwise.
        val_share: Share of the labelled train images that is held out, in (0, 0.5].
        download: Fetch the data where it is missing.
        seed: Seed of the batch order and the views; None takes torch's initial seed.
        changed: What to do if a run is to continue on other images than its checkpoint was trained on:
            "refuse", or "allow" it with a warning.
        resident: Largest share of a CUDA device's free memory that images may take, in [0, 1]. What does not
            fit stays on the host, as everything does at 0; the batches are the same.

    Attributes:
        knn_k: Neighbours that vote in kNN unless another number is given; smaller where a class has fewer
            images.
        skipped: Paths within root of the files, in the splits read so far, that cannot be decoded.

    Raises:
        InputError: A value is out of range.

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
    skipped: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        root: str | Path,
        views: Views,
        batch_size: int = 256,
        eval_batch_size: int = 512,
        val: Literal["auto", "train", "val", "test"] = "auto",
        val_share: float = 0.1,
        download: bool = False,
        seed: int | None = None,
        changed: Literal["refuse", "allow"] = "refuse",
        resident: float = 0.5,
    ) -> None:
        super().__init__()
        for name, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if size < 1:
                raise InputError(f"{name} must be 1 or more, not {size}")
            if size > LARGEST_BATCH:
                raise InputError(f"{name} must be {LARGEST_BATCH} or less, not {size}")
        if val not in ("auto", "train", "val", "test"):
            raise InputError(f"val must be auto, train, val or test, not {val}")
        if not 0 < val_share <= 0.5:
            raise InputError(f"val_share must lie in (0, 0.5], not {val_share}")
        if changed not in ("refuse", "allow"):
            raise InputError(f"changed must be refuse or allow, not {changed}")
        if not 0 <= resident <= 1:
            raise InputError(f"resident must lie in [0, 1], not {resident}")
        self.root = Path(os.path.expanduser(root))
        self.views = views
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.val = val
        self.val_share = val_share
        self.download = download
        self.seed = torch.initial_seed() if seed is None else seed
        self.changed = changed
        self.resident = resident
        self._resident = Resident(resident)
        self._splits: dict[Split, Images] = {}

    def __str__(self) -> str:
        return f"{type(self).__name__}(root={str(self.root)!r}, views={self.views})"

    def read(self, split: Split) -> Images:
        """Decodes a split: the backbone trains on "pretrain"; "train", "val" and "test" are for evaluation.

        Raises:
            InputError: The data is absent or damaged.
        """
        raise NotImplementedError

    def split(self, name: Split) -> Images:
        """The split, read once."""
        if name not in self._splits:
            self._splits[name] = self.read(name)
        return self._splits[name]

    def has(self, split: Split) -> bool:
        """Whether the data set has this split; here, all but "val"."""
        return split != "val"

    def check(self, *splits: Split) -> None:
        """Checks that splits can be read, as far as that is known before any image is decoded.

        Raises:
            InputError: A split is missing, or does not fit the train split.
        """
        for split in splits:
            if not self.has(split):
                raise InputError(f"{type(self).__name__} has no {split} split")

    def folder_of(self, split: Split) -> Path | None:
        """The folder that a split is read from; here, the root. None for data that is in no folder."""
        return self.root

    @property
    def val_split(self) -> Literal["train", "val", "test"]:
        """The split that validation takes its queries from: `val`, with "auto" decided."""
        if self.val == "auto":
            return "val" if self.has("val") else "train"
        return self.val

    @property
    def eval_split(self) -> Literal["val", "test"]:
        """The split that an evaluation classifies: "test", or "val" for a data set without a test split."""
        return "val" if not self.has("test") and self.has("val") else "test"

    def fingerprint(self, known: Mapping[str, FileRecord] | None = None) -> Fingerprint:
        """Computes what tells the images that `fit` uses from others.

        Args:
            known: Earlier records of image files. The content of a file whose size and modification time are
                those of its record is not read again.

        Raises:
            InputError: The data is absent or damaged.
        """
        splits: dict[str, Images] = {name: self.split(name) for name in self._needed("fit")}
        if splits["pretrain"] is splits["train"]:
            del splits["train"]
        return Fingerprint(digest_of_splits(splits), files={})

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
        """(count,) bool: which of ``count`` train rows serve as queries where val="train".

        Evenly spaced, which takes as much of each class where rows are sorted by class.
        """
        taken = (torch.arange(count + 1, dtype=torch.float64) * self.val_share + 1e-9).floor()
        return taken.diff() > 0

    def setup(self, stage: str) -> None:
        """Reads what the stage needs, so that missing data is reported before anything runs."""
        splits = self._needed(stage)
        self.check(*splits)
        for split in splits:
            self.split(split)

    def _needed(self, stage: str) -> tuple[Split, ...]:
        """The splits that a stage reads, each once."""
        if stage not in ("fit", "validate"):
            return ()
        splits: list[Split] = ["pretrain"] if stage == "fit" else []
        return tuple(dict.fromkeys([*splits, "train", self.val_split]))

    def teardown(self, stage: str) -> None:
        """Gives the device's memory back."""
        self._resident.clear()

    def train_dataloader(self) -> Batches:
        """All images of the split "pretrain", in a new order every epoch, full batches only.

        Raises:
            InputError: All processes together see less than two images at a time.
        """
        if self.batch_size * (self.trainer.world_size if self.trainer else 1) < 2:
            raise InputError("batch_size 1 leaves an image no other to tell it from: it must be 2 or more")
        return self._batches(self.split("pretrain"), training=True)

    def val_dataloader(self) -> list[Batches]:
        """[queries, bank], of labelled images; [queries] alone if no train image has a label.

        Raises:
            InputError: The bank is empty, or there are fewer than two queries.
        """
        train = self.split("train")
        bank = train.select(train.labelled)
        labelled = len(bank) > 0
        if self.val_split == "train":
            source, advice = f"val_share {self.val_share}", ""
            candidates = bank if labelled else train
            held = self.heldout(len(candidates))
            queries, bank = candidates.select(held), candidates.select(~held)
        else:
            source, advice = f"the {self.val_split} split", "; --data.val train holds queries out of train"
            candidates = self.split(self.val_split)
            queries = candidates.select(candidates.labelled) if labelled else candidates
        if not labelled:
            if len(queries) < 2:
                some = f"{len(queries)} of {len(candidates)}"
                raise InputError(f"{source} leaves {some} images as queries: 2 are needed{advice}")
            return [self._batches(queries, training=False)]
        if len(queries) < 2 or not len(bank):
            left = f"{len(queries)} queries and {len(bank)} labelled bank images"
            raise InputError(f"{source} leaves {left}: 2 and 1 are needed{advice}")
        return [self._batches(queries, training=False), self._batches(bank, training=False)]

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Makes the model's input on the batch's device.

        Training: two views, new every epoch. Otherwise: the plain images, and for the
        queries (the first validation loader) two views that are the same at every epoch.
        """
        if self.trainer is not None and self.trainer.training:
            made = self.views(
                batch.images,
                batch.indices,
                seed=self.seed,
                epoch=self.trainer.current_epoch,
                dtype=_DTYPES.get(self.trainer.precision, torch.float32),
                memory_format=torch.channels_last,
            )
            return batch._replace(views=made)
        views: Tensor | None = None
        if dataloader_idx == QUERIES:
            seed = fold(self.seed, Stream.QUERIES)
            views = self.views(batch.images, batch.indices, seed=seed, epoch=0)
        return batch._replace(images=self.views.plain(batch.images), views=views)

    def _batches(self, data: Images, *, training: bool) -> Batches:
        trainer = self.trainer
        device = trainer.strategy.root_device if trainer else torch.device("cpu")
        return Batches(
            self._resident.on(data, device),
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
        """Returns how many batches of the current epoch the trainer has trained on.

        Lightning restores a loader's own state only if it builds the loader after reading the state of its
        loops. `Trainer.estimated_stepping_batches`, which schedules need, builds it earlier.
        """
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress  # type: ignore[union-attr]
        return int(progress.current.ready)
