"""The checkpoint that a run continues from."""

import copy
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.runs.checkpoint_io import AtomicCheckpointIO, remove_partial
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.interruption import Interruption
from ssl_vision.runs.log import RunLog


class ResumeCheckpoint(Checkpoint):
    """Keeps ``last.ckpt``: of the last completed epoch, of every n-th step, and of where a run was stopped.

    It saves where Lightning takes a run up again exactly: between two steps, at the end of an epoch, and at
    the beginning of a validation, to which a run stopped in its midst goes back. It has no state of its
    own: no path of the machine that wrote it goes into a checkpoint.

    Args:
        folder: of the run.
        files: writes it.
        every_n_steps: steps between two saves, besides those at the ends of epochs; None for none.
        spare: folder for the last checkpoint of a run whose own folder cannot take it.
    """

    def __init__(
        self, folder: RunFolder, files: AtomicCheckpointIO, *, every_n_steps: int | None, spare: Path | None
    ) -> None:
        self.folder, self.files = folder, files
        self.every_n_steps = every_n_steps
        self.spare = spare
        self.interruption = Interruption()
        self._signal = 0
        self._cut = False
        self._stop_after_step = False
        self._before_validation: dict[str, Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Clears away what a killed run left, and begins to listen to signals."""
        if trainer.is_global_zero:
            remove_partial(Path(trainer.default_root_dir))
        self.interruption.listen(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """All of the epoch before is on disk."""
        self._settle(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """All of the step before is on disk."""
        self._settle(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves where a step is the n-th, or the last one for now."""
        self._signal = self._signal or self.interruption.agreed(trainer)
        self._cut = False
        last_of_epoch = batch_idx + 1 >= trainer.num_training_batches
        if not last_of_epoch and (batch_idx + 1) % trainer.accumulate_grad_batches:
            # Gradients of a part of a step are in no checkpoint: max_time takes effect after the step.
            self._stop_after_step = self._stop_after_step or trainer.should_stop
            trainer.should_stop = False
            return
        trainer.should_stop = trainer.should_stop or self._stop_after_step
        if last_of_epoch:
            return
        step = trainer.global_step
        stops = trainer.should_stop and trainer.fit_loop._can_stop_early
        self._cut = stops or step == trainer.max_steps
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
        """Notes the place to go back to."""
        if not trainer.sanity_checking and batch_idx == dataloader_idx == 0:
            self._before_validation = copy.deepcopy(trainer.fit_loop.state_dict())
            # a batch begun and not done: where Lightning goes back into a validation, here to its first batch
            progress = self._before_validation["epoch_loop.val_loop.batch_progress"]["total"]
            progress["started"] = progress["ready"]

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Save and end after a signal, unless gradients of a part of a step are waiting."""
        if trainer.sanity_checking:
            return
        self._signal = self._signal or self.interruption.agreed(trainer)
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        within_step = batches % trainer.accumulate_grad_batches and batches < trainer.num_training_batches
        if self._signal and not within_step:
            self._save(trainer)
            self._settle(trainer)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The place before validation is behind."""
        self._before_validation = None

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """In the midst of a validation: the progress of before it."""
        if self._before_validation is not None:
            checkpoint["loops"]["fit_loop"] = self._before_validation

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves, unless the epoch was cut and is saved as far as it came."""
        if not self._cut:
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The last checkpoint gets its name, or the run fails."""
        self.interruption.stop_listening()
        self._commit(trainer)
        self.files.finish(self.spare)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """What is complete gets its name, unless a validation that it takes for done is not."""
        self.interruption.stop_listening()
        if self._before_validation is not None:
            self.files.discard()
        self._commit(trainer)
        try:
            self.files.finish(self.spare)
        except OSError as error:
            rank_zero_warn(str(error.strerror))

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.files.last, weights_only=False)

    def _commit(self, trainer: pl.Trainer) -> None:
        """Names what was saved, if anything; the rows of before it are on the disk by then."""
        if not self.files.waiting:
            return
        for logger in trainer.loggers:
            if isinstance(logger, RunLog):
                logger.sync()
        self.files.commit()

    def _settle(self, trainer: pl.Trainer) -> None:
        """Names what was saved, then does what a signal asked for."""
        self._commit(trainer)
        number, self._signal = self._signal, 0
        if self.interruption.ends(number):
            self.files.finish(self.spare)
        self.interruption.act(number)
        if number:  # a requeue's own checkpoint, which last.ckpt equals
            self.folder.remove_requeued()
