"""When a run saves the checkpoint that it continues from: after epochs and steps, and at a signal."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint

from ssl_vision.errors import InputError, Interrupted
from ssl_vision.lightning_private import (
    batches_of_epoch,
    progress_before_validation,
    replace_progress,
    restarted_within_epoch,
    stops_after_batch,
    take_sigterm,
    validate_after,
)
from ssl_vision.runs.checkpoint import AtomicCheckpointIO, is_checkpoint
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.log import RunLog

_ENDS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a run."""


class Interruption:
    """Records signals during training, so that the run acts on them when its state is consistent.

    A second Ctrl-C stops the run immediately. If Lightning requeues a SLURM job on a signal, its handler,
    which saves a checkpoint, is called between two steps instead of immediately.
    """

    def __init__(self) -> None:
        self._received = 0
        self._asked = False
        self._before: dict[int, Any] = {}
        self._requeue: dict[int, Callable[[int, None], None]] = {}

    def listen(self, trainer: pl.Trainer) -> None:
        """Start to record signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        environment: Any = getattr(trainer.strategy, "cluster_environment", None)
        auto_requeue = getattr(environment, "auto_requeue", False)
        requeue = getattr(environment, "requeue_signal", None) if auto_requeue else None
        if requeue is not None and callable(signal.getsignal(requeue)):
            self._requeue[requeue] = signal.getsignal(requeue)  # type: ignore[assignment]
        for number in (*_ENDS, *self._requeue):
            self._before[number] = signal.signal(number, self._note)
        if take_sigterm(trainer):  # since Lightning has handled signals
            self._note(signal.SIGTERM, None)

    def stop_listening(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def agreed(self, trainer: pl.Trainer) -> int:
        """Return the signal that any process has received since the last call, or 0."""
        number, self._received = self._received, 0
        if trainer.world_size > 1:
            flag = torch.tensor(number, device=trainer.strategy.root_device)
            number = int(trainer.strategy.reduce(flag, reduce_op="max"))  # type: ignore[arg-type]
        return number

    def act(self, number: int) -> None:
        """Requeue the job or end the run, whose state has been saved.

        Raises:
            Interrupted: the signal ends the run.
        """
        if number in self._requeue:
            self._requeue[number](number, None)
        elif number:
            raise Interrupted(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._asked:
            raise KeyboardInterrupt
        self._received = number
        if number in _ENDS:
            self._asked = True
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: saving a checkpoint and stopping after this step\n".encode())


class ResumeCheckpoint(Checkpoint):
    """Saves ``last.ckpt`` after every n-th epoch and step, and when a run ends or is stopped.

    Checkpoints are saved only where Lightning can resume exactly: between two steps, at the end of an epoch,
    and at the start of a validation, which a run stopped during validation repeats. The callback has no
    state, so that no path of the machine is stored in a checkpoint.

    Args:
        folder: run directory.
        files: writer of the checkpoints.
        every_n_epochs: epochs between two saves at the end of an epoch.
        every_n_steps: steps between two saves within an epoch; None saves at the ends of epochs only.
    """

    def __init__(
        self,
        folder: RunFolder,
        files: AtomicCheckpointIO,
        *,
        every_n_epochs: int,
        every_n_steps: int | None,
    ) -> None:
        self.folder, self.files = folder, files
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self.interruption = Interruption()
        self._signal = 0
        self._cut = False
        self._stop_after_step = False
        self._before_validation: dict[str, Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Delete unfinished files of a killed run, start to handle signals and resume the last validation."""
        if trainer.is_global_zero:
            self.folder.remove_partial()
        self.interruption.listen(trainer)
        batches = batches_of_epoch(trainer)
        if restarted_within_epoch(trainer) and batches == trainer.num_training_batches:
            self._validate_if_last(trainer, batches)  # stopped during the last validation

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Commit the checkpoint of the previous epoch and act on a received signal."""
        self._settle(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Commit the checkpoint of the previous step and act on a received signal."""
        self._settle(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save after every n-th step, and before the run stops; have Lightning validate at its end."""
        self._signal = self._signal or self.interruption.agreed(trainer)
        self._cut = False
        last_of_epoch = batch_idx + 1 >= trainer.num_training_batches
        if not last_of_epoch and (batch_idx + 1) % trainer.accumulate_grad_batches:
            # Checkpoints do not hold partially accumulated gradients: max_time takes effect after the step.
            self._stop_after_step = self._stop_after_step or trainer.should_stop
            trainer.should_stop = False
            return
        trainer.should_stop = trainer.should_stop or self._stop_after_step
        self._validate_if_last(trainer, batch_idx + 1)
        if last_of_epoch:
            return
        step = trainer.global_step
        self._cut = stops_after_batch(trainer)
        if self._signal or self._cut or (self.every_n_steps and step % self.every_n_steps == 0):
            self._save(trainer)

    def on_validation_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Record the progress before validation, from which a stopped run resumes."""
        if not trainer.sanity_checking and batch_idx == dataloader_idx == 0:
            self._before_validation = progress_before_validation(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Save and stop after a signal, unless gradients are partially accumulated."""
        if trainer.sanity_checking:
            return
        self._signal = self._signal or self.interruption.agreed(trainer)
        batches = batches_of_epoch(trainer)
        within_step = batches % trainer.accumulate_grad_batches and batches < trainer.num_training_batches
        if self._signal and not within_step:
            if batches or trainer.current_epoch:  # otherwise, the run starts again
                self._save(trainer)
            self._settle(trainer)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Discard the progress before validation."""
        self._before_validation = None

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Store the progress before validation if saved during validation, and which weights are averages."""
        if self._before_validation is not None:
            replace_progress(checkpoint, self._before_validation)
            if "current_model_state" in checkpoint:  # WeightAveraging has swapped them for the validation
                current, average = checkpoint["state_dict"], checkpoint["current_model_state"]
                checkpoint |= {"state_dict": average, "current_model_state": current}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after every n-th epoch, and before the run stops, unless the last step is saved already."""
        epochs = trainer.current_epoch + 1
        stops = self._signal or trainer.should_stop or trainer.global_step == trainer.max_steps
        if not self._cut and (stops or epochs == trainer.max_epochs or epochs % self.every_n_epochs == 0):
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Flush the log to disk, and commit the last checkpoint."""
        self.interruption.stop_listening()
        _sync(trainer)
        self.files.commit()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Commit the last complete checkpoint.

        One that was saved during an unfinished validation, or whose rows may be missing, is discarded.
        """
        self.interruption.stop_listening()
        if self.folder.lock.lost:
            return
        if self._before_validation is not None or isinstance(exception, OSError):
            self.files.discard()
        _sync(trainer)
        self.files.commit()

    def _validate_if_last(self, trainer: pl.Trainer, batches: int) -> None:
        """Have Lightning validate after this batch if the last epoch ends with it.

        Training that ends by ``max_steps`` within an epoch is validated only without ``max_epochs``. With
        both, the steps are a pause, and the continued run has the rows of an uninterrupted one.
        """
        ends_epoch = batches >= trainer.num_training_batches
        last = stops_after_batch(trainer) or (ends_epoch and trainer.current_epoch + 1 == trainer.max_epochs)
        if last and (ends_epoch or trainer.max_epochs == -1):
            validate_after(trainer, batches)

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.files.last, weights_only=False)

    def _commit(self, trainer: pl.Trainer) -> None:
        """Flush the log to disk, then commit a waiting checkpoint, if any."""
        if self.files.waiting:
            _sync(trainer)
            self.files.commit()

    def _settle(self, trainer: pl.Trainer) -> None:
        """Commit a waiting checkpoint, then act on a received signal."""
        self._commit(trainer)
        number, self._signal = self._signal, 0
        self.interruption.act(number)
        if number:  # Lightning's requeue checkpoint is a copy of last.ckpt
            remove_requeued(self.folder)


def _sync(trainer: pl.Trainer) -> None:
    """Flush the log of the run to disk."""
    for logger in trainer.loggers:
        if isinstance(logger, RunLog):
            logger.sync()


def remove_requeued(folder: RunFolder) -> None:
    """Delete the checkpoints of SLURM requeues, which Lightning would prefer to any other.

    Raises:
        InputError: a file of that name was not written by ``ssl-vision fit``.
    """
    for file in folder.path.glob("hpc_ckpt_*.ckpt"):
        if not is_checkpoint(file):
            raise InputError(f"{file}: not written by this run, but Lightning would resume from it; move it")
        file.unlink()
