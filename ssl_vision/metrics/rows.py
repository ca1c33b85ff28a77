"""Rows of features with labels for the metrics: validation, storage, normalisation and full precision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from ssl_vision.descriptions import DescribedMetric

UNLABELLED = -1

CPU = torch.device("cpu")

_VALUES = 2**20
"""Maximum number of values of lazy rows that are computed at a time, 4 MiB in float32."""


class LazyRows:
    """Features that are computed on access, so that memory does not grow with their number.

    Indexing with a slice or row numbers computes these rows. All values must be finite.

    Args:
        read: function that computes the features (n, F) of row numbers (n,) int64.
        shape: (N, F), the number of rows that ``read`` accepts and their width.
        rows: selected rows, (M,) int64 on the CPU; None selects all of them.
        device: device of the rows that ``read`` returns.

    Example:
        >>> pixels = torch.arange(6, dtype=torch.uint8).view(3, 2)
        >>> rows = LazyRows(lambda numbers: pixels[numbers].float() / 5, (3, 2))
        >>> rows[1:]
        tensor([[0.4000, 0.6000],
                [0.8000, 1.0000]])
        >>> len(rows.select(torch.tensor([True, False, True])))
        2
    """

    def __init__(
        self,
        read: Callable[[Tensor], Tensor],
        shape: tuple[int, int],
        *,
        rows: Tensor | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.read, self.device = read, device
        self.rows = torch.arange(shape[0]) if rows is None else rows
        self.shape = (len(self.rows), shape[1])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice | Tensor) -> Tensor:
        return self.read(self.rows[key.cpu() if isinstance(key, Tensor) else key])

    def select(self, mask: Tensor) -> Self:
        """Select the rows where a boolean mask (N,) is True, without computing them."""
        return type(self)(self.read, self.shape, rows=self.rows[mask.cpu()], device=self.device)

    def map(self, function: Callable[[Tensor], Tensor], *, width: int | None = None) -> Self:
        """Apply a function to the rows when they are computed.

        Args:
            function: function of features (n, F) that treats each row independently.
            width: number of features of its result. Default: F.
        """
        shape = (self.shape[0], width or self.shape[1])
        return type(self)(lambda rows: function(self.read(rows)), shape, rows=self.rows, device=self.device)

    def cpu(self) -> Self:
        """Return the rows on the CPU when they are computed."""
        return type(self)(lambda rows: self.read(rows).cpu(), self.shape, rows=self.rows)


Features = Tensor | LazyRows
"""Features (N, F), in memory or computed on access."""


def select(features: Features, mask: Tensor) -> Features:
    """Select the rows where a boolean mask (N,) is True."""
    return features.select(mask) if isinstance(features, LazyRows) else features[mask]


def map_rows(
    features: Features, function: Callable[[Tensor], Tensor], *, width: int | None = None
) -> Features:
    """Apply a function to the rows, now or as `LazyRows.map` does."""
    return features.map(function, width=width) if isinstance(features, LazyRows) else function(features)


def slices(features: Features, *, most: int | None = None, times: int = 1) -> Iterator[slice]:
    """Iterate over slices that cover all rows, each small enough to be computed at once.

    Args:
        features: N rows; a tensor is one slice unless ``most`` is given.
        most: maximum number of rows of a slice.
        times: factor by which slices of `LazyRows` are larger than usual.
    """
    step = most or max(1, len(features))
    if isinstance(features, LazyRows):
        step = min(step, max(1, times * _VALUES // features.shape[1]))
    for start in range(0, len(features), step):
        yield slice(start, start + step)


def check_features(features: Features, name: str = "features") -> None:
    """Check that features are real, with shape (N, F), N ≥ 0 and F ≥ 1.

    Raises:
        ValueError: they are not.
    """
    if isinstance(features, LazyRows):
        return
    if features.ndim != 2 or features.shape[1] == 0 or features.is_complex():
        raise ValueError(f"{name}: expected real (N, F), got {features.dtype} {tuple(features.shape)}")


def checked_labels(labels: Tensor, rows: int, name: str = "labels") -> Tensor:
    """Return labels as int64, after checking that they are integers of shape (rows,).

    Raises:
        ValueError: they are not.
    """
    if labels.shape != (rows,):
        raise ValueError(f"{name}: expected ({rows},), one a row of features, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers, got {labels.dtype} {tuple(labels.shape)}")
    return labels.long()


def joined(state: Tensor | Sequence[Tensor], missing: str) -> Tensor:
    """Concatenate the rows of a metric's state, which is a list before synchronisation and a tensor after it.

    Raises:
        ValueError: there are no rows (with the message ``missing``), or batches differ in width.
    """
    batches = [state] if isinstance(state, Tensor) else list(state)
    widths = sorted({batch.shape[1] for batch in batches if batch.ndim == 2})
    if len(widths) > 1:
        raise ValueError(f"features: expected one width F in all batches, got {widths}")
    if sum(map(len, batches)) == 0:
        raise ValueError(missing)
    return torch.cat(batches)


def unit_rows(features: Tensor) -> Tensor:
    """L2-normalise rows (N, F) to float32; zero rows stay zero.

    Rows are first divided by their largest entry, so that no norm overflows or underflows.
    """
    wide = features if features.dtype == torch.float64 else features.float()
    largest = torch.linalg.vector_norm(wide, torch.inf, dim=1, keepdim=True)
    scaled = wide / largest.where(largest > 0, 1.0)
    length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    unit: Tensor = scaled.div_(length.where(length > 0, 1.0))
    return unit.float()


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Run a block without gradients, without autocast, and with true float32 matrix products.

    Training often allows TF32 or bfloat16 products, whose errors of 1e-3 in cosines are enough to change
    neighbours. The settings are restored afterwards.
    """
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        common = torch.get_float32_matmul_precision()
    except RuntimeError:  # the backends have been set one by one
        common = "highest"
    try:
        torch.set_float32_matmul_precision("highest")  # with fp32_precision, reading allow_tf32 is an error
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(common)
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


class RepresentationMetric(Metric, DescribedMetric):
    """Base class of metrics of representations, which have no gradient and are computed from all batches."""

    is_differentiable = False
    full_state_update = False


class FeatureRows(RepresentationMetric):
    """Base class of metrics that keep the features of all batches and processes.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    features: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor) -> None:
        """Add features of any scale, shape (N, F).

        Raises:
            ValueError: the shape is invalid.
        """
        check_features(features)
        self.features.append(features.detach().clone())

    def rows(self) -> Tensor:
        """Return all features, shape (N, F).

        Raises:
            ValueError: there are none.
        """
        return joined(self.features, f"{type(self).__name__}: no features to measure")


class LabelledRows(FeatureRows):
    """Base class of metrics that keep the features and labels of all batches and processes.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    labels: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor) -> None:  # type: ignore[override]
        """Add rows.

        Args:
            features: features of any scale, shape (N, F).
            labels: integer labels, shape (N,); -1 means unlabelled.

        Raises:
            ValueError: shapes or types are invalid.
        """
        check_features(features)
        labels = checked_labels(labels, len(features))
        super().update(features)
        self.labels.append(labels.clone())

    def labelled_rows(self) -> tuple[Tensor, Tensor]:
        """Return all features, shape (N, F), and their labels, shape (N,).

        Raises:
            ValueError: there are none.
        """
        return self.rows(), joined(self.labels, f"{type(self).__name__}: no labels")
