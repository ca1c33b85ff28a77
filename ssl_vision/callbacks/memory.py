"""Logs how much memory a run has needed."""

import resource
import sys

import pytorch_lightning as pl
import torch

_MB = 2**20
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in what the system counts resident memory in."""


class Memory(pl.Callback):
    """Logs ``memory/process_mb`` at the end of every epoch, and on a CUDA device ``memory/device_mb``.

    Both are peaks so far, in MiB, on the first process: of what the system holds in memory for it, and of
    what its tensors take on the device.
    """

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Logs the peaks."""
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
        pl_module.log("memory/process_mb", held / _MB)
        device = trainer.strategy.root_device
        if device.type == "cuda":
            pl_module.log("memory/device_mb", torch.cuda.max_memory_allocated(device) / _MB)
