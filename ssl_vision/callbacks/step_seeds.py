"""Random numbers of training steps that do not depend on earlier steps."""

from typing import Any

import pytorch_lightning as pl
import torch

from ssl_vision.data.random import Stream, fold


class StepSeeds(pl.Callback):
    """Seeds torch's generators at every training batch with a function of (seed, epoch, batch, process).

    The numbers that a step draws, such as those of dropout, are then the same in a run that was interrupted
    and continued, as the order of the images and their views are.

    Args:
        seed: seed of the run.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = StepSeeds(seed=0)
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed the generators of the CPU and of the module's CUDA device, without a synchronisation."""
        seed = fold(self.seed, Stream.STEPS, trainer.current_epoch, batch_idx, trainer.global_rank)
        torch.default_generator.manual_seed(seed)
        if pl_module.device.type == "cuda":
            torch.cuda.default_generators[pl_module.device.index or 0].manual_seed(seed)
