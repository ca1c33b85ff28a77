"""Metrics of the representation at every validation: kNN accuracy, alignment, uniformity and others."""

from collections.abc import Iterable
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from ssl_vision.callbacks.embedding import embedded, embedded_pairs
from ssl_vision.data import BANK, QUERIES, Batch, ImageData
from ssl_vision.descriptions import LAYERS
from ssl_vision.methods import Layers
from ssl_vision.metrics import Alignment, KNNAccuracy, LiDAR, Ranking, Representation, effective_rank, lidar


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

    **In your own LightningModule**, give the path of its encoder and the loaders. The callback then runs the
    encoder in evaluation mode and without gradients at the end of every ``check_val_every_n_epoch``-th
    training epoch, and logs the metrics of the encoder under the same names:

        RepresentationMetrics(encoder="backbone", bank=train_loader, queries=test_loader)

    If RankMe of the backbone or the projector falls below ``rank_floor``, the representation has collapsed:
    the callback warns, and logs ``val/collapsed`` as 1.

    Args:
        k: neighbours of the kNN vote, at most as many as the bank has images; None uses ``knn_k`` of the
            data set, which is 20 for the digits and 200 for all other data sets of this package.
        temperature: T of the vote's weight exp(similarity / T).
        rank_floor: RankMe below which features count as collapsed; 1 is a single direction.
        encoder: submodule path of the encoder, which is called with a batch of images; None uses the outputs
            of the validation step of this package's methods.
        bank: batches (images, labels) of the labelled images that vote; requires ``encoder``.
        queries: batches (images, labels) of the images that are classified; requires ``encoder``.
        pairs: batches that begin with two views of the same images, for ``val/alignment``; None omits it.
            Requires ``encoder``.
        extended: also log ``val/effective_rank`` and ``val/lidar``, which take O(N F²) operations in float64.

    Raises:
        ValueError: k or temperature is not positive, or only some of ``encoder``, ``bank`` and ``queries``
            are given.
        InputError: in training, the module has no such submodule, a batch has another form, or the encoder
            does not return (N, F) features.

    Example:
        >>> import pytorch_lightning as pl
        >>> images, labels = torch.rand(64, 3, 32, 32), torch.arange(64) % 4
        >>> data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=16)
        >>> callback = RepresentationMetrics(k=5, encoder="backbone", bank=data, queries=data)
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        k: int | None = None,
        temperature: float = 0.1,
        rank_floor: float = 1.5,
        *,
        encoder: str | None = None,
        bank: Iterable[Any] | None = None,
        queries: Iterable[Any] | None = None,
        pairs: Iterable[Any] | None = None,
        extended: bool = False,
    ) -> None:
        if (k is not None and k < 1) or not temperature > 0:
            raise ValueError(f"k and temperature must be positive, got k={k} and temperature={temperature}")
        if not (encoder is None) == (bank is None) == (queries is None) or (encoder is None and pairs):
            raise ValueError("encoder, bank and queries must be given together, and pairs requires them")
        self.k, self.temperature, self.rank_floor = k, temperature, rank_floor
        self.encoder, self.bank, self.queries, self.pairs = encoder, bank, queries, pairs
        self.extended = extended
        self._knn: KNNAccuracy | None = None
        self._ranking: Ranking | None = None
        self._superclasses: Tensor | None = None
        self._representation: dict[str, Representation] = {}
        self._alignment: dict[str, Alignment] = {}
        self._lidar: LiDAR | None = None

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Create empty metrics."""
        if self.encoder is not None:
            return
        device = pl_module.device
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        if len(trainer.val_dataloaders or ()) > BANK:  # the images have labels
            k = data.knn_k if self.k is None else self.k
            knn = KNNAccuracy(num_classes=data.num_classes, k=k, temperature=self.temperature)
            self._knn = knn.to(device)
        if data.superclasses is not None:
            self._superclasses = data.superclasses.to(device)
            self._ranking = Ranking().to(device)
        self._representation = {name: Representation().to(device) for name in Layers._fields}
        self._alignment = {name: Alignment().to(device) for name in Layers._fields}
        self._lidar = LiDAR().to(device) if self.extended else None

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Update the metrics with the representations of a batch."""
        if self.encoder is not None:
            return
        plain: Layers = outputs["plain"]
        if self._knn is not None:
            self._knn.update(
                plain.backbone.float(), batch.labels, "bank" if dataloader_idx == BANK else "query"
            )
        if dataloader_idx != QUERIES:
            return
        views: Layers = outputs["views"]
        if self._ranking is not None and self._superclasses is not None:
            levels = torch.stack([self._superclasses[batch.labels], batch.labels, batch.indices], dim=1)
            self._ranking.update(views.backbone.float(), levels.repeat(2, 1))
        for name in Layers._fields:
            self._representation[name].update(getattr(plain, name).float(), batch.labels)
            self._alignment[name].update(*getattr(views, name).float().chunk(2))
        if self._lidar is not None:
            self._lidar.update(*views.backbone.float().chunk(2))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compute and log the metrics."""
        if trainer.sanity_checking or self.encoder is not None:
            return
        if self._knn is not None and (top1 := _accuracy(self._knn)) is not None:
            pl_module.log("val/knn_top1", top1, prog_bar=True, sync_dist=True)
        ranks: dict[str, float] = {}
        if self._ranking is not None:
            _log(pl_module, self._ranking.compute())
        for name in Layers._fields:
            values: dict[str, Tensor] = self._representation[name].compute()
            values["alignment"] = self._alignment[name].compute()
            ranks[name] = float(values["rankme"])
            if self._lidar is not None and name == "backbone":
                with self._representation[name].sync_context():
                    values["effective_rank"] = effective_rank(self._representation[name].rows()[0])
                values["lidar"] = self._lidar.compute()
            _log(pl_module, values, LAYERS[name])
        self._warn_of_collapse(pl_module, {name: ranks[name] for name in ("backbone", "projector")})
        self._knn, self._ranking, self._representation, self._alignment = None, None, {}, {}
        self._lidar = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the encoder given by its path, in epochs with a validation."""
        every = trainer.check_val_every_n_epoch or 1
        if self.encoder is None or self.bank is None or self.queries is None:
            return
        if (trainer.current_epoch + 1) % every:
            return
        bank, bank_labels = embedded(pl_module, self.encoder, self.bank)
        queries, labels = embedded(pl_module, self.encoder, self.queries)
        # Every process embeds all images, so nothing is gathered.
        representation = Representation(sync_on_compute=False)
        representation.update(queries, labels)
        values: dict[str, Tensor] = representation.compute()
        if min(bank_labels.max(), labels.max()) >= 0:
            knn = KNNAccuracy(
                num_classes=int(max(bank_labels.max(), labels.max())) + 1,
                k=self.k or ImageData.knn_k,
                temperature=self.temperature,
                sync_on_compute=False,
            )
            knn.update(bank, bank_labels, "bank")
            knn.update(queries, labels, "query")
            if (top1 := _accuracy(knn)) is not None:
                values["knn_top1"] = top1
        if self.extended:
            values["effective_rank"] = effective_rank(queries)
        if self.pairs is not None:
            alignment = Alignment(sync_on_compute=False)
            views = embedded_pairs(pl_module, self.encoder, self.pairs)
            alignment.update(*views)
            values["alignment"] = alignment.compute()
            if self.extended:
                values["lidar"] = lidar(torch.stack(views, dim=1))
        values = trainer.strategy.broadcast(values)  # BatchNorm statistics may differ between processes
        _log(pl_module, values)
        self._warn_of_collapse(pl_module, {self.encoder: float(values["rankme"])})

    def _warn_of_collapse(self, pl_module: pl.LightningModule, ranks: dict[str, float]) -> None:
        low = {name: rank for name, rank in ranks.items() if rank < self.rank_floor}
        if low:
            listed = ", ".join(f"{rank:.2f} of the {name}" for name, rank in low.items())
            rank_zero_warn(f"collapsed: RankMe is {listed}, below {self.rank_floor:g}")
            pl_module.log("val/collapsed", 1.0, prog_bar=True, sync_dist=True)


def _log(pl_module: pl.LightningModule, values: dict[str, Tensor], suffix: str = "") -> None:
    """Log the values that are not NaN."""
    for key, value in values.items():
        if not torch.isnan(value):
            value = value.float().to(pl_module.device)
            pl_module.log(f"val/{key}{suffix}", value, prog_bar=key == "knn_top1", sync_dist=True)


def _accuracy(knn: KNNAccuracy) -> Tensor | None:
    """Return the accuracy, or None with a warning if features are not finite."""
    try:
        top1: Tensor = knn.compute()
    except ValueError as error:
        if "not finite" not in str(error):
            raise
        rank_zero_warn(f"val/knn_top1 is left out: {error}")
        return None
    return top1
