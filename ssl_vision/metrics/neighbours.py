"""Exact nearest neighbours by cosine similarity or Euclidean distance."""

import functools
import importlib
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.errors import check_choice
from ssl_vision.metrics.rows import (
    Features,
    LazyRows,
    check_features,
    exact_float32,
    map_rows,
    slices,
    unit_rows,
)
from ssl_vision.progress import Progress

QUERY_TILE = 512
BANK_TILE = 65536
FAISS_GPU_MAX_K = 2048
DIFFERENCES = 2**22
"""Maximum number of coordinates of query − neighbour in memory at a time."""


class Neighbours(NamedTuple):
    """The k rows of a bank most similar to each of Q queries, best first.

    Example:
        >>> import torch
        >>> neighbours = nearest(torch.tensor([[0.6, 0.8]]), torch.eye(2), k=2)
        >>> neighbours.index, neighbours.similarity
        (tensor([[1, 0]]), tensor([[0.8000, 0.6000]]))
    """

    similarity: Tensor
    """(Q, k) float32, decreasing: cosines, in [-1, 1] up to rounding, or negative distances."""
    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    """(Q, k) int64, rows of the bank."""


def nearest(
    queries: Features,
    bank: Features,
    k: int,
    *,
    backend: Literal["auto", "faiss", "torch"] = "auto",
    metric: Literal["cosine", "euclidean"] = "cosine",
) -> Neighbours:
    """Find the k nearest neighbours, with the largest s(q, b) = q·b / (‖q‖‖b‖) or −‖q − b‖.

    For the cosine, rows are L2-normalised in float32; a zero row has similarity 0 to all others. For the
    Euclidean distance, rows are not normalised; the search maximises q·b − ‖b‖²/2 of centred rows, and the
    distances are then computed from differences. All backends order equal float32 similarities by index.
    (Similarities that are equal only in exact arithmetic may differ in their last bit.)

    Args:
        queries: features of the queries, shape (Q, F).
        bank: features of the bank, shape (N, F), on the same device. If queries or bank are `LazyRows`, torch
            is used, progress is reported, and memory does not grow with the number of rows.
        k: Number of neighbours, 1 ≤ k ≤ N.
        backend: "torch" searches in tiles with bounded memory. "faiss" searches on the GPU if the tensors are
            on it and FAISS supports it, otherwise on the CPU. "auto" uses FAISS if it supports the device of
            the tensors, otherwise torch.
        metric: "cosine" or "euclidean".

    Raises:
        ValueError: shapes or devices do not match, k is out of range, a value is not finite, or the backend
            or metric is unknown.
        ImportError: backend="faiss" and FAISS is not installed.

    Example:
        >>> import torch
        >>> nearest(torch.tensor([[0.9, 0.1]]), torch.eye(2), k=2).index
        tensor([[0, 1]])
    """
    check_features(queries, "queries")
    check_features(bank, "bank")
    if queries.shape[1] != bank.shape[1] or queries.device != bank.device:
        raise ValueError(
            f"queries {tuple(queries.shape)} on {queries.device}, bank {tuple(bank.shape)} on {bank.device}: "
            "expected the same number of columns and the same device"
        )
    if not 1 <= k <= len(bank):
        raise ValueError(f"k: expected 1 to {len(bank)}, the rows of the bank, got {k}")
    check_choice("backend", backend, ("auto", "faiss", "torch"))
    check_choice("metric", metric, ("cosine", "euclidean"))
    for name, rows in (("queries", queries), ("bank", bank)):
        if isinstance(rows, Tensor) and rows.numel() and not all(end.isfinite() for end in rows.aminmax()):
            raise ValueError(f"{name}: some of the {tuple(rows.shape)} values are not finite")
    if backend == "faiss" and _faiss() is None:
        raise ImportError("backend='faiss': FAISS is not installed; pip install 'ssl_vision[cpu]' or '[gpu]'")

    with exact_float32(queries.device):
        on_gpu = queries.device.type == "cuda" and faiss_kind() == "gpu" and k < FAISS_GPU_MAX_K
        on_cpu = faiss_kind() != "none" and queries.device.type != "cuda"
        use_faiss = backend == "faiss" or (backend == "auto" and (on_cpu or on_gpu))
        if metric == "euclidean":
            left, right = _lifted(queries, bank)
        else:
            left, right = map_rows(queries, unit_rows), map_rows(bank, unit_rows)
        if isinstance(left, Tensor) and isinstance(right, Tensor) and use_faiss and len(left) > 0:
            neighbours = _search_faiss(left, right, k, on_gpu=on_gpu)
        else:
            neighbours = _search_torch(left, right, k)
        return _by_distance(queries, bank, neighbours.index) if metric == "euclidean" else neighbours


