"""Keeps how the gradient weight W is distributed over a batch's anchors, all through training."""

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from torch import Tensor

from ssl_vision.callbacks.objective_eval import objective_at

BINS = 20
"""Of [0, 1], equally wide."""


def names() -> list[str]:
    """Column of each bin: ``weight/`` and its lower end."""
    return [f"weight/{place / BINS:.2f}" for place in range(BINS)]


def shares(weights: Tensor) -> Tensor:
    """(BINS,) share of the values in each bin of [0, 1]; those that are not finite are in none.

    A value on the border of two bins is in the upper one, 1 in the last.
    """
    weights = weights.float()
    bins = (weights * BINS).floor().clamp(max=BINS - 1)  # torch.histc has no deterministic form on CUDA
    counted = (bins == torch.arange(BINS, device=weights.device)[:, None]) & (weights <= 1)
    return counted.sum(dim=1) / len(weights)


class WeightHistogram(pl.Callback):
    """Writes the histogram of W = sigmoid(d) of every step that the trainer logs, 20 shares a row.

    An objective without a logit margin d leaves no rows.

    Args:
        log: takes the rows; a ``RunLog`` puts them into ``weights.csv``.
        objective: submodule path of the training objective.
    """

    def __init__(self, log: Logger, objective: str = "objective") -> None:
        self.log_rows, self.path = log.log_metrics, objective

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts the anchors of the step, on the first process."""
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        step = trainer.global_step
        if not every or not step or step % every or not trainer.is_global_zero:
            return
        weights = objective_at(pl_module, self.path).anchor_weights()
        if len(weights):
            found = dict(zip(names(), shares(weights).tolist(), strict=True))
            self.log_rows({"epoch": float(trainer.current_epoch), **found}, step=step - 1)
