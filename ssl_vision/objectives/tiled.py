"""Log-sum-exps and maxima over pairs of embeddings without an N × N matrix, in O(N · D) memory.

The similarities are symmetric, so each tile is used for its rows and its columns. Each pair is computed once
in the forward pass and once in the backward pass, which computes the tiles again. Sums are exact and have the
same order at every call, so a second call gives the same bits.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Pairs = Literal["both", "cross"]
"""Negatives from both views, or from the other view only."""

PAIRS = get_args(Pairs)

Exclude = Callable[[Tensor, slice, slice], None]
"""Sets excluded entries of a tile (rows × columns of the similarities) to ``NEVER``."""

TILE = 384
"""Number of rows and columns of a tile on a CPU, chosen to fit into the cache."""

LARGE_TILE = 2048
"""The same on other devices, where a kernel launch costs as much as a million products."""

KEPT = 1024
"""Maximum number of anchors whose tiles are stored for the backward pass (2 MB in float32)."""

COLDEST = 0.025
"""Smallest τ for which exp((s − 1)/τ) stays in float32's range for every cosine s."""

NEVER = -1e30
"""Replaces −∞, to avoid the NaN of −∞ − −∞ and 0 · −∞."""

_TWO = 1 / math.log(2)
"""e^x = 2^(x · _TWO); exp2 takes a third of exp's time on a CPU."""

_SMALLEST = -100.0
"""2^−100 is negligible beside the largest term, 1, and prevents slow denormal numbers in products."""


def own_image(half: int) -> Exclude:
    """Exclude the anchor and its positive, the row ``half`` before or after it."""

    def exclude(tile: Tensor, rows: slice, columns: slice) -> None:
        for offset in (-half, 0, half):
            diagonal = rows.start - columns.start + offset
            if -tile.shape[0] < diagonal < tile.shape[1]:
                tile.diagonal(diagonal).fill_(NEVER)

    return exclude


def itself(tile: Tensor, rows: slice, columns: slice) -> None:
    """Exclude only the anchor."""
    if rows == columns:
        tile.diagonal().fill_(NEVER)


