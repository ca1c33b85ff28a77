"""From a data set to the loaders and the views of a training run."""

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor

from ssl_vision.data.images import Batch, Images
from ssl_vision.data.loader import Batches
from ssl_vision.data.random import Stream, fold
from ssl_vision.data.resident import Resident
from ssl_vision.data.views import Views
from ssl_vision.errors import InputError

Split = Literal["pretrain", "train", "test"]

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""What autocast makes of the views anyway."""

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
        val: Where queries come from. "train": labelled rows held out of the train split, the bank being the
            rest; pretraining sees them all, without labels. "test": the test split, and train is the bank.
        val_share: Share of the labelled train rows that is held out, in (0, 0.5].
        download: Fetch the data where it is missing.
        seed: Seed of the batch order and the views; None takes torch's initial seed.
        resident: Largest share of a CUDA device's free memory that images may take, in [0, 1]. What does not
            fit stays on the host, as everything does at 0; the batches are the same.

    Attributes:
        knn_k: Neighbours that vote in kNN unless another number is given; smaller where a class has fewer
            images.

    Raises:
        InputError: A value is out of range.
    """

    knn_k: ClassVar[int] = 200

    def __init__(
        self,
        *,
        root: str | Path,
        views: Views,
        batch_size: int = 256,
        eval_batch_size: int = 512,
        val: Literal["train", "test"] = "train",
        val_share: float = 0.1,
        download: bool = False,
        seed: int | None = None,
        resident: float = 0.5,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise InputError(f"batch_size must be 1 or more, not {batch_size}")
        if eval_batch_size < 1:
            raise InputError(f"eval_batch_size must be 1 or more, not {eval_batch_size}")
        if val not in ("train", "test"):
            raise InputError(f"val must be train or test, not {val}")
        if not 0 < val_share <= 0.5:
            raise InputError(f"val_share must lie in (0, 0.5], not {val_share}")
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
        self.resident = resident
        self._resident = Resident(resident)
        self._splits: dict[Split, Images] = {}

    def __str__(self) -> str:
        return f"{type(self).__name__}(root={str(self.root)!r}, views={self.views})"

    def read(self, split: Split) -> Images:
        """Decodes a split: the backbone trains on "pretrain"; "train" and "test" are for evaluation.

        Raises:
            InputError: The data is absent or damaged.
        """
        raise NotImplementedError

    def split(self, name: Split) -> Images:
        """The split, read once."""
        if name not in self._splits:
            self._splits[name] = self.read(name)
        return self._splits[name]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the train split."""
        return self.split("train").classes

    @property
    def num_classes(self) -> int:
        """Number of classes of the train split."""
        return len(self.classes)

    def heldout(self, count: int) -> Tensor:
        """(count,) bool: which of ``count`` train rows serve as queries where val="train".

        Evenly spaced, which takes as much of each class where rows are sorted by class.
        """
        taken = (torch.arange(count + 1, dtype=torch.float64) * self.val_share + 1e-9).floor()
        return taken.diff() > 0

    def setup(self, stage: str) -> None:
        """Reads what the stage needs, so that missing data is reported before anything runs."""
        if stage == "fit":
            self.split("pretrain")
        if stage in ("fit", "validate"):
            self.split("train")
            if self.val == "test":
                self.split("test")

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
        """[queries, bank], of labelled images; without any label [queries], held out of all train rows.

        Raises:
            InputError: The bank is empty, or there are fewer than two queries.
        """
        train = self.split("train")
        known = train.select(train.labelled)
        if not len(known):
            queries = train.select(self.heldout(len(train)))
            if len(queries) < 2:
                some = f"{len(queries)} of {len(train)}"
                raise InputError(f"val_share {self.val_share} leaves {some} images as queries: 2 are needed")
            return [self._batches(queries, training=False)]
        if self.val == "test":
            test = self.split("test")
            queries, bank = test.select(test.labelled), known
        else:
            held = self.heldout(len(known))
            queries, bank = known.select(held), known.select(~held)
        if len(queries) < 2 or not len(bank):
            source = "the test split" if self.val == "test" else f"val_share {self.val_share}"
            left = f"{len(queries)} queries and {len(bank)} labelled bank images"
            raise InputError(f"{source} leaves {left}: 2 and 1 are needed")
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
            finished=self._finished if trainer else None,
        )

    def _finished(self) -> int:
        """How many batches of the epoch the trainer has trained on."""
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress  # type: ignore[union-attr]
        return int(progress.current.processed)
