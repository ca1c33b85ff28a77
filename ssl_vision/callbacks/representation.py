"""Metrics of the representation at every validation: kNN accuracy, alignment, uniformity and others."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from ssl_vision.data import BANK, QUERIES, ImageData
from ssl_vision.data.module import image_data
from ssl_vision.descriptions import LAYERS
from ssl_vision.errors import InputError, check
from ssl_vision.lightning_private import batches_of_epoch
from ssl_vision.metrics import (
    AccuracyDifference,
    Alignment,
    KNNAccuracy,
    LiDAR,
    Ranking,
    Representation,
    effective_rank,
)


class RepresentationMetrics(pl.Callback):
    """Logs metrics of the representation at every validation, from one pass over the bank and the queries.

    ``val/knn_top1`` is measured on the backbone. ``val/alignment`` (of two views of each query), and
    ``val/uniformity``, ``val/tolerance``, ``val/sensitivity``, ``val/same_cosine``, ``val/different_cosine``
    and ``val/rankme`` (of the queries' plain images) are measured on three layers: the backbone, without a
    suffix, and the layers of the projection head, with the suffixes ``_hidden`` and ``_projector``. Metrics
    that require labels are omitted if there are none.

    If the classes have superclasses, as in CIFAR-100, ``val/spearman`` and ``val/kendall`` measure how well
    the cosines of the queries' views rank pairs of the same image above those of the same class, of the same
    superclass, and of different superclasses.

    With ``extended``, ``val/effective_rank`` of the queries' plain images and ``val/lidar`` of two views of
    each query are measured on the backbone.

    ``trainer.check_val_every_n_epoch`` sets the interval, and ``data.val`` selects the images.
    ``time/val_images`` is the number of images that kNN classifies, and ``time/leave_one_out`` is 1 if each
    is classified by all others. ``time/knn_k`` is the size of a bank of fewer than k images.

    **In your own LightningModule**, pass the validation loaders of the queries and of the bank, whose batches
    have the labels at index 1, and return the representations from ``validation_step``, as the methods of
    this package do. ``"views"``, with the first views of all images and then the second ones, can be omitted,
    and so can the layers ``"hidden"`` and ``"projector"``:

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return {"plain": {"backbone": self.backbone(batch[0])}}

        trainer.fit(module, train_loader, [query_loader, bank_loader])

    If RankMe of the backbone or the projector falls below ``rank_floor``, the representation has collapsed:
    the callback warns, and logs ``val/collapsed`` as 1.

    If training starts from given weights, ``fit`` validates them before the first batch. If a later kNN
    accuracy is lower, and the 95 % interval of the difference (`AccuracyDifference`) does not contain 0, the
    callback warns, and logs ``val/below_start`` as 1.

    Args:
        k: neighbours of the kNN vote, at most as many as the bank has images; None uses ``knn_k`` of the
            data set, which is 20 for the digits and 200 for all other data sets of this package.
        temperature: T of the vote's weight exp(similarity / T).
        rank_floor: RankMe below which features count as collapsed; 1 is a single direction.
        num_classes: number of classes; None uses that of the data module, without which ``val/knn_top1`` is
            omitted.
        extended: also log ``val/effective_rank`` and ``val/lidar``, which take O(N F²) operations in float64.

    Raises:
        ValueError: k or temperature is not positive.
        InputError: in validation, ``validation_step`` does not return the representations.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = RepresentationMetrics(k=5, num_classes=10)
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        k: int | None = None,
        temperature: float = 0.1,
        rank_floor: float = 1.5,
        *,
        num_classes: int | None = None,
        extended: bool = False,
    ) -> None:
        check("k", k, at_least=1)
        check("temperature", temperature, above=0)
        self.k, self.temperature, self.rank_floor = k, temperature, rank_floor
        self.num_classes = num_classes
        self.extended = extended
        self._knn: KNNAccuracy | None = None
        self._ranking: Ranking | None = None
        self._superclasses: Tensor | None = None
        self._representation: dict[str, Representation] = {}
        self._alignment: dict[str, Alignment] = {}
        self._lidar: LiDAR | None = None
        self._start: Tensor | None = None  # which queries the initial weights classify correctly
        # of the last batch; a process without queries computes all metrics, because the others wait for it
        self._layers = self._pairs = tuple(LAYERS)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Create empty metrics."""
        device, data, loaders = pl_module.device, image_data(trainer), trainer.val_dataloaders
        classes = self.num_classes or (None if data is None else data.num_classes)
        alone = data is not None and data.leaves_one_out
        if classes and (alone or (isinstance(loaders, (list, tuple)) and len(loaders) > BANK)):
            k = (ImageData if data is None else data).knn_k if self.k is None else self.k
            self._knn = KNNAccuracy(
                num_classes=classes, k=k, temperature=self.temperature, leave_one_out=alone
            ).to(device)
        if data is not None and data.superclasses is not None:
            self._superclasses = data.superclasses.to(device)
            self._ranking = Ranking().to(device)
        self._representation = {name: Representation().to(device) for name in LAYERS}
        self._alignment = {name: Alignment().to(device) for name in LAYERS}
        self._lidar = LiDAR().to(device) if self.extended else None

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Update the metrics with the representations of a batch."""
        if not isinstance(outputs, Mapping) or "plain" not in outputs:
            raise InputError(
                f"RepresentationMetrics: {type(pl_module).__name__}.validation_step must return "
                '{"plain": {"backbone": features}}'
            )
        plain: Mapping[str, Tensor] = outputs["plain"]
        views: Mapping[str, Tensor] = outputs.get("views", {})
        labels = batch[1]
        if self._knn is not None:
            self._knn.update(plain["backbone"].float(), labels, "bank" if dataloader_idx == BANK else "query")
        if dataloader_idx != QUERIES:
            return
        self._layers, self._pairs = tuple(plain), tuple(views)
        if self._ranking is not None and self._superclasses is not None:
            levels = torch.stack([self._superclasses[labels], labels, batch.indices], dim=1)
            self._ranking.update(views["backbone"].float(), levels.repeat(2, 1))
        for name, features in plain.items():
            self._representation[name].update(features.float(), labels)
        for name, features in views.items():
            self._alignment[name].update(*features.float().chunk(2))
        if self._lidar is not None and views:
            self._lidar.update(*views["backbone"].float().chunk(2))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compute and log the metrics."""
        if trainer.sanity_checking:
            return
        if self._knn is not None and (top1 := _accuracy(self._knn)) is not None:
            pl_module.log("val/knn_top1", top1, prog_bar=True, sync_dist=True)
            self._compare_with_start(trainer, pl_module, self._knn.correct.cpu())
            images = float(sum((labels >= 0).sum() for labels in self._knn.query_labels))
            pl_module.log("time/val_images", images, sync_dist=True, reduce_fx="sum")
            if self._knn.voters < self._knn.k:
                pl_module.log("time/knn_k", float(self._knn.voters), sync_dist=True)
            if self._knn.leave_one_out:
                pl_module.log("time/leave_one_out", 1.0, sync_dist=True)
        elif _is_start(trainer):
            rank_zero_info("not checked against the initial weights: validation has no labelled images")
        ranks: dict[str, float] = {}
        if self._ranking is not None:
            _log(pl_module, self._ranking.compute())
        for name in self._layers:
            values: dict[str, Tensor] = self._representation[name].compute()
            if name in self._pairs:
                values["alignment"] = self._alignment[name].compute()
            if name != "hidden":
                ranks[name] = float(values["rankme"])
            if self._lidar is not None and name == "backbone":
                with self._representation[name].sync_context():
                    values["effective_rank"] = effective_rank(self._representation[name].rows())
                if name in self._pairs:
                    values["lidar"] = self._lidar.compute()
            _log(pl_module, values, LAYERS[name])
        self._warn_of_collapse(pl_module, ranks)
        self._knn, self._ranking, self._representation, self._alignment = None, None, {}, {}
        self._lidar = None

    def state_dict(self) -> dict[str, Any]:
        """Return which queries the initial weights classify correctly; empty for random weights."""
        return {} if self._start is None else {"start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state."""
        self._start = state_dict.get("start")

    def _compare_with_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, correct: Tensor
    ) -> None:
        if _is_start(trainer):
            self._start = correct
        elif trainer.state.fn != "fit":
            return
        elif self._start is not None and len(self._start) != len(correct):
            rank_zero_warn("not checked against the initial weights: the validation images have changed")
            self._start = None
        elif self._start is not None and (gain := AccuracyDifference.of(correct, self._start)).high < 0:
            rank_zero_warn(f"training harms: kNN accuracy minus that of the initial weights is {gain}")
            pl_module.log("val/below_start", 1.0, prog_bar=True, sync_dist=True)

    def _warn_of_collapse(self, pl_module: pl.LightningModule, ranks: dict[str, float]) -> None:
        if low := {name: rank for name, rank in ranks.items() if rank < self.rank_floor}:
            listed = ", ".join(f"{rank:.2f} of the {name}" for name, rank in low.items())
            rank_zero_warn(f"collapsed: RankMe is {listed}, below {self.rank_floor:g}")
            pl_module.log("val/collapsed", 1.0, prog_bar=True, sync_dist=True)


def _is_start(trainer: pl.Trainer) -> bool:
    """Return True in a validation before the first batch of training."""
    return trainer.state.fn == "fit" and trainer.current_epoch == batches_of_epoch(trainer) == 0


def _log(pl_module: pl.LightningModule, values: dict[str, Tensor], suffix: str = "") -> None:
    """Log the values that are not NaN."""
    for key, value in values.items():
        if not torch.isnan(value):
            value = value.float().to(pl_module.device)
            pl_module.log(f"val/{key}{suffix}", value, prog_bar=key == "knn_top1", sync_dist=True)


def _accuracy(knn: KNNAccuracy) -> Tensor | None:
    """Return the accuracy, or None with a warning if features are not finite or have no labels."""
    try:
        top1: Tensor = knn.compute()
    except ValueError as error:
        if not any(reason in str(error) for reason in ("not finite", "no labelled row")):
            raise
        rank_zero_warn(f"val/knn_top1 is left out: {error}")
        return None
    return top1
