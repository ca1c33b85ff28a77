"""Values and gradients of other objectives on the embeddings of a training step."""

from collections import Counter

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ssl_vision.callbacks.objective_eval import (
    ObjectiveEvaluation,
    check_embedding_objective,
    detached_copy,
    loss_of,
)
from ssl_vision.objectives import Objective, as_objective


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
        every: steps between measurements; a run with fewer steps logs nothing and warns at its end.
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
