"""Evaluating objectives again on the embeddings of a training step, without changing the run."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor, nn

from ssl_vision.callbacks.objective_statistics import is_due, objective_at, submodule_at
from ssl_vision.data import Batch
from ssl_vision.errors import InputError, check
from ssl_vision.lightning_private import step_of_next_row
from ssl_vision.metrics import gradient_statistics
from ssl_vision.objectives import Anchors, Objective, as_objective, redundancy, uniformity


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
    return partial(objective, labels=labels) if "labels" in objective.required_inputs else objective


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
        """Remove the hook."""
        if self._inputs is not None:
            self._inputs.remove()

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


class GradientDiagnostics(ObjectiveEvaluation):
    """Logs ``gradient/gate`` and `metrics.GradientStatistics` of the training step's embeddings.

    ``gradient/gate`` is a mean. For a contrastive objective, it is the derivative of an anchor's loss with
    respect to its logit margin, which is W for InfoNCE. For hinges, it is the share of anchors inside the
    margin, and for the other objectives of this package, which have no gate, the share of embeddings with a
    gradient. It is omitted for objectives of your own or of other libraries, unless they are `Contrastive`.
    The other values are computed from autograd's gradient of the embeddings. Those that are only defined for
    functions of cosines are omitted for other objectives. For RECLAIM, the objective inside it is measured.

    It works in any LightningModule that calls its objective with the embeddings of both views first.

    Each measurement costs three evaluations of the objective on M = min(N, ``images``) images of the batch,
    one of them with embeddings of width D + 2M, and O(M² D), but no pass through the network. Only these M
    images are negatives, so there are fewer than in training if the batch is larger. With several processes,
    each measures its own images, and the means are logged.

    Args:
        every: steps between measurements; a run with fewer steps logs nothing.
        images: maximum M.
        objective: submodule path of the training objective.

    Raises:
        ValueError: every is below 1, or images below 2.
        InputError: in training, the module has no such submodule, or the objective needs more than embeddings
            and labels and has no inner objective.

    Example:
        >>> from ssl_vision.objectives import InfoNCE
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> values = GradientDiagnostics(every=10).measure(InfoNCE(temperature=1.0), z1, z2, None)
        >>> round(float(values["gradient/gate"]), 4)
        0.6882
    """

    def __init__(self, every: int = 50, images: int = 256, *, objective: str = "objective") -> None:
        super().__init__(every, objective)
        check("images", images, at_least=2)
        self.images = images

    def measure(
        self, objective: Objective, z1: Tensor, z2: Tensor, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the statistics of the gradient of the first images."""
        z1, z2 = z1[: self.images], z2[: self.images]
        labels = None if labels is None else labels[: self.images]
        statistics = gradient_statistics(loss_of(objective, labels), z1, z2)._asdict()
        statistics["gate"] = _gate(objective, z1, z2, labels)
        return {f"gradient/{key}": value for key, value in statistics.items()}


def _gate(objective: Objective, z1: Tensor, z2: Tensor, labels: Tensor | None) -> Tensor:
    """Return the mean derivative of the loss with respect to the logit margin, its replacement, or NaN."""
    calls: list[tuple[Tensor, Tensor]] = []

    def record_call(margin_loss: nn.Module, anchors: tuple[Anchors], losses: Tensor) -> None:
        calls.append((anchors[0].logit_margin, losses))

    if objective.has_margin_loss:
        objective.get_submodule("margin_loss").register_forward_hook(record_call)
    z = torch.cat([z1, z2]).requires_grad_()
    with torch.enable_grad():
        loss = loss_of(objective, labels)(*z.chunk(2))
    if calls:
        logit_margin, losses = calls[0]
        return torch.autograd.grad(losses.sum(), logit_margin)[0].mean()
    statistics = objective.statistics()
    for key in ("gate_mean", "active_share"):
        if key in statistics:
            gate: Tensor = statistics[key]
            return gate
    if type(objective).__module__ not in (redundancy.__name__, uniformity.__name__):  # without a gate
        return z.new_tensor(torch.nan)
    return (torch.autograd.grad(loss, z)[0] != 0).any(dim=1).to(z.dtype).mean()


