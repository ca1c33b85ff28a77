"""Logs the values and gradients of other objectives on the embeddings of a training step."""

from collections import Counter
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ssl_vision.callbacks.objective_eval import (
    ObjectiveInputs,
    check_embedding_objective,
    check_every,
    detached_copy,
    embedding_objective_at,
    is_due,
    log,
    loss_of,
)
from ssl_vision.objectives import Objective, as_objective


class ShadowObjectives(pl.Callback):
    """Evaluates objectives on the training step's embeddings, which the run is the same without.

    For each, ``shadow/NAME/value``, ``shadow/NAME/gradient_norm``, the length of ∂L/∂z over all embeddings z
    of the batch as the network gives them, and ``shadow/NAME/cosine`` to the training objective's gradient
    are logged; the latter's own length is ``shadow/training/gradient_norm``. NAME is the class's; where a
    class is named twice, its later ones are NAME_2 and so on. A cosine with a gradient of zero is left out.
    Where RECLAIM trains, the training gradient is that of the objective inside.

    It works in any LightningModule that calls its objective with the embeddings of both views first.

    Each time costs one evaluation of every objective and one of the training objective; nothing goes through
    the network. With several processes each looks at its own images, and means are logged. What a shadow
    could learn (a temperature) stays as it is.

    Args:
        objectives: the objectives to evaluate.
        every: steps from one time to the next, of those that the trainer logs.
        objective: submodule path of the training objective.

    Raises:
        ValueError: there are no objectives, or every is below 1.
        InputError: an objective needs more than embeddings and labels; in training, so does the run's, and
            has none inside, or the module has no submodule of that path.
    """

    def __init__(self, objectives: list[nn.Module], every: int = 50, *, objective: str = "objective") -> None:
        check_every(every)
        if not objectives:
            raise ValueError("objectives: expected at least one")
        self.every, self.path = every, objective
        self.objectives: dict[str, Objective] = {}
        self._inputs: ObjectiveInputs | None = None
        count: Counter[str] = Counter()
        for each in objectives:
            shadow = as_objective(each)
            check_embedding_objective(shadow)
            name = type(each).__name__
            count[name] += 1
            self.objectives[name if count[name] == 1 else f"{name}_{count[name]}"] = detached_copy(shadow)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin to read the inputs of the training objective."""
        embedding_objective_at(pl_module, self.path)
        self._inputs = ObjectiveInputs(pl_module, self.path)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the hook."""
        if self._inputs is not None:
            self._inputs.remove()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell the objectives which epoch is running, and move them to the device."""
        for objective in self.objectives.values():
            objective.to(pl_module.device)
            objective.set_epoch(trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Evaluate them on the embeddings of the batch's training step."""
        if self._inputs is None or not is_due(trainer, self.every, batch_idx):
            return
        z, labels = torch.cat(self._inputs.embeddings()), self._inputs.labels(batch)
        training = detached_copy(embedding_objective_at(pl_module, self.path))
        _, direction = _value_and_gradient(training, z, labels)
        values = {"training/gradient_norm": direction.norm()}
        for name, objective in self.objectives.items():
            value, gradient = _value_and_gradient(objective, z, labels)
            norm = gradient.norm()
            cosine = direction @ gradient / direction.norm() / norm
            values |= {f"{name}/value": value, f"{name}/gradient_norm": norm, f"{name}/cosine": cosine}
        log(trainer, pl_module, {f"shadow/{key}": value for key, value in values.items()})


def _value_and_gradient(objective: Objective, z: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by all embeddings, as one vector."""
    with torch.enable_grad():
        z = z.clone().requires_grad_()
        value = loss_of(objective, labels)(*z.chunk(2))
        return value.detach(), torch.autograd.grad(value, z)[0].flatten()