def nearest_others(features: Features, k: int) -> Neighbours:
    """Find the k nearest other rows of each row by cosine, k < N.

    Example:
        >>> import torch
        >>> nearest_others(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), k=1).index
        tensor([[1],
                [0],
                [1]])
    """
    return without_own_row(nearest(features, features, k=k + 1))


def without_own_row(neighbours: Neighbours) -> Neighbours:
    """Remove each query's own row, or the last neighbour if equal rows before it displace the own one."""
    index = neighbours.index
    own = index == torch.arange(len(index), device=index.device)[:, None]
    own[:, -1] |= ~own.any(dim=1)
    return Neighbours(*(each[~own].view(len(index), -1) for each in neighbours))


def faiss_kind() -> Literal["gpu", "cpu", "none"]:
    """Return the usable FAISS: "gpu" (a GPU build that sees a GPU), "cpu", or "none" (missing or broken).

    Example:
        >>> faiss_kind() in ("gpu", "cpu", "none")
        True
    """
    faiss = _faiss()
    if faiss is None:
        return "none"
    return "gpu" if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0 else "cpu"


def _faiss() -> ModuleType | None:
    # A GPU build without NVIDIA's libraries raises RuntimeError; a partly removed one is an empty module.
    try:
        faiss = importlib.import_module("faiss")
    except (ImportError, RuntimeError):
        return None
    return faiss if hasattr(faiss, "IndexFlatIP") else None


@functools.cache
def _gpu_resources() -> Any:
    """Return FAISS's streams, handles and temporary memory on the GPUs, which are slow to make."""
    return importlib.import_module("faiss").StandardGpuResources()


def _search_faiss(queries: Tensor, bank: Tensor, k: int, *, on_gpu: bool) -> Neighbours:
    """Search with FAISS; redo rows with a tie at the k-th neighbour, which FAISS breaks arbitrarily."""
    faiss = importlib.import_module("faiss")
    count = min(k + 1, len(bank))  # one more, to detect ties at the k-th neighbour
    if on_gpu:
        importlib.import_module("faiss.contrib.torch_utils")
        similarity, index = faiss.knn_gpu(
            _gpu_resources(), queries, bank, count,
            metric=faiss.METRIC_INNER_PRODUCT, device=queries.device.index,
        )  # fmt: skip
    else:
        pair = faiss.knn(queries.cpu().numpy(), bank.cpu().numpy(), count, metric=faiss.METRIC_INNER_PRODUCT)
        similarity, index = (torch.from_numpy(array).to(queries.device) for array in pair)
    neighbours = _by_index(similarity[:, :k], index[:, :k])
    border = _border(similarity, k)
    if len(border):
        again = _search_torch(queries[border], bank, k)
        neighbours.similarity[border], neighbours.index[border] = again
    return neighbours


def _lifted(queries: Features, bank: Features) -> tuple[Features, Features]:
    """Return centred and scaled rows (q, 1) and (b, −‖b‖²/2), whose product orders them by −‖q − b‖."""
    largest = [
        float(rows[part].abs().max()) for rows in (queries, bank) for part in slices(rows, most=BANK_TILE)
    ]
    scale = max(largest, default=0.0) or 1.0
    centre = sum((_wide(bank[part]) / scale).sum(dim=0) for part in slices(bank, most=BANK_TILE)) / len(bank)

    def lifted_query(rows: Tensor) -> Tensor:
        rows = _wide(rows) / scale - centre
        return torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1).float()

    def lifted_bank(rows: Tensor) -> Tensor:
        rows = _wide(rows) / scale - centre
        return torch.cat((rows, -0.5 * rows.square().sum(dim=1, keepdim=True)), dim=1).float()

    width = bank.shape[1] + 1
    return map_rows(queries, lifted_query, width=width), map_rows(bank, lifted_bank, width=width)


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


