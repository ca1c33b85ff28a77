"""Logs what the objective knows of itself: temperature in force, alignment, quantiles of W."""

from typing import Any

import pytorch_lightning as pl

from ssl_vision.objectives import Contrastive


class ObjectiveStatistics(pl.Callback):
    """Logs ``Contrastive.statistics()`` as ``train/temperature``, ``train/alignment``, ``train/weight_…``.

    They are read at the steps that the trainer logs (``trainer.log_every_n_steps``), so no other step
    pays for them. An objective of another kind logs nothing.
    """

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the statistics of the step."""
        objective = getattr(pl_module, "objective", None)
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not isinstance(objective, Contrastive) or not every or trainer.global_step % every:
            return
        for key, value in objective.statistics().items():
            pl_module.log(f"train/{key}", value, prog_bar=key == "temperature")
