"""A linear classifier that is trained together with the encoder."""

from collections.abc import Hashable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vision.callbacks.objective_statistics import is_logged
from ssl_vision.data import QUERIES
from ssl_vision.data.module import image_data
from ssl_vision.errors import InputError, check
from ssl_vision.methods.optimizer import not_finite


class OnlineProbe(pl.Callback):
    """Trains a linear layer on the encoder's features of each training batch, as solo-learn and lightly do.

    The layer is trained on both augmented views of every labelled image, with softmax cross-entropy and SGD
    with a constant learning rate, from weights of zero. No gradient flows back to the encoder, so the run is
    the same without it. At the steps that the trainer logs, the callback logs ``train/online_top1`` of the
    batch's views before the update, and at validation ``val/online_top1``. Its state is in the checkpoint.

    An online accuracy is not comparable with that of a linear evaluation, because the features change while
    the layer is trained, and are those of augmented images. ``ssl-vision evaluate`` runs a linear evaluation.

    **In your own LightningModule**, set ``self.features`` in ``training_step`` to the features (N, F) of each
    view, without a gradient, and return ``{"plain": {"backbone": features}}`` from ``validation_step``, as
    the methods of this package do:

        def training_step(self, batch, batch_idx):
            first, second = (self.backbone(view) for view in batch[0])
            self.features = first.detach(), second.detach()
            ...

        OnlineProbe(num_classes=10, labels=1)

    Args:
        lr: learning rate.
        momentum: momentum of SGD.
        weight_decay: L2 penalty on weights and biases.
        num_classes: number of classes; None uses that of the data module.
        labels: index or key of the labels (N,) in a batch. Images labelled -1 are ignored.

    Raises:
        ValueError: an option is out of range.
        InputError: in training, the number of classes is unknown.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = OnlineProbe(num_classes=10)
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    reads_labels = True
    layer: nn.Linear
    _optimizer: torch.optim.SGD

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        num_classes: int | None = None,
        labels: Hashable = 1,
    ) -> None:
        check("lr", lr, above=0)
        check("momentum", momentum, at_least=0, below=1)
        check("weight_decay", weight_decay, at_least=0)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.num_classes, self.labels = num_classes, labels
        self._made = False
        self._classes = 0
        self._validation = torch.zeros(2)
        self._loaded: dict[str, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Determine the number of classes; create the layer of a run that continues."""
        data = image_data(trainer)
        self._classes = self.num_classes or (None if data is None else data.num_classes) or 0
        if not self._classes:
            raise InputError("online_probe: the train split has no labels, or num_classes is missing")
        self._made = False
        if self._loaded:
            self._make(self._loaded["layer"]["weight"].shape[1], pl_module.device)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take one step on the features that the training step computed."""
        features, labels = self._training_pair(pl_module, batch)
        logits = self.layer(features)
        labelled = (labels >= 0).sum().clamp(min=1)
        self._optimizer.zero_grad()
        (F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum") / labelled).backward()
        for parameter in self.layer.parameters():
            parameter.grad = trainer.strategy.reduce(parameter.grad, reduce_op="mean")  # type: ignore[assignment, arg-type]
        nonfinite = not_finite(self._optimizer) > 0
        for parameter in self.layer.parameters():  # features that are not finite are ignored
            parameter.grad = torch.where(nonfinite, 0.0, parameter.grad)  # type: ignore[arg-type]
        self._optimizer.step()
        if is_logged(trainer):
            correct, labelled = trainer.strategy.reduce(_counts(logits, labels), reduce_op="sum")
            if labelled:
                pl_module.log("train/online_top1", correct / labelled, sync_dist=True)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count the validation images that the layer classifies correctly."""
        if self._made and outputs and not trainer.sanity_checking and dataloader_idx == QUERIES:
            logits = self.layer(outputs["plain"]["backbone"].float())
            self._validation = self._validation + _counts(logits, batch[self.labels])

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reset the counts."""
        self._validation = torch.zeros(2, device=pl_module.device)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the accuracy of the layer on the labelled validation images of all processes."""
        correct, labelled = trainer.strategy.reduce(self._validation, reduce_op="sum")
        if labelled:
            pl_module.log("val/online_top1", correct / labelled, sync_dist=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the layer and its optimizer."""
        if not self._made:
            return self._loaded
        return {"layer": self.layer.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts."""
        self._loaded = state_dict

    def _make(self, width: int, device: torch.device) -> None:
        # draws no random numbers
        self.layer = nn.utils.skip_init(nn.Linear, width, self._classes, device=device)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self._optimizer = torch.optim.SGD(
            self.layer.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        if self._loaded:
            self.layer.load_state_dict(self._loaded["layer"])
            self._optimizer.load_state_dict(self._loaded["optimizer"])
        self._made, self._loaded = True, {}

    def _training_pair(self, pl_module: pl.LightningModule, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the features and labels of all views of a batch."""
        features = torch.cat(tuple(pl_module.features)).float()  # type: ignore[arg-type]
        labels: Tensor = batch[self.labels]
        if not self._made:
            self._make(features.shape[1], features.device)
        return features, labels.repeat(len(features) // len(labels))


def _counts(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of images that are classified correctly, and of those with a label, float32 (2,)."""
    return torch.stack([(logits.argmax(dim=1) == labels).sum(), (labels >= 0).sum()]).float()
