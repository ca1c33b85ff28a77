"""What a run records of itself: its config and its images, in its directory and in every checkpoint."""

import csv
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision._version import __version__
from ssl_vision.data import ImageData
from ssl_vision.data.loading.fingerprint import changes, digest_of_files
from ssl_vision.errors import InputError
from ssl_vision.lightning_private import validate_now
from ssl_vision.runs.checkpoint import CHECKPOINT_KEY, Checkpoint
from ssl_vision.runs.config import as_yaml
from ssl_vision.runs.files import atomic_write, partial_file, rename, write_text
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.log import RunLog


class RunRecord(pl.Callback):
    """Writes the full config to ``config.yaml``, into every checkpoint and into the W&B run.

    Checkpoints store it as text, so that ``torch.load(..., weights_only=True)`` reads it, and also store the
    digest and the side of the images and, for an online probe, the names of the classes. The image files are
    listed in ``images.csv``.

    Args:
        folder: run directory.
        config: full config, as plain dicts and lists.
        checkpoint: checkpoint that the run continues from; None for a new run, which deletes the files of a
            run that it replaces.
        check: function that raises if the run cannot use the directory; called again once it is locked.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Mapping[str, Any],
        *,
        checkpoint: Path | None,
        check: Callable[[], None],
    ) -> None:
        self.folder = folder
        self.config = config
        self.checkpoint = checkpoint
        self.check = check
        self._record: dict[str, Any] = {}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Warn about another number of threads, among which torch divides sums on a CPU."""
        before, now = checkpoint[CHECKPOINT_KEY].get("threads"), torch.get_num_threads()
        if before not in (None, now) and trainer.strategy.root_device.type == "cpu":
            rank_zero_warn(
                f"the run was trained with {before} threads and continues with {now}, so rounding differs: "
                f"OMP_NUM_THREADS={before} continues it exactly"
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Train no further if early stopping ended the run before."""
        trainer.should_stop = trainer.should_stop or early_stopping(trainer) is not None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lock the run directory and write the config.

        This waits for training to start, so that a run that cannot start neither creates nor replaces a
        directory.

        Raises:
            InputError: another process uses the directory.
        """
        if not trainer.is_global_zero:
            return
        self.folder.lock.take()
        self.check()
        if self.checkpoint is None:
            self.folder.clear()
        write_text(self.folder.config_file, as_yaml(self.config))
        if self.checkpoint is not None and self.checkpoint.resolve() != self.folder.last.resolve():
            # If the run is killed before it saves another checkpoint, it continues from this one again.
            with partial_file(self.folder.last, ".partial") as partial:
                shutil.copyfile(self.checkpoint, partial)
            rename(partial, self.folder.last)
            self.folder.previous.unlink(missing_ok=True)
        self._record = {"version": __version__, "config": as_yaml(self.config)}
        self._record["threads"] = torch.get_num_threads()
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, ImageData):
            self._record_images(data)
        for logger in trainer.loggers:
            if isinstance(logger, RunLog):
                logger.keep_until(trainer.global_step)
            if isinstance(logger, WandbLogger):
                logger.experiment.config.update(dict(self.config), allow_val_change=True)

    def _record_images(self, data: ImageData) -> None:
        self._record |= {"images": data.fingerprint(), "side": data.split("train").shape[-1]}
        if self.config.get("online_probe"):
            self._record["classes"] = list(data.classes)
        write_images(self.folder.images_file, data.contents)
        if data.skipped:
            lines = "".join(f"{name}\n" for name in data.skipped)
            with atomic_write(self.folder.skipped_file) as partial:
                partial.write_text(lines, encoding="utf-8", errors="surrogateescape")

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the config, the version of this package, digest and side of the images, and the classes."""
        checkpoint[CHECKPOINT_KEY] = self._record


class StartRecord(pl.callbacks.Checkpoint):
    """Writes the given weights from which a run starts to ``start.ckpt``, and validates them.

    These weights are a baseline of the run. Their metrics are logged with step and epoch −1, and early
    stopping ignores them. The callback runs after `RunRecord`, which locks the directory, and after
    `ResumeCheckpoint`, which handles signals; Lightning moves both `Checkpoint` callbacks to the end.

    Args:
        folder: run directory.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write and validate the weights."""
        trainer.save_checkpoint(self.folder.start, weights_only=False)
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        trainer.callbacks = [each for each in callbacks if not isinstance(each, pl.callbacks.EarlyStopping)]  # type: ignore[attr-defined]
        try:
            validate_now(trainer)
        finally:
            trainer.callbacks = callbacks  # type: ignore[attr-defined]
        metrics = trainer.callback_metrics.items()
        row = {name: float(value) for name, value in metrics if name.startswith("val/")}
        for logger in trainer.loggers:
            logger.log_metrics(row | {"epoch": -1}, step=-1)


def early_stopping(trainer: pl.Trainer) -> str | None:
    """Return why early stopping has ended training; None if it has not."""
    messages = (callback.stopping_reason_message for callback in trainer.early_stopping_callbacks)
    return next(filter(None, messages), None)


def write_images(file: Path, contents: Mapping[str, str]) -> None:
    """Write the digest of the content of each image file of a run, if it has any."""
    if not contents:
        return
    with (
        atomic_write(file) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out,
    ):
        csv.writer(out).writerows([("path", "content"), *contents.items()])


def read_images(file: Path) -> dict[str, str]:
    """Read the digests of a run's image files; empty if the file does not exist or cannot be read."""
    try:
        with file.open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
            rows = csv.DictReader(lines)
            # earlier versions also list files that cannot be decoded
            return {row["path"]: row["content"] for row in rows if row.get("decoded") != "0"}
    except (OSError, KeyError, csv.Error):
        return {}


def check_images(data: ImageData, checkpoint: Checkpoint) -> None:
    """Refuse to continue a run if its images have changed; with ``--data.changed allow``, warn instead.

    The images are compared by the digest in the checkpoint. ``images.csv`` in the run directory tells which
    files changed. Checkpoints of earlier versions, which have no digest, are accepted.

    Raises:
        InputError: the images have changed, or cannot be read.
    """
    if checkpoint.images is None:
        return
    if data.download:
        data.prepare_data()
    if data.fingerprint() == checkpoint.images:
        return
    before = read_images(RunFolder(checkpoint.path.parent.parent).images_file)
    if not data.contents:
        description = f"images or labels of {type(data).__name__} differ"
    elif digest_of_files(before) == checkpoint.images:
        description = changes(before, data.contents)
    else:
        description = "the run's images.csv does not list the changes"
    message = f"{checkpoint.path}: the images have changed since it was written: {description}"
    if data.changed == "refuse":
        raise InputError(f"{message}; restore them, or continue with --data.changed allow")
    rank_zero_warn(f"{message}; training continues on the current images")
