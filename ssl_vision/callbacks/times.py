"""Logs how long an epoch trains and how long it measures."""

import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch


class Times(pl.Callback):
    """Logs ``time/train_seconds`` of every epoch, and ``time/val_seconds`` where there is validation.

    Wall-clock seconds on the first process, validation not counted in training. A CUDA device is waited
    for at the ends of epochs and validations, and nowhere else.

    Args:
        clock: seconds, from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._epoch = self._validation = self._validated = 0.0

    def _now(self, trainer: pl.Trainer) -> float:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        return self.clock()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins an epoch that is continued, which Lightning does not start; its seconds count from here."""
        self._epoch, self._validated = self._now(trainer), 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins an epoch."""
        self._epoch, self._validated = self._now(trainer), 0.0

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins a validation."""
        self._validation = self._now(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ends it."""
        self._validated += self._now(trainer) - self._validation

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Logs the epoch's seconds."""
        values: dict[str, Any] = {"train_seconds": self._now(trainer) - self._epoch - self._validated}
        if self._validated:
            values["val_seconds"] = self._validated
        for key, value in values.items():
            pl_module.log(f"time/{key}", value)
