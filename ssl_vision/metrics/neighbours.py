"""Exact nearest neighbours, by cosine similarity or Euclidean distance."""

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.metrics.precision import exact_float32
from ssl_vision.metrics.rows import Features, LazyRows, check_features, parts, unit_rows
from ssl_vision.progress import Progress

QUERY_TILE = 512
BANK_TILE = 65536
FAISS_GPU_MAX_K = 2048
HALVES = (torch.float16, torch.bfloat16)
DIFFERENCES = 2**22
"""Coordinates of query − neighbour held at a time."""


class Neighbours(NamedTuple):
    """The k rows of a bank most similar to each of Q queries, best first.

    Example:
        >>> import torch
        >>> neighbours = nearest(torch.tensor([[0.6, 0.8]]), torch.eye(2), k=2)
        >>> neighbours.index, neighbours.similarity
        (tensor([[1, 0]]), tensor([[0.8000, 0.6000]]))
    """

    similarity: Tensor
    """(Q, k) float32, decreasing: cosines, in [-1, 1] up to rounding, or distances with a minus sign."""
    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    """(Q, k) int64 rows of the bank."""


def nearest(
    queries: Features,
    bank: Features,
    k: int,
    *,
    backend: Literal["auto", "faiss", "torch"] = "auto",
    metric: Literal["cosine", "euclidean"] = "cosine",
    dtype: torch.dtype = torch.float32,
) -> Neighbours:
    """Exact k nearest neighbours: largest s(q, b) = q·b / (‖q‖‖b‖), or s(q, b) = −‖q − b‖ of "euclidean".

    For the cosine, rows are L2-normalised here, in float32; a zero row has similarity 0 to everything. For
    the distance, rows are used as they are; the search is one for the largest q·b − ‖b‖²/2 of centred rows,
    and distances are then those of the differences. Equal float32 similarities are ordered by lower index in
    every backend. (Similarities that are equal only in exact arithmetic may differ in their last bit, and
    then that bit decides.)

    Args:
        queries: (Q, F).
        bank: (N, F), on the same device. Where queries or bank are `LazyRows`, the search is torch's and
            reports its progress, and memory does not grow with the number of rows.
        k: Neighbours to find, 1 ≤ k ≤ N.
        backend: "torch" searches in tiles, so memory stays bounded. "faiss" searches on the GPU where tensors
            and FAISS are there, else on the CPU. "auto" takes FAISS for CPU tensors, FAISS's GPU search for
            CUDA tensors, and torch where these are missing.
        metric: What near means.
        dtype: torch.float16 or torch.bfloat16 rounds the normalised rows to it; products and sums stay
            float32, so that all backends agree as before. Meant for GPUs, where "auto" then takes torch,
            which multiplies on tensor cores; on a CPU it is no faster. What it loses: of 200 neighbours among
            50,000 random rows, float16 changes 0.05 % and bfloat16 0.33 %; of the predictions, 0.02 % and
            0.32 % (benchmarks/knn.py).

    Raises:
        ValueError: Shapes or devices do not fit, k is out of range, a value is not finite, unknown backend,
            metric or dtype, or half precision of a distance.
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
            "expected as many columns, on one device"
        )
    if not 1 <= k <= len(bank):
        raise ValueError(f"k: expected 1 to {len(bank)}, the rows of the bank, got {k}")
    if backend not in ("auto", "faiss", "torch"):
        raise ValueError(f"backend: expected auto, faiss or torch, got {backend!r}")
    if metric not in ("cosine", "euclidean"):
        raise ValueError(f"metric: expected cosine or euclidean, got {metric!r}")
    allowed = HALVES if metric == "cosine" else ()
    if dtype not in (torch.float32, *allowed):
        raise ValueError(f"dtype: expected {(torch.float32, *allowed)} for metric={metric!r}, got {dtype}")
    for name, rows in (("queries", queries), ("bank", bank)):
        if isinstance(rows, Tensor) and rows.numel() and not all(end.isfinite() for end in rows.aminmax()):
            raise ValueError(f"{name}: some of the {tuple(rows.shape)} values are not finite")
    if backend == "faiss" and _faiss() is None:
        raise ImportError("backend='faiss': FAISS is not installed; pip install 'ssl_vision[cpu]' or '[gpu]'")

    with exact_float32(queries.device):
        on_gpu = queries.device.type == "cuda" and faiss_kind() == "gpu" and k < FAISS_GPU_MAX_K
        on_cpu = faiss_kind() != "none" and queries.device.type != "cuda"
        use_faiss = backend == "faiss" or (
            backend == "auto" and (on_cpu or (on_gpu and dtype == torch.float32))
        )
        if metric == "euclidean":
            left, right = _lifted(queries, bank)
        else:
            left, right = (_mapped(rows, lambda part: unit_rows(part).to(dtype)) for rows in (queries, bank))
        if isinstance(left, Tensor) and isinstance(right, Tensor) and use_faiss and len(left) > 0:
            found = _search_faiss(left.float(), right.float(), k, on_gpu=on_gpu)
        else:
            found = _search_torch(left, right, k)
        return _by_distance(queries, bank, found.index) if metric == "euclidean" else found


def faiss_kind() -> Literal["gpu", "cpu", "none"]:
    """What FAISS can use: "gpu" (a GPU build that sees a GPU), "cpu", or "none" (missing or broken).

    Example:
        >>> faiss_kind() in ("gpu", "cpu", "none")
        True
    """
    faiss = _faiss()
    if faiss is None:
        return "none"
    return "gpu" if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0 else "cpu"


def _faiss() -> ModuleType | None:
    # A GPU build without NVIDIA's libraries raises RuntimeError; a half-removed one imports as empty.
    try:
        faiss = importlib.import_module("faiss")
    except (ImportError, RuntimeError):
        return None
    return faiss if hasattr(faiss, "IndexFlatIP") else None


def _search_faiss(queries: Tensor, bank: Tensor, k: int, *, on_gpu: bool) -> Neighbours:
    """FAISS's search; rows with a tie across the border, which FAISS settles freely, are searched again."""
    faiss = importlib.import_module("faiss")
    found = min(k + 1, len(bank))  # one more, to see a tie across the border
    if on_gpu:
        importlib.import_module("faiss.contrib.torch_utils")
        similarity, index = faiss.knn_gpu(
            faiss.StandardGpuResources(), queries, bank, found,
            metric=faiss.METRIC_INNER_PRODUCT, device=queries.device.index,
        )  # fmt: skip
    else:
        pair = faiss.knn(queries.cpu().numpy(), bank.cpu().numpy(), found, metric=faiss.METRIC_INNER_PRODUCT)
        similarity, index = (torch.from_numpy(array).to(queries.device) for array in pair)
    neighbours = _by_index(similarity[:, :k], index[:, :k])
    border = _border(similarity, k)
    if len(border):
        again = _search_torch(queries[border], bank, k)
        neighbours.similarity[border], neighbours.index[border] = again
    return neighbours