def _by_distance(queries: Features, bank: Features, index: Tensor) -> Neighbours:
    """Recompute −‖q − b‖ of the neighbours from differences, which is accurate for small distances."""
    index = index.sort(dim=1).values
    similarity = torch.empty(index.shape, device=index.device)
    tile = max(1, DIFFERENCES // (index.shape[1] * queries.shape[1]))
    for start in range(0, len(queries), tile):
        rows = slice(start, start + tile)
        near = bank[index[rows].flatten()].view(*index[rows].shape, -1)
        difference = _wide(near) - _wide(queries[rows]).unsqueeze(1)
        largest = difference.abs().amax(dim=2, keepdim=True)
        length = (difference / largest.where(largest > 0, 1.0)).norm(dim=2)
        similarity[rows] = -length * largest[..., 0]
    similarity, order = similarity.sort(dim=1, descending=True, stable=True)
    return Neighbours(similarity, index.gather(1, order))


def _search_torch(queries: Features, bank: Features, k: int) -> Neighbours:
    similarity = torch.empty(len(queries), k, device=queries.device)
    index = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    lazy = isinstance(queries, LazyRows) or isinstance(bank, LazyRows)
    with Progress("nearest neighbours", len(queries), unit="queries") if lazy else nullcontext() as job:
        for rows in slices(queries, most=QUERY_TILE, times=4):  # a lazy bank is computed once for each part
            tile, best = queries[rows], None
            for part in slices(bank, most=BANK_TILE):
                candidates = _top(tile @ bank[part].T, k, part.start)
                best = candidates if best is None else _merge(best, candidates, k)
            if best is not None:
                similarity[rows], index[rows] = best
            if job is not None:
                job.advance(len(tile))
    return Neighbours(similarity, index)


def _top(similarity: Tensor, k: int, offset: int) -> Neighbours:
    """Return the best min(k, columns) of each row, ties by lower column; column 0 has index ``offset``."""
    if k >= similarity.shape[1]:
        values, columns = similarity.sort(dim=1, descending=True, stable=True)
        return Neighbours(values, columns + offset)
    values, columns = similarity.topk(k + 1, dim=1)
    best = _by_index(values[:, :k], columns[:, :k])
    border = _border(values, k)
    if len(border):
        best.similarity[border], best.index[border] = _lowest(similarity[border], values[border, k, None], k)
    return Neighbours(best.similarity, best.index + offset)


def _border(values: Tensor, k: int) -> Tensor:
    """Return the rows with a tie between the k-th and the next best value."""
    return (values[:, k - 1 : k] == values[:, k:]).any(dim=1).nonzero().squeeze(1)


def _by_index(similarity: Tensor, index: Tensor) -> Neighbours:
    """Sort neighbours by similarity, ties by index."""
    similarity, index = similarity.contiguous(), index.contiguous()
    tied = (similarity[:, 1:] == similarity[:, :-1]).any(dim=1).nonzero().squeeze(1)
    if len(tied):
        columns, order = index[tied].sort(dim=1)
        similarity[tied], order = similarity[tied].gather(1, order).sort(dim=1, descending=True, stable=True)
        index[tied] = columns.gather(1, order)
    return Neighbours(similarity, index)


def _lowest(similarity: Tensor, kth: Tensor, k: int) -> Neighbours:
    """Return the best k of each row, ties by lower column, given its k-th best value."""
    above, equal = similarity > kth, similarity == kth
    room = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
    columns = chosen.nonzero()[:, 1].view(-1, k)
    values, order = similarity.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return Neighbours(values, columns.gather(1, order))


def _merge(first: Neighbours, second: Neighbours, k: int) -> Neighbours:
    """Merge two sorted sets into the best k; all indices of the first must be below those of the second."""
    similarity = torch.cat((first.similarity, second.similarity), dim=1)
    similarity, order = similarity.sort(dim=1, descending=True, stable=True)
    index = torch.cat((first.index, second.index), dim=1).gather(1, order)
    return Neighbours(similarity[:, :k], index[:, :k])
