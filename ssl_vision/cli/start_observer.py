"""Callback that distinguishes errors of a checkpoint from errors of training."""

import pytorch_lightning as pl


class StartObserver(pl.Callback):
    """Records that the trainer has restored its checkpoint and has started.

    An error before that is an error of the checkpoint.

    Attributes:
        started: True once training, a sanity check or a validation has started.
    """

    started = False

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the first hook of a fit with a sanity check."""
        self.started = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the first hook of a fit without one."""
        self.started = True

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the first hook of a validation."""
        self.started = True
