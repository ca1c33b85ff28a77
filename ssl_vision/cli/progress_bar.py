"""Progress bar of a run: epoch, images/s, time left, loss and kNN accuracy of the last validation."""

import math
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.utilities.data import extract_batch_size

from ssl_vision.data import Batch
from ssl_vision.descriptions import described
from ssl_vision.progress import Progress
from ssl_vision.runs.log import RunLog

_ALARMS = {"val/collapsed": "COLLAPSED", "val/below_start": "BELOW START"}
"""Texts that the bar shows if the last validation has logged a metric."""


class RunBar(ProgressBar):
    """A `Progress` of the whole run with all its epochs and validations.

    It shows only metrics that the run's log holds on the host, so that it never synchronises with the device.

    Args:
        log: log of the run.
    """

    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self._latest = log.latest
        self._enabled = True
        self._job: Progress | None = None

    def disable(self) -> None:
        """Hide the bar; Lightning calls this in all processes but the first."""
        self._enabled = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start a bar for the first step, which may include compilation and is left out of the speed."""
        self._show(Progress("first step", lines=False))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count images; the first step starts the bar of the whole run."""
        if self._job is None:
            return
        images = len(batch.images) if isinstance(batch, Batch) else extract_batch_size(batch)
        images *= trainer.world_size
        if self._job.unit != "images":
            steps, accumulated = trainer.estimated_stepping_batches, trainer.accumulate_grad_batches
            total = None if steps in (math.inf, -1) else steps * accumulated * images
            done = (trainer.global_step * accumulated + (batch_idx + 1) % accumulated) * images
            job = Progress("training", total, unit="images", done=done)
            job.untimed, images = images, 0
            self._show(job)
        epochs = trainer.max_epochs
        total_epochs = f"/{epochs}" if epochs and epochs > 0 else ""
        self._job.task = f"epoch {trainer.current_epoch + 1}{total_epochs}"
        self._job.note = self._metrics_text()
        self._job.advance(images)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start a validation."""
        for name in _ALARMS:  # only logged if there is something to report
            self._latest.pop(name, None)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a validation batch."""
        if self._job is not None:
            done = sum(trainer.num_val_batches[:dataloader_idx]) + batch_idx + 1
            self._job.task = f"validation {done}/{sum(trainer.num_val_batches)}"
            self._job.advance(0)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar at the end of the run."""
        if self._job is not None:
            self._job.task = "training"
        self._show(None)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Close the bar after an error."""
        self._show(None, type(exception))

    def _show(self, job: Progress | None, error: type[BaseException] | None = None) -> None:
        """Close the present bar, and open another one."""
        if self._job is not None:
            self._job.__exit__(error)
        self._job = job.__enter__() if job is not None and self._enabled else None

    def _metrics_text(self) -> str:
        parts = [text for name, text in _ALARMS.items() if self._latest.get(name)]
        parts += [
            f"{metric.title} {metric.text(self._latest[metric.logged_name])}"
            for metric in described("progress")
            if metric.logged_name in self._latest
        ]
        if self._latest.get("train/skipped_steps"):
            parts.append(f"{self._latest['train/skipped_steps']:.0f} steps skipped")
        return ", ".join(parts)