@torch.no_grad()
def hardest(u: Tensor, *, pairs: Pairs) -> Tensor:
    """Find the most similar row of another image for each row.

    Args:
        u: unit rows, those of view 1 first, shape (2N, D).
        pairs: selection of the pairs, as in ``tiled``.

    Returns:
        The indices, int64 of shape (2N,).
    """
    best, index = u.new_full((len(u),), -torch.inf), torch.zeros(len(u), dtype=torch.long, device=u.device)

    def absorb(tile: Tensor, anchors: slice, keys: slice, dim: int) -> None:
        largest, position = tile.max(dim=dim)
        higher = largest > best[anchors]
        best[anchors] = torch.where(higher, largest, best[anchors])
        index[anchors] = torch.where(higher, position + keys.start, index[anchors])

    for rows, columns, tile in _similarities(u, u, own_image(len(u) // 2), pairs):
        absorb(tile, rows, columns, 1)
        if rows != columns:
            absorb(tile, columns, rows, 0)
    return index


def tiled(u: Tensor, shift: Tensor, tau: Tensor, exclude: Exclude, *, pairs: Pairs) -> Tensor:
    """Compute log Σ_j exp((u_i · u_j − c_i) / τ_i) over all j that are not excluded, for each row i.

    Each row is shifted by its maximum, so any τ_i > 0 is allowed. If all rows have the same number τ ≥
    ``COLDEST``, ``tiled_warm`` is faster. The result is differentiable once in ``u``, ``shift`` and ``tau``.

    Args:
        u: unit rows, those of view 1 first, shape (2N, D).
        shift: values c, shape (2N,).
        tau: temperatures τ, shape (2N,).
        exclude: function that marks excluded pairs.
        pairs: ``"both"`` for j over all rows, or ``"cross"`` for j over the rows of the other view.

    Returns:
        The log-sum-exps, shape (2N,); −1e30 or less if all j are excluded.
    """
    result: Tensor = _Cold.apply(u, shift, tau, exclude, pairs)
    return result


def tiled_warm(u: Tensor, shift: Tensor, tau: float, exclude: Exclude, *, pairs: Pairs) -> Tensor:
    """Compute ``tiled`` for one number τ ≥ ``COLDEST``, where the common shift 1/τ bounds every exponent."""
    result: Tensor = _Warm.apply(u, shift, tau, exclude, pairs)
    return result


class _Cold(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, u: Tensor, shift: Tensor, tau: Tensor, exclude: Exclude, pairs: Pairs
    ) -> Tensor:
        peak, total = u.new_full((len(u),), -torch.inf), u.new_zeros(len(u))
        work = _buffer(u)
        tiles = []
        inverse = 1 / tau
        for rows, columns, tile in _similarities(u, u, exclude, pairs):
            gap = _gap(tile, shift[rows, None], inverse[rows, None], work)
            _absorb(gap, peak[rows], total[rows], dim=1)
            if rows != columns:
                gap = _gap(tile, shift[columns], inverse[columns], work)
                _absorb(gap, peak[columns], total[columns], dim=0)
            if len(u) <= KEPT:
                tiles.append((rows, columns, tile))
        ctx.tiles, ctx.exclude, ctx.pairs = tiles, exclude, pairs
        d = peak + total.log()
        ctx.save_for_backward(u, shift, tau, d)
        return d

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivative()
        u, shift, tau, d = ctx.saved_tensors
        inverse = 1 / tau
        scaled = gradient * inverse
        to_u, to_tau = torch.zeros_like(u), torch.zeros_like(tau)
        row_buffer, column_buffer, spare = _buffer(u), _buffer(u), _buffer(u)

        def share(tile: Tensor, index: Any, out: Tensor, dim: int) -> Tensor:
            """Compute the share of each entry in the sum of its anchor, times the gradient of the anchor."""
            relative = _gap(tile, shift[index], inverse[index], out).sub_(d[index])
            if ctx.needs_input_grad[2]:
                part = _exponential(_shaped(spare, relative).copy_(relative)).mul_(scaled[index])
                to_tau[index].view(-1).sub_(part.mul_(relative.clamp_(min=_SMALLEST) + d[index]).sum(dim=dim))
            return _exponential(relative).mul_(scaled[index])

        with torch.autocast(device_type=gradient.device.type, enabled=False):
            for rows, columns, tile in ctx.tiles or _similarities(u, u, ctx.exclude, ctx.pairs):
                weight = share(tile, (rows, None), row_buffer, 1)
                if rows == columns:
                    to_u[rows].addmm_(weight + weight.T, u[rows])
                    continue
                weight.add_(share(tile, columns, column_buffer, 0))
                to_u[rows].addmm_(weight, u[columns])
                to_u[columns].addmm_(weight.T, u[rows])
        return to_u, -scaled, to_tau, None, None


class _Warm(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, u: Tensor, shift: Tensor, tau: float, exclude: Exclude, pairs: Pairs
    ) -> Tensor:
        total = u.new_zeros(len(u))
        tiles = []
        for rows, columns, tile in _exponentials(u, tau, exclude, pairs):
            total[rows] += tile.sum(dim=1)
            if rows != columns:
                total[columns] += tile.sum(dim=0)
            if len(u) <= KEPT:
                tiles.append((rows, columns, tile))
        ctx.tiles, ctx.tau, ctx.exclude, ctx.pairs = tiles, tau, exclude, pairs
        ctx.save_for_backward(u, total)
        return total.log() + (1 - shift) / tau

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivative()
        u, total = ctx.saved_tensors
        scaled = gradient / ctx.tau
        weight = scaled / total
        to_u = torch.zeros_like(u)
        work = _buffer(u)
        with torch.autocast(device_type=gradient.device.type, enabled=False):
            for rows, columns, tile in ctx.tiles or _exponentials(u, ctx.tau, ctx.exclude, ctx.pairs):
                both = torch.add(weight[rows, None], weight[columns], out=_shaped(work, tile)).mul_(tile)
                to_u[rows].addmm_(both, u[columns])
                if rows != columns:
                    to_u[columns].addmm_(both.T, u[rows])
        return to_u, -scaled, None, None, None


def refuse_second_derivative() -> None:
    """Raise a RuntimeError in a backward pass that is itself to be differentiated."""
    if torch.is_grad_enabled():
        raise RuntimeError("create_graph=True: the tiled logit margin has a first derivative only")


def _side(u: Tensor) -> int:
    return TILE if u.device.type == "cpu" else LARGE_TILE


def _buffer(u: Tensor) -> Tensor:
    return u.new_empty(_side(u) ** 2)


def _shaped(buffer: Tensor, like: Tensor) -> Tensor:
    return buffer[: like.numel()].view(like.shape)


def _gap(tile: Tensor, shift: Tensor, inverse: Tensor, out: Tensor) -> Tensor:
    return torch.sub(tile, shift, out=_shaped(out, tile)).mul_(inverse)


def _absorb(gap: Tensor, peak: Tensor, total: Tensor, *, dim: int) -> None:
    """Add a tile to the running Σ exp(gap − peak) of its anchors, overwriting ``gap``."""
    higher = torch.maximum(peak, gap.amax(dim=dim))
    total.mul_((peak - higher).exp_())
    total.add_(_exponential(gap.sub_(higher.unsqueeze(dim))).sum(dim=dim))
    peak.copy_(higher)


def _exponential(x: Tensor) -> Tensor:
    """Compute e^x in place."""
    return x.mul_(_TWO).clamp_(min=_SMALLEST).exp2_()


def _exponentials(
    u: Tensor, tau: float, exclude: Exclude, pairs: Pairs
) -> Iterator[tuple[slice, slice, Tensor]]:
    for rows, columns, tile in _similarities(u * (_TWO / tau), u, exclude, pairs):
        yield rows, columns, tile.sub_(_TWO / tau).exp2_()


def _similarities(
    u: Tensor, v: Tensor, exclude: Exclude, pairs: Pairs
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Iterate over (rows, columns, u · v) of tiles with each pair once; large batches reuse one buffer."""
    count, half = len(u), len(u) // 2
    buffer, side = _buffer(u), _side(u)
    end = count if pairs == "both" else half
    for top in range(0, end, side):
        for left in range(top if pairs == "both" else half, count, side):
            rows, columns = slice(top, min(top + side, end)), slice(left, min(left + side, count))
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            out = u.new_empty(shape) if count <= KEPT else buffer[: shape[0] * shape[1]].view(shape)
            tile = torch.mm(u[rows], v[columns].T, out=out)
            exclude(tile, rows, columns)
            yield rows, columns, tile
