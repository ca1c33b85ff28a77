"""A linear classifier that is trained together with the encoder."""

from collections.abc import Hashable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vision.callbacks.embedding import feature_vectors
from ssl_vision.callbacks.objective_eval import submodule_at
from ssl_vision.data import QUERIES, Batch
from ssl_vision.errors import InputError
from ssl_vision.methods import Layers, Method
from ssl_vision.methods.finite_gradients import not_finite


class OnlineProbe(pl.Callback):
    """Trains a linear layer on the encoder's features of each training batch, as solo-learn and lightly do.

    The layer is trained on both augmented views of every labelled image, with softmax cross-entropy and SGD
    with a constant learning rate, from weights of zero. No gradient flows back to the encoder, so the run is
    the same without it. At the steps that the trainer logs, the callback logs ``train/online_top1`` of the
    batch's views before the update, and at validation ``val/online_top1``. Its state is in the checkpoint.

    An online accuracy is not comparable with that of a linear evaluation, because the features change while
    the layer is trained, and are those of augmented images. ``ssl-vision evaluate`` runs a linear evaluation.

    **In your own LightningModule**, give the path of its encoder and the place of the labels in a batch. The
    features are those that the encoder returns in the validation step and in the training step, which calls
    it once for all views or once for each:

        OnlineProbe(encoder="backbone", num_classes=10, labels=1)

    Args:
        lr: learning rate.
        momentum: momentum of SGD.
        weight_decay: L2 penalty on weights and biases.
        encoder: submodule path of the encoder; None for this package's methods.
        num_classes: number of classes; None uses that of the data module.
        labels: index or key of the labels (N,) in a batch; used with ``encoder``. Images labelled -1 are
            ignored.

    Raises:
        ValueError: an option is out of range, or ``encoder`` is given without ``num_classes``.
        InputError: in training, the module has no such submodule, the encoder was not called or does not
            return (N, F) features, or the batch has no labels for them.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = OnlineProbe(encoder="backbone", num_classes=10, labels=1)
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    layer: nn.Linear
    _optimizer: torch.optim.SGD

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        encoder: str | None = None,
        num_classes: int | None = None,
        labels: Hashable = 1,
    ) -> None:
        if not lr > 0 or not 0 <= momentum < 1 or not weight_decay >= 0:
            raise ValueError(
                "lr must be positive, momentum in [0, 1) and weight_decay not negative, "
                f"got {lr}, {momentum} and {weight_decay}"
            )
        if encoder is not None and num_classes is None:
            raise ValueError("num_classes is required with encoder")
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.encoder, self.num_classes, self.labels = encoder, num_classes, labels
        self._made = False
        self._features: list[Tensor] = []
        self._validation = torch.zeros(2)
        self._hook: Any = None
        self._loaded: dict[str, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Record the outputs of the encoder given by its path."""
        if stage == "fit":
            self._made = False
        if self.encoder is not None and stage == "fit":
            self._hook = submodule_at(pl_module, self.encoder).register_forward_hook(self._record)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Create the layer if the width of the features is known."""
        if self.encoder is None:
            if not isinstance(pl_module, Method):
                raise InputError(
                    f"OnlineProbe requires encoder, the submodule path in {type(pl_module).__name__}"
                )
            classes = self.num_classes or trainer.datamodule.num_classes  # type: ignore[attr-defined]
            if not classes:
                raise InputError("online_probe: the train split has no labels")
            self._make(pl_module.backbone.num_features, classes, pl_module.device)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Discard earlier features."""
        self._features.clear()

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
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and trainer.global_step % every == 0:
            correct, labelled = trainer.strategy.reduce(_counts(logits, labels), reduce_op="sum")
            if labelled:
                pl_module.log("train/online_top1", correct / labelled, sync_dist=True)

    def on_validation_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Discard earlier features."""
        self._features.clear()

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
        if not self._made or trainer.sanity_checking or dataloader_idx != QUERIES:
            return
        if self.encoder is None:
            plain: Layers = outputs["plain"]
            features, labels = plain.backbone.float(), batch.labels
        elif self._features:
            features, labels = self._recorded(batch)
        else:  # a validation step without the encoder
            return
        self._validation = self._validation + _counts(self.layer(features), labels)

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

    def _make(self, width: int, classes: int, device: torch.device) -> None:
        self.layer = nn.utils.skip_init(nn.Linear, width, classes, device=device)  # draws no random numbers
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self._optimizer = torch.optim.SGD(
            self.layer.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        if self._loaded:
            self.layer.load_state_dict(self._loaded["layer"])
            self._optimizer.load_state_dict(self._loaded["optimizer"])
        self._made, self._loaded = True, {}

    def _record(self, module: nn.Module, args: Any, features: Any) -> None:
        self._features.append(feature_vectors(features, str(self.encoder)).detach())

    def _training_pair(self, pl_module: pl.LightningModule, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the features and labels of all views of a batch."""
        if self.encoder is None and isinstance(pl_module, Method) and isinstance(batch, Batch):
            views = pl_module.features
            return torch.cat(views).float(), batch.labels.repeat(len(views))
        features, labels = self._recorded(batch)
        if self.num_classes is not None and not self._made:
            if (labels < -1).any() or (labels >= self.num_classes).any():
                raise InputError(f"OnlineProbe: expected labels -1 to {self.num_classes - 1} (num_classes)")
            self._make(features.shape[1], self.num_classes, features.device)
        return features, labels

    def _recorded(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the features that the encoder has returned for this batch, and their labels."""
        if not self._features:
            raise InputError(f"OnlineProbe: the training step did not call {self.encoder}")
        features = torch.cat(self._features)
        try:
            labels = torch.as_tensor(batch[self.labels], device=features.device).long()
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"OnlineProbe: the batch has no labels at {self.labels!r}") from error
        if labels.ndim != 1 or not len(labels) or len(features) % len(labels):
            raise InputError(
                f"OnlineProbe: {len(features)} features do not match labels {tuple(labels.shape)}"
            )
        return features, labels.repeat(len(features) // len(labels))


def _counts(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of images that are classified correctly, and of those with a label, float32 (2,)."""
    return torch.stack([(logits.argmax(dim=1) == labels).sum(), (labels >= 0).sum()]).float()
