"""An objective called beside the training step, without a trace in the run."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ssl_vision.errors import InputError


def check_every(every: int) -> None:
    """Refuses a number of steps below 1.

    Raises:
        ValueError: naming it.
    """
    if every < 1:
        raise ValueError(f"every must be 1 or more, got {every}")


def check_objective(objective: nn.Module) -> None:
    """Refuses an objective that is called with more than embeddings and labels.

    Raises:
        InputError: naming it and what it wants.
    """
    if more := _wanted_besides(objective):
        name = type(objective).__name__
        raise InputError(f"{name} is no function of embeddings alone (it wants {', '.join(more)})")


def of_embeddings(objective: nn.Module) -> nn.Module:
    """The objective; or, of one that wants more than embeddings and labels, the one that it adds to.

    Raises:
        InputError: there is none.
    """
    inside = getattr(objective, "objective", None)
    if _wanted_besides(objective) and isinstance(inside, nn.Module):
        return of_embeddings(inside)
    check_objective(objective)
    return objective


def _wanted_besides(objective: nn.Module) -> list[str]:
    return sorted(set(getattr(objective, "wants", ())) - {"labels"})


def due(trainer: pl.Trainer, every: int, batch_idx: int) -> bool:
    """Whether the batch ends a step, and this is one in ``every`` that the trainer logs, too."""
    logged: Any = trainer.log_every_n_steps  # type: ignore[attr-defined]
    accumulated = (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch
    return bool(logged) and not accumulated and trainer.global_step % math.lcm(every, logged) == 0


def twin(objective: nn.Module) -> nn.Module:
    """A copy of the objective as it is, which looks at this process's embeddings alone."""
    other = copy.deepcopy(objective)
    if hasattr(other, "gather"):
        other.gather = False  # type: ignore[assignment]
    return other


def loss_of(objective: nn.Module, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The objective as a function of embeddings, given the images' labels."""
    given = {"labels": labels} if "labels" in getattr(objective, "wants", ()) else {}

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        value: Tensor = objective(z1, z2, **given)
        return value

    return loss


def embeddings(pl_module: pl.LightningModule) -> tuple[Tensor, Tensor]:
    """Both views' embeddings in the last training step, (N, D) each, float32 or float64."""
    z1, z2 = (z if z.dtype == torch.float64 else z.float() for z in pl_module.embeddings)  # type: ignore[union-attr]
    return z1, z2


def log(trainer: pl.Trainer, pl_module: pl.LightningModule, values: dict[str, Tensor]) -> None:
    """Logs scalars, as means over the processes; what is NaN in one of them is left out."""
    together = torch.stack([value.float() for value in values.values()])
    means: Any = trainer.strategy.reduce(together, reduce_op="mean")
    for key, value in zip(values, means.tolist(), strict=True):
        if not math.isnan(value):
            pl_module.log(key, value)