class ShadowObjectives(ObjectiveEvaluation):
    """Evaluates other objectives on the embeddings of the training step, without changing the run.

    For each objective, the callback logs ``shadow/NAME/value``; ``shadow/NAME/gradient_norm``, the norm of
    ∂L/∂z over all embeddings z of the batch, before normalisation; and ``shadow/NAME/cosine``, the cosine
    between this gradient and that of the training objective, whose norm is
    ``shadow/training/gradient_norm``. NAME is the name of the class; further objectives of the same class are
    NAME_2 and so on. The cosine is omitted if a gradient is zero. If RECLAIM is trained, the training
    gradient is that of the objective inside it.

    It works in any LightningModule that calls its objective with the embeddings of both views first.

    Each measurement costs one evaluation of every objective, including the training objective, but no pass
    through the network. With several processes, each measures its own images, and the means are logged.
    Parameters of these objectives, such as a learnable temperature, are not trained.

    Args:
        objectives: the objectives to evaluate.
        every: steps between measurements; a run with fewer steps logs nothing.
        objective: submodule path of the training objective.

    Raises:
        ValueError: there are no objectives, or every is below 1.
        InputError: an objective needs more than embeddings and labels; in training, the module has no such
            submodule, or its objective needs more than these and has no inner objective.

    Example:
        >>> from ssl_vision.objectives import DCL, InfoNCE
        >>> z1, z2 = torch.eye(4), torch.eye(4).roll(1, 0)
        >>> values = ShadowObjectives([DCL(temperature=1.0)]).measure(InfoNCE(temperature=1.0), z1, z2, None)
        >>> round(float(values["shadow/DCL/value"]), 4), round(float(values["shadow/DCL/cosine"]), 4)
        (2.0436, 1.0)
    """

    def __init__(self, objectives: list[nn.Module], every: int = 50, *, objective: str = "objective") -> None:
        super().__init__(every, objective)
        if not objectives:
            raise ValueError("objectives: expected at least one")
        self.objectives: dict[str, Objective] = {}
        count: Counter[str] = Counter()
        for module in objectives:
            other = as_objective(module)
            check_embedding_objective(other)
            name = type(module).__name__
            count[name] += 1
            self.objectives[name if count[name] == 1 else f"{name}_{count[name]}"] = detached_copy(other)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the objectives to the device, and set their epoch, because an epoch may be resumed within."""
        super().on_train_start(trainer, pl_module)
        for objective in self.objectives.values():
            objective.to(pl_module.device)
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the epoch of the objectives."""
        for objective in self.objectives.values():
            objective.set_epoch(trainer.current_epoch)

    def measure(
        self, objective: Objective, z1: Tensor, z2: Tensor, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the values and gradients of the objectives beside the training gradient."""
        z = torch.cat([z1, z2])
        _, direction = _value_and_gradient(objective, z, labels)
        values = {"training/gradient_norm": direction.norm()}
        for name, other in self.objectives.items():
            value, gradient = _value_and_gradient(other, z, labels)
            norm = gradient.norm()
            cosine = direction @ gradient / direction.norm() / norm
            values |= {f"{name}/value": value, f"{name}/gradient_norm": norm, f"{name}/cosine": cosine}
        return {f"shadow/{key}": value for key, value in values.items()}


def _value_and_gradient(objective: Objective, z: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the loss and its gradient with respect to all embeddings, as one vector."""
    with torch.enable_grad():
        z = z.clone().requires_grad_()
        value = loss_of(objective, labels)(*z.chunk(2))
        return value.detach(), torch.autograd.grad(value, z)[0].flatten()