def _mapped(
    features: Features, function: Callable[[Tensor], Tensor], *, width: int | None = None
) -> Features:
    return features.map(function, width=width) if isinstance(features, LazyRows) else function(features)


def _lifted(queries: Features, bank: Features) -> tuple[Features, Features]:
    """Rows (q, 1) and (b, −‖b‖²/2), whose product is largest where ‖q − b‖ is least; centred and scaled."""
    largest = [
        float(rows[part].abs().max()) for rows in (queries, bank) for part in parts(rows, most=BANK_TILE)
    ]
    scale = max(largest, default=0.0) or 1.0
    centre = sum((_wide(bank[part]) / scale).sum(dim=0) for part in parts(bank, most=BANK_TILE)) / len(bank)

    def lifted_query(rows: Tensor) -> Tensor:
        rows = _wide(rows) / scale - centre
        return torch.cat((rows, rows.new_ones(len(rows), 1)), dim=1).float()

    def lifted_bank(rows: Tensor) -> Tensor:
        rows = _wide(rows) / scale - centre
        return torch.cat((rows, -0.5 * rows.square().sum(dim=1, keepdim=True)), dim=1).float()

    width = bank.shape[1] + 1
    return _mapped(queries, lifted_query, width=width), _mapped(bank, lifted_bank, width=width)


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


def _by_distance(queries: Features, bank: Features, index: Tensor) -> Neighbours:
    """The same neighbours with −‖q − b‖ from the differences, which keeps the digits of small distances."""
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
        for rows in parts(queries, most=QUERY_TILE, times=4):  # the bank is computed for each of these parts
            some, best = queries[rows], None
            for part in parts(bank, most=BANK_TILE):
                here = _top(_products(some, bank[part]), k, part.start)
                best = here if best is None else _merge(best, here, k)
            if best is not None:
                similarity[rows], index[rows] = best
            if job is not None:
                job.advance(len(some))
    return Neighbours(similarity, index)


def _products(queries: Tensor, bank: Tensor) -> Tensor:
    """All q·b, float32 sums of products of rows in any precision."""
    if queries.dtype == torch.float32 or not queries.is_cuda:
        return queries.float() @ bank.float().T
    return torch.mm(queries, bank.T, out_dtype=torch.float32)


def _top(similarity: Tensor, k: int, offset: int) -> Neighbours:
    """The best min(k, columns) of each row, ties to the lower column; column 0 has index ``offset``."""
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
    """Rows whose best k are not settled by value: the next one is as good as the last."""
    return (values[:, k - 1 : k] == values[:, k:]).any(dim=1).nonzero().squeeze(1)


def _by_index(similarity: Tensor, index: Tensor) -> Neighbours:
    """The same neighbours, best first, equals ordered by index."""
    similarity, index = similarity.contiguous(), index.contiguous()
    tied = (similarity[:, 1:] == similarity[:, :-1]).any(dim=1).nonzero().squeeze(1)
    if len(tied):
        columns, order = index[tied].sort(dim=1)
        similarity[tied], order = similarity[tied].gather(1, order).sort(dim=1, descending=True, stable=True)
        index[tied] = columns.gather(1, order)
    return Neighbours(similarity, index)


def _lowest(similarity: Tensor, kth: Tensor, k: int) -> Neighbours:
    """The best k of each row, whose k-th best value is known; among equals, the lowest columns."""
    above, equal = similarity > kth, similarity == kth
    room = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))
    columns = chosen.nonzero()[:, 1].view(-1, k)
    values, order = similarity.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return Neighbours(values, columns.gather(1, order))


def _merge(first: Neighbours, second: Neighbours, k: int) -> Neighbours:
    """The best k of two sets, each in order, all indices of the first below those of the second."""
    similarity = torch.cat((first.similarity, second.similarity), dim=1)
    similarity, order = similarity.sort(dim=1, descending=True, stable=True)
    index = torch.cat((first.index, second.index), dim=1).gather(1, order)
    return Neighbours(similarity[:, :k], index[:, :k])
