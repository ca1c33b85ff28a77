"""Logs what the objective's gradient does to the embeddings."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from ssl_vision.callbacks.beside import (
    check_every,
    due,
    embeddings,
    log,
    loss_of,
    of_embeddings,
    twin,
)
from ssl_vision.data import Batch
from ssl_vision.metrics import gradient_statistics
from ssl_vision.objectives import Anchors, Contrastive


class GradientDiagnostics(pl.Callback):
    """Logs ``gradient/…`` of the training step's embeddings: the gate, and `metrics.GradientStatistics`.

    ``gradient/gate`` is the mean GD: of a contrastive objective the derivative of an anchor's loss by its
    margin, W for InfoNCE; of hinges the share of anchors inside the margin; of another objective the share of
    embeddings that get a gradient. The rest is taken from autograd on the embeddings, whatever the objective;
    what only a function of cosines has is left out for others. Of RECLAIM it is the objective inside.

    Each time costs three evaluations of the objective on M = min(N, ``images``) images of the batch, one of
    them with embeddings of width D + 2M, and O(M² D); nothing goes through the network. The images are each
    other's negatives, so a larger batch is seen with fewer negatives than it trains with. With several
    processes each looks at its own images, and means are logged.

    Args:
        every: steps from one time to the next, of those that the trainer logs.
        images: M at most.

    Raises:
        ValueError: every is below 1, or images below 2.
        InputError: in training, the objective takes more than embeddings and labels, and has none inside.
    """

    def __init__(self, every: int = 50, images: int = 256) -> None:
        check_every(every)
        if images < 2:
            raise ValueError(f"images must be 2 or more, got {images}")
        self.every, self.images = every, images

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks whether it can be done."""
        of_embeddings(pl_module.objective)  # type: ignore[arg-type]

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Measures the embeddings that the batch's training step computed."""
        if not due(trainer, self.every, batch_idx):
            return
        objective = twin(of_embeddings(pl_module.objective))  # type: ignore[arg-type]
        labels = batch.labels[: self.images]
        z1, z2 = (z[: self.images] for z in embeddings(pl_module))
        found = gradient_statistics(loss_of(objective, labels), z1, z2)._asdict()
        found["gate"] = _gate(objective, z1, z2, labels)
        log(trainer, pl_module, {f"gradient/{key}": value for key, value in found.items()})


def _gate(objective: nn.Module, z1: Tensor, z2: Tensor, labels: Tensor) -> Tensor:
    """Mean GD."""
    seen: list[tuple[Tensor, Tensor]] = []

    def see(weight: nn.Module, anchors: tuple[Anchors], losses: Tensor) -> None:
        seen.append((anchors[0].margin, losses))

    if isinstance(objective, Contrastive):
        objective.weight.register_forward_hook(see)
    z = torch.cat([z1, z2]).requires_grad_()
    with torch.enable_grad():
        loss = loss_of(objective, labels)(*z.chunk(2))
    if seen:
        margin, losses = seen[0]
        return torch.autograd.grad(losses.sum(), margin)[0].mean()
    statistics = objective.statistics() if hasattr(objective, "statistics") else {}  # type: ignore[operator]
    for key in ("gate_mean", "active_share"):
        if key in statistics:
            gate: Tensor = statistics[key]
            return gate
    return (torch.autograd.grad(loss, z)[0] != 0).any(dim=1).to(z.dtype).mean()
