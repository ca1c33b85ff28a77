"""A callback that interrupts the first of several processes."""

import os
import signal
from typing import Any

import pytorch_lightning as pl


class InterruptOnce(pl.Callback):
    """Sends SIGTERM to its own process at a batch, but only in the first process that reaches it.

    Args:
        marker: path of a file that the interrupted process creates.
        batch: number of batches of the run before it, including those of earlier epochs.
    """

    def __init__(self, marker: str, batch: int) -> None:
        self.marker = marker
        self.batch = batch

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.fit_loop.total_batch_idx + 1 < self.batch:
            return
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGTERM)
