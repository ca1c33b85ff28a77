"""Statistics of the objective: current temperature, alignment, quantiles of W."""

from typing import Any

import pytorch_lightning as pl
import torch

from ssl_vision.callbacks.objective_eval import objective_at, warn_if_too_short
from ssl_vision.descriptions import DescribedMetric


class ObjectiveStatistics(pl.Callback):
    """Logs the objective's ``statistics()``: ``train/temperature``, ``train/alignment``, ``train/weight_…``.

    They are computed only at the steps that the trainer logs (``trainer.log_every_n_steps``). A run with
    fewer steps warns at its end. Nothing is logged for a module that is not an `Objective`.

    Args:
        objective: submodule path of the training objective.

    Raises:
        InputError: in training, the module has no such submodule.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = ObjectiveStatistics(objective="criterion")
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(self, objective: str = "objective") -> None:
        self.path = objective

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the statistics of the step."""
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not every or trainer.global_step % every:
            return
        if statistics := objective_at(pl_module, self.path).statistics():
            # One copy to the host, because Lightning would read each of them several times.
            values = torch.stack(list(statistics.values())).cpu()
            for key, value in zip(statistics, values, strict=True):
                pl_module.log(f"train/{key}", value, prog_bar=key == "temperature")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Warn if the run was too short."""
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        warn_if_too_short(trainer, self, every, "log_every_n_steps")


class TrainingTemperature(DescribedMetric):
    """Temperature of the objective."""

    metric_name = "train/temperature"
    title = "temperature τ"
    sections = ("curves",)
    note = "This is the temperature that the objective uses."
    order = 90


class TrainingAlignment(DescribedMetric):
    """Cosine of positive pairs in training."""

    metric_name = "train/alignment"
    title = "similarity of positive pairs"
    sections = ("curves",)
    needs = ("views",)
    note = "This is the mean cosine of positive pairs in training; higher values mean closer views."
    order = 100
