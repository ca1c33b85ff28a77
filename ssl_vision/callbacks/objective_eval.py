"""Evaluating an objective again on the embeddings of a training step, without changing the run."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor, nn

from ssl_vision.data import Batch
from ssl_vision.errors import InputError, check
from ssl_vision.lightning_private import step_of_next_row
from ssl_vision.objectives import Objective, as_objective


def objective_at(pl_module: pl.LightningModule, path: str) -> Objective:
    """Return the objective at a submodule path.

    Raises:
        InputError: the module has no such submodule.
    """
    return as_objective(submodule_at(pl_module, path))


def embedding_objective_at(pl_module: pl.LightningModule, path: str) -> Objective:
    """Return the objective at a submodule path, or its inner objective of embeddings alone.

    Raises:
        InputError: the module has no such submodule, or it needs more than embeddings and labels.
    """
    objective = objective_at(pl_module, path).embedding_objective
    check_embedding_objective(objective)
    return objective


def check_embedding_objective(objective: Objective) -> None:
    """Check that an objective is a function of embeddings and labels.

    Raises:
        InputError: it needs more.
    """
    if more := sorted(set(objective.required_inputs) - {"labels"}):
        name = type(objective).__name__
        raise InputError(f"{name} is not a function of embeddings alone (it needs {', '.join(more)})")


def is_due(trainer: pl.Trainer, every: int, batch_idx: int) -> bool:
    """Return True if the batch completes a step that is a multiple of ``every``; never if it is 0."""
    accumulated = (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch
    return bool(every) and not accumulated and trainer.global_step % every == 0


def warn_if_too_short(trainer: pl.Trainer, callback: pl.Callback, every: int, option: str = "every") -> None:
    """Warn at the end of a run that has fewer steps than a callback's interval, which ``option`` sets."""
    if trainer.global_step < every:
        rank_zero_warn(
            f"{type(callback).__name__} logged nothing: {option} is {every}, and the run has only "
            f"{trainer.global_step} steps"
        )


def detached_copy(objective: Objective) -> Objective:
    """Return a copy of the objective in its current state, which uses only this process's embeddings."""
    other = copy.deepcopy(objective)
    other.gather = False
    return other


def loss_of(objective: Objective, labels: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the objective as a function of embeddings, given the labels of the images.

    Raises:
        InputError: the objective needs labels, and there are none.
    """
    if "labels" in objective.required_inputs and labels is None:
        raise InputError(f"{type(objective).__name__} needs labels, which the batches do not have")
    inputs = {"labels": labels} if "labels" in objective.required_inputs else {}

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        value: Tensor = objective(z1, z2, **inputs)
        return value

    return loss


class ObjectiveInputs:
    """The inputs of the last call of an objective in training, recorded by a forward pre-hook.

    Args:
        pl_module: the module that is trained.
        path: submodule path of its objective, which is called with the embeddings of both views first.

    Raises:
        InputError: the module has no such submodule.
    """

    def __init__(self, pl_module: pl.LightningModule, path: str) -> None:
        self.path = path
        self._module = submodule_at(pl_module, path)
        self._inputs: tuple[Any, ...] = ()
        self._labels: Tensor | None = None
        self._handle = self._module.register_forward_pre_hook(self._record, with_kwargs=True)

    def remove(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings of both views, (N, D) each, float32 or float64, detached.

        Raises:
            InputError: the objective was not called with two tensors of one shape (N, D).
        """
        pair = self._inputs[:2]
        if len(pair) < 2 or not all(isinstance(z, Tensor) and z.ndim == 2 for z in pair):
            raise InputError(f"{self.path} was not called with the embeddings of two views, (N, D) each")
        z1, z2 = (z.detach() if z.dtype == torch.float64 else z.detach().float() for z in pair)
        return z1, z2

    def labels(self, batch: Any) -> Tensor | None:
        """Return the labels of the images (N,): those of the call, those of the batch, or None."""
        if self._labels is not None:
            return self._labels
        return batch.labels if isinstance(batch, Batch) else None

    def _record(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if module is self._module and torch.is_grad_enabled():  # not in a copy, nor in validation
            self._inputs, self._labels = args, kwargs.get("labels")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of the objective keeps the hook, which ignores it."""
        return self


class ObjectiveEvaluation(pl.Callback):
    """Base class of callbacks that evaluate objectives on the embeddings of a training step.

    Args:
        every: steps between measurements.
        objective: submodule path of the training objective.

    Raises:
        ValueError: every is below 1.
        InputError: in training, the module has no such submodule, or the objective needs more than embeddings
            and labels and has no inner objective.
    """

    def __init__(self, every: int, objective: str) -> None:
        check("every", every, at_least=1)
        self.every, self.path = every, objective
        self._inputs: ObjectiveInputs | None = None

    def measure(
        self, objective: Objective, z1: Tensor, z2: Tensor, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the values to log, given a copy of the training objective and the inputs of its step."""
        raise NotImplementedError

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start to record the inputs of the training objective."""
        embedding_objective_at(pl_module, self.path)
        self._inputs = ObjectiveInputs(pl_module, self.path)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the hook, and warn if the run was too short."""
        if self._inputs is not None:
            self._inputs.remove()
        warn_if_too_short(trainer, self, self.every)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure the embeddings of the batch's training step."""
        if self._inputs is None or not is_due(trainer, self.every, batch_idx):
            return
        objective = detached_copy(embedding_objective_at(pl_module, self.path))
        with isolate_rng():  # an objective may draw random numbers
            values = self.measure(objective, *self._inputs.embeddings(), self._inputs.labels(batch))
        log(trainer, values)


def log(trainer: pl.Trainer, values: dict[str, Tensor]) -> None:
    """Log scalars of the step as means over the processes; omit those that are NaN in any process.

    They are passed to the loggers directly, as Lightning's own callbacks do: ``LightningModule.log`` would
    repeat them at every later logged step of the epoch.
    """
    stacked = torch.stack([value.float() for value in values.values()])
    means: Any = trainer.strategy.reduce(stacked, reduce_op="mean")
    defined = {key: mean for key, mean in zip(values, means.tolist(), strict=True) if not math.isnan(mean)}
    trainer.callback_metrics.update({key: torch.tensor(mean) for key, mean in defined.items()})
    step = step_of_next_row(trainer)
    for logger in trainer.loggers:
        logger.log_metrics(defined | {"epoch": trainer.current_epoch}, step=step)


def submodule_at(pl_module: pl.LightningModule, path: str) -> nn.Module:
    """Return the submodule at a path, such as ``"backbone"`` or ``"student.encoder"``.

    Raises:
        InputError: the module has none.
    """
    try:
        return pl_module.get_submodule(path)
    except AttributeError as error:
        raise InputError(f"{type(pl_module).__name__} has no submodule {path!r}: {error}") from error
