"""Axes, best values, alerts, artifacts and preemption of a training run at W&B."""

from typing import Any, Literal

import pytorch_lightning as pl
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.errors import Interrupted
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.wandb import KNN, best_value, log_files, remember

Artifacts = Literal["none", "last"]

_ALERTS = {"val/collapsed": "collapsed", "val/below_start": "worse than its initial weights"}
"""Causes of alerts by the metrics that report them."""


class WandbCallback(pl.Callback):
    """Adds axes, best values, alerts and artifacts to the W&B run of a training run.

    - Validation metrics have the epoch as their axis. The summary has the best kNN accuracy, with its epoch,
      in ``best/knn_top1`` and ``best/epoch``; ``val/knn_top1`` remains the last value.
    - An alert is sent if the representation has collapsed or is worse than the initial weights.
    - With ``artifacts``, the last checkpoint is uploaded as ``checkpoint-ID``, where ID is that of the W&B
      run, when the run ends.
    - A run that is ended by a signal is marked as preempting, so that a W&B sweep reschedules it.

    Only the first process acts.

    Args:
        logger: logger of the W&B run.
        folder: run directory.
        artifacts: checkpoint to upload.
    """

    def __init__(self, logger: WandbLogger, folder: RunFolder, *, artifacts: Artifacts = "none") -> None:
        self.logger, self.folder, self.artifacts = logger, folder, artifacts
        self._defined: set[str] = set()
        self._alerted: set[str] = set()

    @property
    def run(self) -> Any:
        """W&B run."""
        return self.logger.experiment

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember the W&B run, and define the epoch as an axis."""
        if not trainer.is_global_zero:
            return
        remember(self.folder, self.run)
        self.run.define_metric("epoch", hidden=True)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Define the axes of new metrics, and update the best value."""
        if not trainer.is_global_zero:
            return
        values = trainer.callback_metrics
        for name in sorted(values.keys() - self._defined):
            if name.startswith("val/"):
                self.run.define_metric(name, step_metric="epoch")
                self._defined.add(name)
        for name, cause in _ALERTS.items():
            if name in values and float(values[name]) and cause not in self._alerted:
                self._alerted.add(cause)
                text = f"{cause} at epoch {trainer.current_epoch + 1}"
                self.run.alert(title=f"{self.folder.path.name}: {cause}", text=text, level="WARN")
        if KNN in values:
            current = (float(values[KNN]), trainer.current_epoch + 1)
            self.run.summary.update(best_value(Run(self.folder.path), current))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Upload the last checkpoint."""
        if trainer.is_global_zero:
            self._upload_last()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """End the W&B run; mark one that is ended by a signal as preempting, and upload its checkpoint."""
        if not trainer.is_global_zero:
            return
        import wandb

        if isinstance(exception, Interrupted):
            self.run.mark_preempting()
            self._upload_last()
        wandb.finish(exit_code=128 + exception.signal if isinstance(exception, Interrupted) else 1)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End the W&B run, so that the next run is not logged into it."""
        if trainer.is_global_zero:
            import wandb

            wandb.finish()

    def _upload_last(self) -> None:
        """Upload the last checkpoint if asked to; training does not fail if W&B does not accept it."""
        if self.artifacts == "none":
            return
        import wandb

        try:
            checkpoint = read_checkpoint(self.folder.last)
            log_files(self.run, "checkpoint", [checkpoint.path], checkpoint=checkpoint, aliases=["last"])
        except (ValueError, wandb.Error, OSError) as error:
            rank_zero_warn(f"{self.folder.last} was not uploaded to W&B ({' '.join(str(error).split())})")
