"""A linear layer that is trained along with the backbone."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vision.data import QUERIES, Batch
from ssl_vision.errors import InputError
from ssl_vision.methods import Layers
from ssl_vision.methods.finite import not_finite


class OnlineProbe(pl.Callback):
    """Trains a linear layer on the backbone's features of each training batch, as solo-learn and lightly do.

    It sees both views of every labelled image, at its pretraining augmentation, and sends no gradient
    back: the run is the same without it. Softmax cross-entropy, SGD at a constant rate, weights that start
    at zero. Logs ``train/online_top1`` of the batch's views at the steps that the trainer logs, before the
    step, and ``val/online_top1`` of the queries' plain images. Its state is in the checkpoint.

    An online accuracy is not a linear evaluation: the layer follows features that move, and ends with the
    augmented ones of the last epochs. ``ssl-vision evaluate`` measures the other.

    Args:
        lr: step size.
        momentum: of SGD.
        weight_decay: of the weights.
    """

    layer: nn.Linear
    _optimizer: torch.optim.SGD

    def __init__(self, lr: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        if not lr > 0 or not 0 <= momentum < 1 or not weight_decay >= 0:
            raise ValueError(
                "lr must be positive, momentum in [0, 1) and weight_decay not negative, "
                f"got {lr}, {momentum} and {weight_decay}"
            )
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._loaded: dict[str, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes the layer, or takes up that of the checkpoint."""
        classes = trainer.datamodule.num_classes  # type: ignore[attr-defined]
        if not classes:
            raise InputError("online_probe: the train split has no labels")
        width: Any = pl_module.backbone.num_features  # type: ignore[union-attr]
        self.layer = nn.Linear(width, classes, device=pl_module.device)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self._optimizer = torch.optim.SGD(
            self.layer.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        if self._loaded:
            self.layer.load_state_dict(self._loaded["layer"])
            self._optimizer.load_state_dict(self._loaded["optimizer"])

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """One step on the features that the batch's training step computed."""
        features, labels = torch.cat(pl_module.features).float(), batch.labels.repeat(2)  # type: ignore[arg-type]
        logits = self.layer(features)
        known = (labels >= 0).sum().clamp(min=1)
        self._optimizer.zero_grad()
        (F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum") / known).backward()  # type: ignore[no-untyped-call]
        for parameter in self.layer.parameters():
            parameter.grad = trainer.strategy.reduce(parameter.grad, reduce_op="mean")  # type: ignore[assignment, arg-type]
        bad = not_finite(self._optimizer) > 0
        for parameter in self.layer.parameters():  # features that are not finite teach nothing
            parameter.grad = torch.where(bad, 0.0, parameter.grad)  # type: ignore[arg-type]
        self._optimizer.step()
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and trainer.global_step % every == 0:
            pl_module.log("train/online_top1", _right(logits, labels) / known, sync_dist=True)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Counts the queries that the layer classifies right."""
        if dataloader_idx == QUERIES and not trainer.sanity_checking:
            plain: Layers = outputs["plain"]
            top1 = _right(self.layer(plain.backbone.float()), batch.labels) / len(batch.labels)
            pl_module.log(
                "val/online_top1",
                top1,
                batch_size=len(batch.labels),
                add_dataloader_idx=False,
                sync_dist=True,
            )

    def state_dict(self) -> dict[str, Any]:
        """The layer and its optimizer."""
        return {"layer": self.layer.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps them until training starts."""
        self._loaded = state_dict


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(dim=1) == labels).sum()
