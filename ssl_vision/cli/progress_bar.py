"""How far a run is, on one line: epoch, loss, kNN of the last validation, images/s, time left."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar

from ssl_vision.data import Batch
from ssl_vision.descriptions import described
from ssl_vision.progress import Progress, number
from ssl_vision.runs.log import RunLog


class RunBar(ProgressBar):
    """A `Progress` of the whole run, all its epochs and validations.

    It draws numbers that are on the host already, those that the run's log was given, and so never waits for
    the device.

    Args:
        log: of the run; None where nothing is logged.
    """

    def __init__(self, log: RunLog | None = None) -> None:
        super().__init__()
        self._log = log
        self._enabled = True
        self._job: Progress | None = None

    def disable(self) -> None:
        """Shows nothing: Lightning asks for it in all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Shows it again."""
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins where the run begins, or goes on."""
        steps = trainer.estimated_stepping_batches
        self._open(TrainingProgress(trainer.global_step, None if steps == float("inf") else int(steps)))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Counts the step."""
        if not isinstance(self._job, TrainingProgress):
            return
        epochs = trainer.max_epochs
        of = f"/{epochs}" if epochs and epochs > 0 else ""
        self._job.what = f"epoch {trainer.current_epoch + 1}{of}"
        self._job.note = self._said()
        self._job.step(trainer.global_step, images=len(batch.images) * trainer.world_size)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins a validation, within a run or alone."""
        if self._log is not None:
            self._log.latest.pop("val/collapsed", None)  # logged where it is so, and not where it is no more
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
        """Counts the batch."""
        if isinstance(self._job, TrainingProgress):
            done = sum(trainer.num_val_batches[:dataloader_idx]) + batch_idx + 1
            self._job.what = f"validation {done}/{sum(trainer.num_val_batches)}"
            self._job.advance(0)
        elif self._job is not None:
            self._job.advance()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends it."""
        if isinstance(self._job, TrainingProgress):
            self._job.end_validation()
        else:
            self._close()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The run is done."""
        if self._job is not None:
            self._job.what = "training"
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """The run ends early."""
        self._close(exception)

    def _open(self, job: Progress) -> None:
        if self._enabled:
            self._job = job.__enter__()

    def _close(self, error: BaseException | None = None) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.__exit__(None if error is None else type(error), error, None)

    def _said(self) -> str:
        latest = {} if self._log is None else self._log.latest
        parts = ["COLLAPSED"] if latest.get("val/collapsed") else []
        parts += [
            f"{metric.title} {latest[metric.logged_name]:.3f}"
            for metric in described("progress")
            if metric.logged_name in latest
        ]
        if latest.get("train/skipped_steps"):
            parts.append(f"{latest['train/skipped_steps']:.0f} steps skipped")
        return ", ".join(parts)


class TrainingProgress(Progress):
    """The steps of a run, and between them validations, which take time and are no steps.

    Args:
        done: Steps before it began.
        total: Steps of the whole run; None where it has no end.
        **options: Of `Progress`.
    """

    def __init__(self, done: int, total: int | None, **options: Any) -> None:
        super().__init__("epoch", total, unit="steps", done=done, **options)
        self._first: float | None = None
        self._timed = done
        self._images = 0
        self._validated, self._steps_validated = 0.0, 0.0
        self._validating: float | None = None

    def step(self, done: int, *, images: int) -> None:
        """Takes note of a batch.

        Args:
            done: Steps of the run that are done.
            images: Of the batch, in all processes.
        """
        if self._first is None:  # what is compiled or chosen at the first batch belongs to no rate
            self._first, self._timed = self.clock(), done
        else:
            self._images += images
        self.advance(done - self.done)

    def begin_validation(self) -> None:
        """From here on nothing is trained."""
        self._validating = self.clock()

    def end_validation(self) -> None:
        """From here on it is."""
        if self._validating is not None:
            self._validated += self.clock() - self._validating
        self._validating, self._steps_validated = None, self.done - self._timed

    def amount(self) -> str:
        """Of the whole run, in percent."""
        return f"{100 * self.done / self.total:.0f} %" if self.total else super().amount()

    def speed(self) -> str:
        """In images, validations left out."""
        seconds = self._trained()
        return f"{number(self._images / seconds)} images/s" if self._images and seconds else ""

    def seconds_left(self) -> float | None:
        """Until the run's end, with validations as dense as so far."""
        steps = self.done - self._timed
        if not steps or self.total is None:
            return None
        validation = self._validated / self._steps_validated if self._steps_validated else 0.0
        return (self.total - self.done) * (self._trained() / steps + validation)

    def _trained(self) -> float:
        """Seconds since the first batch, without validations."""
        if self._first is None:
            return 0.0
        now = self.clock() if self._validating is None else self._validating
        return now - self._first - self._validated
