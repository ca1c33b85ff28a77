"""Logs what other objectives would say of the embeddings that one trains."""

from collections import Counter
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ssl_vision.callbacks.beside import (
    check_every,
    check_objective,
    due,
    embeddings,
    log,
    loss_of,
    of_embeddings,
    twin,
)
from ssl_vision.data import Batch


class ShadowObjectives(pl.Callback):
    """Evaluates objectives on the training step's embeddings, which the run is the same without.

    For each, ``shadow/NAME/value``, ``shadow/NAME/gradient_norm``, the length of ∂L/∂z over all embeddings z
    of the batch as the network gives them, and ``shadow/NAME/cosine`` to the training objective's gradient
    are logged; the latter's own length is ``shadow/training/gradient_norm``. NAME is the class's; where a
    class is named twice, its later ones are NAME_2 and so on. A cosine with a gradient of zero is left out.
    Where RECLAIM trains, the training gradient is that of the objective inside.

    Each time costs one evaluation of every objective and one of the training objective; nothing goes through
    the network. With several processes each looks at its own images, and means are logged. What a shadow
    could learn (a temperature) stays as it is.

    Args:
        objectives: which.
        every: steps from one time to the next, of those that the trainer logs.

    Raises:
        ValueError: there are no objectives, or every is below 1.
        InputError: an objective takes more than embeddings and labels; in training, so does the run's, and
            has none inside.
    """

    def __init__(self, objectives: list[nn.Module], every: int = 50) -> None:
        check_every(every)
        if not objectives:
            raise ValueError("objectives: expected at least one")
        self.every = every
        self.objectives: dict[str, nn.Module] = {}
        seen: Counter[str] = Counter()
        for objective in objectives:
            check_objective(objective)
            name = type(objective).__name__
            seen[name] += 1
            self.objectives[name if seen[name] == 1 else f"{name}_{seen[name]}"] = twin(objective)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks whether it can be done."""
        of_embeddings(pl_module.objective)  # type: ignore[arg-type]

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tells the objectives which epoch is running, and brings them to the device."""
        for objective in self.objectives.values():
            objective.to(pl_module.device)
            if hasattr(objective, "set_epoch"):
                objective.set_epoch(trainer.current_epoch)  # type: ignore[operator]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Evaluates them on the embeddings that the batch's training step computed."""
        if not due(trainer, self.every, batch_idx):
            return
        z = torch.cat(embeddings(pl_module))
        training = twin(of_embeddings(pl_module.objective))  # type: ignore[arg-type]
        _, direction = _value_and_gradient(training, z, batch.labels)
        values = {"training/gradient_norm": direction.norm()}
        for name, objective in self.objectives.items():
            value, gradient = _value_and_gradient(objective, z, batch.labels)
            norm = gradient.norm()
            cosine = direction @ gradient / direction.norm() / norm
            values |= {f"{name}/value": value, f"{name}/gradient_norm": norm, f"{name}/cosine": cosine}
        log(trainer, pl_module, {f"shadow/{key}": value for key, value in values.items()})


def _value_and_gradient(objective: nn.Module, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by all embeddings, as one vector."""
    with torch.enable_grad():
        z = z.clone().requires_grad_()
        value = loss_of(objective, labels)(*z.chunk(2))
        return value.detach(), torch.autograd.grad(value, z)[0].flatten()
