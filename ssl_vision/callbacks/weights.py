"""Histogram of the gradient weight W over the anchors of a batch, throughout training."""

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from torch import Tensor

from ssl_vision.callbacks.objective_eval import objective_at

BINS = 20
"""Number of bins of equal width in [0, 1]."""


def names() -> list[str]:
    """Return the column name of each bin: ``weight/`` and the bin's lower end."""
    return [f"weight/{place / BINS:.2f}" for place in range(BINS)]


def shares(weights: Tensor) -> Tensor:
    """Return the share of the values in each bin of [0, 1], (BINS,); non-finite values are in no bin.

    A value on the border of two bins is in the upper one, and 1 is in the last bin.
    """
    weights = weights.float()
    bins = (weights * BINS).floor().clamp(max=BINS - 1)  # torch.histc has no deterministic form on CUDA
    counted = (bins == torch.arange(BINS, device=weights.device)[:, None]) & (weights <= 1)
    return counted.sum(dim=1) / len(weights)


class WeightHistogram(pl.Callback):
    """Logs a histogram of W = sigmoid(d) with 20 bins at every step that the trainer logs.

    Nothing is logged for an objective without a logit margin d.

    Args:
        log: logger of the rows; a ``RunLog`` writes them to ``weights.csv``.
        objective: submodule path of the training objective.
    """

    def __init__(self, log: Logger, objective: str = "objective") -> None:
        self.log_rows, self.path = log.log_metrics, objective

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the histogram of the step, on the first process."""
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        step = trainer.global_step
        if not every or not step or step % every or not trainer.is_global_zero:
            return
        weights = objective_at(pl_module, self.path).anchor_weights()
        if len(weights):
            found = dict(zip(names(), shares(weights).tolist(), strict=True))
            self.log_rows({"epoch": float(trainer.current_epoch), **found}, step=step - 1)
