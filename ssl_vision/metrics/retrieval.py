"""Retrieval of rows of the same class by cosine similarity."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.descriptions import describe
from ssl_vision.metrics.precision import exact_float32
from ssl_vision.metrics.rows import UNLABELLED, check_features, checked_labels, unit_rows

describe(
    "map",
    title="mAP",
    direction="higher",
    sections=(),
    needs=("labels",),
    note="This is the mean average precision of retrieval by cosine.",
    order=250,
)
describe(
    "recall@1",
    title="recall@1",
    direction="higher",
    sections=(),
    needs=("labels",),
    note="This is the share of images whose nearest neighbour has the same class.",
    order=260,
)
describe(
    "recall@5",
    title="recall@5",
    direction="higher",
    sections=(),
    needs=("labels",),
    note="This is the share of images with one of the same class among the 5 nearest neighbours.",
    order=270,
)
describe(
    "recall@10",
    title="recall@10",
    direction="higher",
    sections=(),
    needs=("labels",),
    note="This is the share of images with one of the same class among the 10 nearest neighbours.",
    order=280,
)


class Retrieval(NamedTuple):
    """Means over queries that have another row of their class; float64, in [0, 1], NaN without queries.

    Example:
        >>> import torch
        >>> scores = retrieval(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), ks=(1,))
        >>> float(scores.mean_average_precision)
        1.0
    """

    mean_average_precision: Tensor
    """Mean over queries of AP = (1/P) Σ_i i/r_i, r_i the rank of the i-th of P rows of the query's class."""
    recall: Tensor
    """Share of queries with a row of their class among the first K, for each K, shape (len(ks),)."""


def retrieval(
    features: Tensor, labels: Tensor, *, ks: Sequence[int] = (1, 5, 10), tile: int = 256
) -> Retrieval:
    """Compute mean average precision and recall@K, with each labelled row as a query for all others.

    The ranking of all other labelled rows by float32 cosines is exact. Ties rank rows of other classes first,
    so that a collapse has the lowest score and the order of rows does not matter. recall@K is defined as in
    metric learning (Jégou et al. 2011; Oh Song et al. 2016); a K above the number of rows means all rows.
    This takes O(N² (F + log N)) time and O(N F + tile N) memory.

    Args:
        features: features of any scale, shape (N, F); zero rows have cosine 0 to all others.
        labels: integer labels, shape (N,); rows with -1 are ignored.
        ks: Values of K, each at least 1.
        tile: Number of queries at a time.

    Returns:
        The means; NaN also if labelled features are not finite.

    Raises:
        ValueError: shapes or types are invalid, K < 1, tile < 1, or a label is below -1.

    Example:
        >>> import torch
        >>> scores = retrieval(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), ks=(1,))
        >>> float(scores.mean_average_precision), scores.recall.tolist()
        (1.0, [1.0])
    """
    check_features(features)
    labels = checked_labels(labels, len(features))
    if len(labels) and labels.min() < UNLABELLED:
        raise ValueError(f"labels: expected -1 (unlabelled) or more, got {int(labels.min())}")
    if any(k < 1 for k in ks):
        raise ValueError(f"ks: expected at least 1, got {list(ks)}")
    if tile < 1:
        raise ValueError(f"tile: expected at least 1, got {tile}")
    labelled = labels != UNLABELLED
    classes, rows = labels[labelled], features[labelled]
    precision = torch.zeros((), dtype=torch.float64, device=rows.device)
    hits, queries = precision.new_zeros(len(ks)), precision.clone()
    if not rows.isfinite().all():
        return Retrieval(precision + torch.nan, hits + torch.nan)
    with exact_float32(rows.device):
        unit = unit_rows(rows)
        for start in range(0, len(unit), tile):
            part = slice(start, start + tile)
            positions = torch.arange(len(unit), device=unit.device)[part]
            # The product with one row, unlike that with two, rounds the cosines to equal rows differently.
            pair = unit[part].expand(max(2, len(positions)), -1)
            relevant = _ranked((pair @ unit.T)[: len(positions)], classes[part, None] != classes, positions)
            number = relevant.sum(dim=1)
            query, rank = relevant.nonzero(as_tuple=True)
            nth = torch.arange(len(query), device=unit.device) - (number.cumsum(0) - number)[query]
            average = number.double().where(number > 0, 1.0).reciprocal()
            precision += ((nth + 1) / (rank + 1).double() * average[query]).sum()
            hits += torch.stack([relevant[:, :k].any(dim=1).sum() for k in ks]) if ks else 0
            queries += (number > 0).sum()
    return Retrieval(precision / queries, hits / queries)


def _ranked(cosine: Tensor, other: Tensor, own: Tensor) -> Tensor:
    """Return a mask (q, N) of the rows of each query's class, sorted by cosine; the query is last and False.

    The bits of a float sort like those of an integer, and cosines leave one bit unused, which stores
    ``other``. A single sort of int32 without indices suffices; NumPy is several times as fast as torch.
    """
    own = own[:, None]
    bits = cosine.scatter_(1, own, -1.5).add_(0.0).view(torch.int32)  # adding 0 turns −0 into 0
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = order.mul_(2).add_(other.scatter_(1, own, True)).neg_()
    if key.device.type == "cpu":
        key.numpy().sort(axis=1)
    else:
        key = key.sort(dim=1).values
    return (key & 1) == 0
