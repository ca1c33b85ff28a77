"""The margin's log-sum-exp without an N × N matrix: memory grows with N · D, not with N².

Both functions go over the similarities in tiles, keep one number a row, and compute each tile again in
the backward pass. They are exact; sums are taken in the same order at every call, so a second call gives the
same bits.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TILE = 256
"""Rows (and, where tiles are symmetric, columns) of a tile."""

COLDEST = 0.025
"""Smallest τ for which exp((s − 1)/τ) stays in float32's range for every cosine s."""


def row_tiles(anchors: Tensor, keys: Tensor, positive: Tensor, tau: Tensor, excluded: Tensor) -> Tensor:
    """log Σ_{j ∉ excluded(i)} exp((a_i · k_j − p_i) / τ_i) for each row i, at any τ_i > 0.

    Each row is shifted by its own maximum. Differentiable in everything but ``excluded``, once.

    Args:
        anchors: (M, D) unit rows a.
        keys: (K, D) unit rows k.
        positive: (M,) p.
        tau: (M,) τ.
        excluded: (M, E) int64, the keys that are no negatives of each anchor.

    Returns:
        (M,).
    """
    d: Tensor = _RowTiles.apply(anchors, keys, positive, tau, excluded)
    return d


def symmetric_tiles(u: Tensor, positive: Tensor, tau: Tensor) -> Tensor:
    """log Σ_{j ∉ {i, partner of i}} exp((u_i · u_j − p_i) / τ) for each row i, at one τ ≥ ``COLDEST``.

    The rows of both views are anchors and keys at once, so each pair of rows is looked at once, for half the
    work of ``row_tiles``. The common shift 1/τ bounds every exponent. Differentiable in ``u`` and
    ``positive``, once.

    Args:
        u: (2N, D) unit rows, those of view 1 first; the partner of row i is row i ± N.
        positive: (2N,) p.
        tau: scalar τ.

    Returns:
        (2N,).
    """
    d: Tensor = _SymmetricTiles.apply(u, positive, tau)
    return d


class _RowTiles(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, anchors: Tensor, keys: Tensor, positive: Tensor, tau: Tensor, excluded: Tensor
    ) -> Tensor:
        parts = zip(*_split(anchors, positive, tau, excluded), strict=True)
        d = torch.cat([_gaps(a, keys, p, t, out).logsumexp(dim=1) for a, p, t, out in parts])
        ctx.save_for_backward(anchors, keys, positive, tau, excluded, d)
        return d

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _refuse_second_derivative()
        anchors, keys, positive, tau, excluded, d = ctx.saved_tensors
        scaled = gradient / tau
        to_keys = torch.zeros_like(keys)
        to_anchors, to_tau = [], []
        parts = _split(anchors, positive, tau, excluded, d, scaled)
        with torch.autocast(device_type=gradient.device.type, enabled=False):
            for a, p, t, out, total, scale in zip(*parts, strict=True):
                gap = _gaps(a, keys, p, t, out)
                share = (gap - total[:, None]).exp_().mul_(scale[:, None])
                if ctx.needs_input_grad[3]:
                    gap.scatter_(1, out, 0.0)  # their share is 0, and 0 · −∞ is not
                    to_tau.append(-(share * gap).sum(dim=1))
                to_anchors.append(share @ keys)
                to_keys.addmm_(share.T, a)
        return torch.cat(to_anchors), to_keys, -scaled, torch.cat(to_tau) if to_tau else None, None


class _SymmetricTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, positive: Tensor, tau: Tensor) -> Tensor:  # type: ignore[override]
        total = u.new_zeros(len(u))
        for rows, columns, tile in _triangle(u, tau):
            total[rows] += tile.sum(dim=1)
            if rows != columns:
                total[columns] += tile.sum(dim=0)
        ctx.save_for_backward(u, tau, total)
        return total.log() + (1 - positive) / tau

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _refuse_second_derivative()
        u, tau, total = ctx.saved_tensors
        scaled = gradient / tau
        weight = scaled / total
        to_u = torch.zeros_like(u)
        with torch.autocast(device_type=gradient.device.type, enabled=False):
            for rows, columns, tile in _triangle(u, tau):
                tile.mul_(weight[rows, None] + weight[columns])
                to_u[rows].addmm_(tile, u[columns])
                if rows != columns:
                    to_u[columns].addmm_(tile.T, u[rows])
        return to_u, -scaled, None


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError("create_graph=True: the tiled margin has a first derivative only")


def _split(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return [tensor.split(TILE) for tensor in tensors]  # type: ignore[no-untyped-call]


def _gaps(anchors: Tensor, keys: Tensor, positive: Tensor, tau: Tensor, excluded: Tensor) -> Tensor:
    gap = (anchors @ keys.T).sub_(positive[:, None]).div_(tau[:, None])
    return gap.scatter_(1, excluded, -torch.inf)


def _triangle(u: Tensor, tau: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """(rows, columns, exp((s − 1)/τ)) of the tiles on and above the diagonal, non-negatives at 0."""
    half = len(u) // 2
    starts = range(0, len(u), TILE)
    for top in starts:
        rows = slice(top, min(top + TILE, len(u)))
        for left in starts[top // TILE :]:
            columns = slice(left, min(left + TILE, len(u)))
            tile = (u[rows] @ u[columns].T).sub_(1).div_(tau).exp_()
            for offset in (-half, 0, half):  # where the entries (i, i) and (i, partner of i) lie
                diagonal = top - left + offset
                if -tile.shape[0] < diagonal < tile.shape[1]:
                    tile.diagonal(diagonal).zero_()
            yield rows, columns, tile
