"""Progress bar of a run: epoch, loss, kNN accuracy of the last validation, images/s and time left."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar

from ssl_vision.data import Batch
from ssl_vision.descriptions import described
from ssl_vision.progress import Progress, number
from ssl_vision.runs.log import RunLog


class RunBar(ProgressBar):
    """A `Progress` of the whole run with all its epochs and validations.

    It shows only metrics that the run's log holds on the host, so that it never synchronises with the device.

    Args:
        log: log of the run; None if nothing is logged.
    """

    def __init__(self, log: RunLog | None = None) -> None:
        super().__init__()
        self._log = log
        self._enabled = True
        self._job: Progress | None = None

    def disable(self) -> None:
        """Hide the bar; Lightning calls this in all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the bar at the first step of the run, or where it continues."""
        steps = trainer.estimated_stepping_batches
        self._open(TrainingProgress(trainer.global_step, None if steps == float("inf") else int(steps)))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Count a step."""
        if not isinstance(self._job, TrainingProgress):
            return
        epochs = trainer.max_epochs
        total = f"/{epochs}" if epochs and epochs > 0 else ""
        self._job.what = f"epoch {trainer.current_epoch + 1}{total}"
        self._job.note = self._metrics_text()
        self._job.step(trainer.global_step, images=len(batch.images) * trainer.world_size)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start a validation, within a run or on its own."""
        if self._log is not None:
            self._log.latest.pop("val/collapsed", None)  # only logged by validations that detect a collapse
        if isinstance(self._job, TrainingProgress):
            self._job.begin_validation()
        else:
            self._open(Progress("validation", sum(trainer.num_val_batches), unit="batches"))

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a validation batch."""
        if isinstance(self._job, TrainingProgress):
            done = sum(trainer.num_val_batches[:dataloader_idx]) + batch_idx + 1
            self._job.what = f"validation {done}/{sum(trainer.num_val_batches)}"
            self._job.advance(0)
        elif self._job is not None:
            self._job.advance()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End a validation."""
        if isinstance(self._job, TrainingProgress):
            self._job.end_validation()
        else:
            self._close()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the bar at the end of the run."""
        if self._job is not None:
            self._job.what = "training"
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Close the bar after an error."""
        self._close(exception)

    def _open(self, job: Progress) -> None:
        if self._enabled:
            self._job = job.__enter__()

    def _close(self, error: BaseException | None = None) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.__exit__(None if error is None else type(error), error, None)

    def _metrics_text(self) -> str:
        latest = {} if self._log is None else self._log.latest
        parts = ["COLLAPSED"] if latest.get("val/collapsed") else []
        parts += [
            f"{metric.title} {metric.text(latest[metric.logged_name])}"
            for metric in described("progress")
            if metric.logged_name in latest
        ]
        if latest.get("train/skipped_steps"):
            parts.append(f"{latest['train/skipped_steps']:.0f} steps skipped")
        return ", ".join(parts)


class TrainingProgress(Progress):
    """Progress of training steps, whose speed and remaining time take validations into account.

    Args:
        done: number of steps before this process started.
        total: number of steps of the whole run; None if it has no limit.
        **options: options of `Progress`.
    """

    def __init__(self, done: int, total: int | None, **options: Any) -> None:
        super().__init__("epoch", total, unit="steps", done=done, **options)
        self._first: float | None = None
        self._trained = 0.0  # seconds from the first to the last batch, without validations
        self._timed = done
        self._images = 0
        self._validated, self._steps_validated = 0.0, 0.0
        self._validating: float | None = None

    def step(self, done: int, *, images: int) -> None:
        """Record a batch.

        Args:
            done: number of completed steps of the run.
            images: number of images in the batch, over all processes.
        """
        if self._first is None:  # the first batch includes compilation and is left out of the speed
            self._first, self._timed = self.clock(), done
        else:
            self._trained = self.clock() - self._first - self._validated
            self._images += images
        self.advance(done - self.done)

    def begin_validation(self) -> None:
        """Start the clock of a validation."""
        self._validating = self.clock()

    def end_validation(self) -> None:
        """Stop the clock of a validation."""
        if self._validating is not None:
            self._validated += self.clock() - self._validating
        self._validating, self._steps_validated = None, self.done - self._timed

    def amount(self) -> str:
        """Return the completed share of the run in percent."""
        return f"{100 * self.done / self.total:.0f} %" if self.total else super().amount()

    def speed(self) -> str:
        """Return the speed in images/s, without validations."""
        return f"{number(self._images / self._trained)} images/s" if self._images and self._trained else ""

    def seconds_left(self) -> float | None:
        """Return the remaining seconds of the run, assuming validations as frequent as so far."""
        steps = self.done - self._timed
        if not steps or self.total is None:
            return None
        validation = self._validated / self._steps_validated if self._steps_validated else 0.0
        return (self.total - self.done) * (self._trained / steps + validation)
