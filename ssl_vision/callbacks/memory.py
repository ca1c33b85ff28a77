"""Peak memory of a run."""

import resource
import sys

import pytorch_lightning as pl
import torch

_MB = 2**20
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of ``ru_maxrss``."""


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
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
        pl_module.log("memory/process_mb", peak / _MB)
        device = trainer.strategy.root_device
        if device.type == "cuda":
            pl_module.log("memory/device_mb", torch.cuda.max_memory_allocated(device) / _MB)
