"""Statistics of the training objective at the steps that the trainer logs."""

import math
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from torch import Tensor, nn

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.errors import InputError
from ssl_vision.objectives import Objective, as_objective

BINS = 80
"""Number of bins, equally wide in d = log(W / (1 − W)), which resolves weights near 0 and near 1."""

_LIMIT = 10.0
"""The bins divide −10 to 10; the first and the last also contain everything beyond."""


def submodule_at(pl_module: pl.LightningModule, path: str) -> nn.Module:
    """Return the submodule at a path, such as ``"backbone"`` or ``"student.encoder"``.

    Raises:
        InputError: the module has none.
    """
    try:
        return pl_module.get_submodule(path)
    except AttributeError as error:
        raise InputError(f"{type(pl_module).__name__} has no submodule {path!r}: {error}") from error


def objective_at(pl_module: pl.LightningModule, path: str) -> Objective:
    """Return the objective at a submodule path.

    Raises:
        InputError: the module has no such submodule.
    """
    return as_objective(submodule_at(pl_module, path))


def is_logged(trainer: pl.Trainer) -> bool:
    """Return True if the trainer logs the current step."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return bool(every) and trainer.global_step % every == 0


def is_due(trainer: pl.Trainer, every: int, batch_idx: int) -> bool:
    """Return True if the batch completes a step that is a multiple of ``every``; never if it is 0."""
    accumulated = (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch
    return bool(every) and not accumulated and trainer.global_step % every == 0


class ObjectiveStatistics(pl.Callback):
    """Logs the objective's ``statistics()``: ``train/temperature``, ``train/alignment``, ``train/weight_…``.

    They are computed only at the steps that the trainer logs (``trainer.log_every_n_steps``). Nothing is
    logged for a module that is not an `Objective`.

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
        if is_logged(trainer) and (statistics := objective_at(pl_module, self.path).statistics()):
            # One copy to the host, because Lightning would read each of them several times.
            values = torch.stack(list(statistics.values())).cpu()
            for key, value in zip(statistics, values, strict=True):
                pl_module.log(f"train/{key}", value, prog_bar=key == "temperature")


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


def names() -> list[str]:
    """Column of each bin: ``weight/`` and the lower end of the bin as a value of W.

    Example:
        >>> names()[0], names()[40], names()[-1]
        ('weight/0', 'weight/0.5', 'weight/0.999942')
    """
    ends = (2 * _LIMIT * place / BINS - _LIMIT for place in range(1, BINS))
    return ["weight/0", *(f"weight/{1 / (1 + math.exp(-end)):.6g}" for end in ends)]


def shares(weights: Tensor) -> Tensor:
    """Share of the weights in each bin, shape (BINS,).

    A weight on the border of two bins is in the upper one. Weights that are not finite are in none.

    Args:
        weights: weights from 0 to 1, shape (N,).
    """
    bins = weights.float().logit().add(_LIMIT).mul(BINS / (2 * _LIMIT)).floor().clamp(0, BINS - 1)
    # torch.histc has no deterministic form on CUDA
    return (bins == torch.arange(BINS, device=weights.device)[:, None]).sum(dim=1) / len(weights)


class WeightHistogram(pl.Callback):
    """Writes the histogram of the anchors' weights W = sigmoid(d) at every step that the trainer logs.

    A row has the share of the anchors in each of 80 bins, which are equally wide in the logit margin d, from
    W = 0 to W = 1. If gradients are accumulated, it is the histogram of the last batch of the step. An
    objective without a logit margin d has no rows.

    Args:
        log: logger of the rows, such as Lightning's ``CSVLogger``; in a run directory, they are in
            ``weights.csv``.
        objective: submodule path of the training objective.

    Raises:
        InputError: in training, the module has no such submodule.

    Example:
        >>> import pytorch_lightning as pl
        >>> log = pl.loggers.CSVLogger("logs")
        >>> trainer = pl.Trainer(callbacks=[WeightHistogram(log)], logger=False, enable_checkpointing=False)
    """

    def __init__(self, log: Logger, objective: str = "objective") -> None:
        self.log_rows, self.path = log.log_metrics, objective

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the histogram of the step, on the first process."""
        step = trainer.global_step
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not step or not trainer.is_global_zero or not is_due(trainer, every, batch_idx):
            return
        weights = objective_at(pl_module, self.path).anchor_weights()
        if len(weights):
            row = dict(zip(names(), shares(weights).tolist(), strict=True))
            self.log_rows({"epoch": float(trainer.current_epoch), **row}, step=step - 1)
