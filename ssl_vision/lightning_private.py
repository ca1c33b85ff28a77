"""What exact resume and Weights & Biases need of Lightning beyond its public interface, in one place.

Lightning cannot continue a run exactly within an epoch through its public interface (its issues 18780 and
19764). A test names each attribute that is used here, and fails when a release of Lightning drops it.
"""

import copy
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import WandbLogger


def batches_of_epoch(trainer: pl.Trainer) -> int:
    """Return the number of batches of the current epoch on which training has started."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)


def restarted_within_epoch(trainer: pl.Trainer) -> bool:
    """Return True if training was continued from a checkpoint within an epoch."""
    return bool(trainer.fit_loop.restarted_mid_epoch)


def stops_after_batch(trainer: pl.Trainer) -> bool:
    """Return True if training stops after this batch, whether or not the epoch is complete."""
    stops_early: bool = trainer.should_stop and trainer.fit_loop._can_stop_early
    return stops_early or trainer.global_step == trainer.max_steps


def validate_after(trainer: pl.Trainer, batches: int) -> None:
    """Have Lightning validate after a number of batches of this epoch."""
    vars(trainer).update(check_val_every_n_epoch=1, val_check_batch=batches, _val_check_time_interval=None)


def validate_now(trainer: pl.Trainer) -> None:
    """Validate within ``fit``, outside of Lightning's schedule, and log nothing."""
    if not trainer.enable_validation:
        return
    trainer.validating = True
    connector: Any = trainer._logger_connector
    connector.log_metrics = lambda *args, **kwargs: None
    try:
        trainer.fit_loop.epoch_loop.val_loop.run()
    finally:
        del connector.log_metrics
    trainer.training = True


def progress_before_validation(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the progress of a run before a validation, with which the run continues."""
    progress: dict[str, Any] = copy.deepcopy(trainer.fit_loop.state_dict())
    # With a batch started but not completed, Lightning resumes within validation: at its first batch.
    total = progress["epoch_loop.val_loop.batch_progress"]["total"]
    total["started"] = total["ready"]
    return progress


def replace_progress(checkpoint: dict[str, Any], progress: dict[str, Any]) -> None:
    """Replace the progress in a checkpoint."""
    checkpoint["loops"]["fit_loop"] = progress


def epochs_done(checkpoint: dict[str, Any]) -> int:
    """Return the number of epochs whose batches are done; "completed" is counted after Lightning saves."""
    return int(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])


def step_of_next_row(trainer: pl.Trainer) -> int:
    """Return the step under which Lightning logs its next row."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def count_optimizer_step(trainer: pl.Trainer) -> None:
    """Count a step of an optimizer that Lightning has not called."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()


def create_train_loader(trainer: pl.Trainer) -> None:
    """Create the data loader of the training images before training starts."""
    trainer.fit_loop.setup_data()


def take_sigterm(trainer: pl.Trainer) -> bool:
    """Return True if Lightning has received SIGTERM, and have it forget the signal."""
    connector = trainer._signal_connector
    received, connector.received_sigterm = connector.received_sigterm, False
    return received


def remove_anonymous(logger: WandbLogger) -> None:
    """Remove the setting ``anonymous``, which Lightning always passes to W&B, and about which W&B warns."""
    del logger._wandb_init["anonymous"]
