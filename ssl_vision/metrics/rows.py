"""Rows of features and their labels: what the metrics accept, keep and normalise."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

UNLABELLED = -1

_VALUES = 2**20
"""Values of lazy rows that are computed at a time: 4 MiB in float32."""


class LazyRows:
    """Features that are computed when they are read, so that memory does not grow with their number.

    Indexing with a slice or with row numbers computes those rows. All values must be finite.

    Args:
        read: computes the (n, F) features of (n,) int64 row numbers.
        shape: (N, F), the number of rows that ``read`` accepts and their width.
        rows: (M,) int64, the rows that are used; None uses all of them.

    Example:
        >>> pixels = torch.arange(6, dtype=torch.uint8).view(3, 2)
        >>> rows = LazyRows(lambda numbers: pixels[numbers].float() / 5, (3, 2))
        >>> rows[1:]
        tensor([[0.4000, 0.6000],
                [0.8000, 1.0000]])
        >>> len(rows.select(torch.tensor([True, False, True])))
        2
    """

    device = torch.device("cpu")

    def __init__(
        self, read: Callable[[Tensor], Tensor], shape: tuple[int, int], *, rows: Tensor | None = None
    ) -> None:
        self.read = read
        self.rows = torch.arange(shape[0]) if rows is None else rows
        self.shape = (len(self.rows), shape[1])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice | Tensor) -> Tensor:
        return self.read(self.rows[key])

    def select(self, mask: Tensor) -> Self:
        """The rows where a (N,) boolean mask is True; nothing is computed."""
        return type(self)(self.read, self.shape, rows=self.rows[mask])

    def map(self, function: Callable[[Tensor], Tensor], *, width: int | None = None) -> Self:
        """The rows after a function of (n, F) features.

        Args:
            function: maps each row by itself.
            width: features of its result; None for as many as before.
        """
        shape = (self.shape[0], width or self.shape[1])
        return type(self)(lambda rows: function(self.read(rows)), shape, rows=self.rows)


Features = Tensor | LazyRows
"""(N, F): in memory, or computed when they are read."""


def select(features: Features, mask: Tensor) -> Features:
    """The rows where a (N,) boolean mask is True."""
    return features.select(mask) if isinstance(features, LazyRows) else features[mask]


def parts(features: Features, *, most: int | None = None, times: int = 1) -> Iterator[slice]:
    """Slices that cover all rows, each small enough to be computed at once.

    Args:
        features: N rows; a tensor is one slice unless ``most`` is given.
        most: rows of a slice at most.
        times: how many times as large as usual the slices of `LazyRows` are.
    """
    step = most or max(1, len(features))
    if isinstance(features, LazyRows):
        step = min(step, max(1, times * _VALUES // features.shape[1]))
    for start in range(0, len(features), step):
        yield slice(start, start + step)


def check_features(features: Features, name: str = "features") -> None:
    """Accept real (N, F) features, N = 0 included.

    Raises:
        ValueError: Not two-dimensional, without columns, or complex.
    """
    if isinstance(features, LazyRows):
        return
    if features.ndim != 2 or features.shape[1] == 0 or features.is_complex():
        raise ValueError(f"{name}: expected real (N, F), got {features.dtype} {tuple(features.shape)}")


def check_labels(labels: Tensor, rows: int, name: str = "labels") -> None:
    """Accept integer labels, shape (rows,).

    Raises:
        ValueError: Another shape, or labels that are not integers.
    """
    if labels.shape != (rows,):
        raise ValueError(f"{name}: expected ({rows},), one a row of features, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name}: expected integers, got {labels.dtype} {tuple(labels.shape)}")


def joined(state: Tensor | Sequence[Tensor], missing: str) -> Tensor:
    """All rows of a metric's state, which is a list before synchronisation and a tensor after it.

    Raises:
        ValueError: There is no row (the message is ``missing``), or batches differ in width.
    """
    batches = [state] if isinstance(state, Tensor) else list(state)
    widths = sorted({batch.shape[1] for batch in batches if batch.ndim == 2})
    if len(widths) > 1:
        raise ValueError(f"features: expected one width F in all batches, got {widths}")
    if sum(map(len, batches)) == 0:
        raise ValueError(missing)
    return torch.cat(batches)


def unit_rows(features: Tensor) -> Tensor:
    """Rows divided by their Euclidean length, x/‖x‖: (N, F) float32; zero rows stay zero.

    Rows are first divided by their largest entry, so that no length overflows or underflows.
    """
    wide = features if features.dtype == torch.float64 else features.float()
    largest = torch.linalg.vector_norm(wide, torch.inf, dim=1, keepdim=True)
    scaled = wide / largest.where(largest > 0, 1.0)
    length = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    unit: Tensor = scaled.div_(length.where(length > 0, 1.0))
    return unit.float()


class FeatureRows(Metric):
    """A metric that keeps all features it is given; `rows` are theirs over all batches and processes.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False

    features: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor) -> None:
        """Add (N, F) features, any scale.

        Raises:
            ValueError: Another shape.
        """
        check_features(features)
        self.features.append(features.detach())

    def rows(self) -> Tensor:
        """(N, F), all features.

        Raises:
            ValueError: There are none.
        """
        return joined(self.features, f"{type(self).__name__}: no features to measure")


class LabelledRows(Metric):
    """A metric that keeps all features it is given, with their labels.

    Args:
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False

    features: list[Tensor]
    labels: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("features", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add (N, F) features, any scale, and their (N,) integer labels; -1 is "unlabelled" and ignored.

        Raises:
            ValueError: Shapes or types do not fit.
        """
        check_features(features)
        check_labels(labels, len(features))
        self.features.append(features.detach())
        self.labels.append(labels)

    def rows(self) -> tuple[Tensor, Tensor]:
        """(N, F), all features, and (N,), their labels.

        Raises:
            ValueError: There are none.
        """
        name = type(self).__name__
        features = joined(self.features, f"{name}: no features to measure")
        return features, joined(self.labels, f"{name}: no labels")
