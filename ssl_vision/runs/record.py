"""Callback that records a run's config in the run directory, in checkpoints and in W&B."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision._version import __version__
from ssl_vision.data import ImageData
from ssl_vision.data.loading.fingerprint import Fingerprint
from ssl_vision.runs.atomic_files import atomic_write, write_text
from ssl_vision.runs.checkpoint import CHECKPOINT_KEY
from ssl_vision.runs.checkpoint_io import copy_checkpoint
from ssl_vision.runs.folder import RunFolder, as_yaml
from ssl_vision.runs.images_file import write_images
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
        self._images: Fingerprint | None = None
        self._side: int | None = None
        self._classes: list[str] | None = None

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
        if self.checkpoint is not None:
            self._make_last(self.checkpoint)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, ImageData):
            self._images, self._side = data.fingerprint(), data.split("train").shape[-1]
            write_images(self.folder.images_file, self._images.files)
            if self.config.get("online_probe"):
                self._classes = list(data.classes)
        if isinstance(data, ImageData) and data.skipped:
            lines = "".join(f"{name}\n" for name in data.skipped)
            with atomic_write(self.folder.skipped_file) as partial:
                partial.write_text(lines, encoding="utf-8", errors="surrogateescape")
        for logger in trainer.loggers:
            if isinstance(logger, RunLog):
                logger.keep_until(trainer.global_step, every=trainer.log_every_n_steps)  # type: ignore[attr-defined]
            if isinstance(logger, WandbLogger):
                logger.experiment.config.update(dict(self.config), allow_val_change=True)

    def _make_last(self, checkpoint: Path) -> None:
        """Make the checkpoint that the run continues from its last one, as if nothing had followed it.

        If the run is killed before it saves another one, it continues from the same step again. A damaged
        last checkpoint, which cannot be that one, is replaced as well.
        """
        if checkpoint.resolve() != self.folder.last.resolve():
            copy_checkpoint(checkpoint, self.folder.last)
            self.folder.previous.unlink(missing_ok=True)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the config, the version of this package, digest and side of the images, and the classes."""
        content: dict[str, Any] = {"version": __version__, "config": as_yaml(self.config)}
        content["threads"] = torch.get_num_threads()
        if self._images is not None:
            content |= {"images": self._images.digest, "side": self._side}
        if self._classes is not None:
            content["classes"] = self._classes
        checkpoint[CHECKPOINT_KEY] = content


def early_stopping(trainer: pl.Trainer) -> str | None:
    """Return why early stopping has ended training; None if it has not."""
    messages = (callback.stopping_reason_message for callback in trainer.early_stopping_callbacks)
    return next(filter(None, messages), None)
