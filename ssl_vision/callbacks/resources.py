"""Time and memory of a run."""

import math
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch

from ssl_vision.lightning_private import batches_of_epoch

_MB = 2**20
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of ``ru_maxrss``."""


class Times(pl.Callback):
    """Logs the duration of every epoch, and of an incomplete epoch at the end of a run.

    | name | value |
    |---|---|
    | ``time/train_seconds`` | seconds of training since the epoch started or resumed, without validation |
    | ``time/train_batches`` | batches in these seconds |
    | ``time/val_seconds`` | seconds of validation, if there was one |
    | ``time/epochs`` | epochs since the start of the run, with a fraction for an incomplete epoch |

    Seconds are wall-clock time on the first process. A CUDA device is synchronised only at the ends of epochs
    and validations.

    Args:
        clock: function that returns seconds, from any origin.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = Times()
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._epoch = self._validation = self._validated = 0.0
        self._batches = 0

    def _now(self, trainer: pl.Trainer) -> float:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        return self.clock()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of a resumed epoch, for which Lightning calls no other hook."""
        self._start(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of an epoch."""
        self._start(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch."""
        self._batches += 1

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of a validation."""
        self._validation = self._now(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock of the validation."""
        self._validated += self._now(trainer) - self._validation

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the values of the epoch."""
        length = trainer.num_training_batches
        share = trainer.is_last_batch if length == math.inf else batches_of_epoch(trainer) / length
        values: dict[str, Any] = {
            "train_seconds": self._now(trainer) - self._epoch - self._validated,
            "train_batches": self._batches,
            "epochs": trainer.current_epoch + share,
        }
        if self._validated:
            values["val_seconds"] = self._validated
        for key, value in values.items():
            pl_module.log(f"time/{key}", value)

    def _start(self, trainer: pl.Trainer) -> None:
        self._epoch, self._validated, self._batches = self._now(trainer), 0.0, 0


class Memory(pl.Callback):
    """Logs ``memory/process_mb`` and, on a CUDA device, ``memory/device_mb`` at the end of every epoch.

    They are the peaks so far of the resident memory and of the device memory of tensors, in MiB, of the first
    process.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = Memory()
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the peaks."""
        pl_module.log("memory/process_mb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT / _MB)
        device = trainer.strategy.root_device
        if device.type == "cuda":
            pl_module.log("memory/device_mb", torch.cuda.max_memory_allocated(device) / _MB)
