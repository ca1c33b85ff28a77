"""Logit margin of anchors whose negatives are keys without a gradient (He et al. 2020, MoCo)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ssl_vision.objectives.tiled import NEVER

_TILE = 4096
"""Number of negatives that are compared with all anchors at a time."""


def queue_logit_margin(
    u: Tensor, shift: Tensor, tau: Tensor, keys: Tensor, *, own_key: bool = False
) -> Tensor:
    """Compute the logit margin of each anchor against keys.

        d_i = log Σ_k exp((u_i · n_k − c_i) / τ_i)

    The similarities are computed in tiles, and again in the backward pass, so memory is O(N D + K D) instead
    of O(N K). The result is differentiable once in ``u``, ``shift`` and ``tau``. The keys have no gradient.

    Args:
        u: unit rows of the anchors, shape (N, D), float32 or float64.
        shift: similarities c to the positives, shape (N,).
        tau: temperatures τ > 0, shape (N,).
        keys: unit rows of the negatives, such as those of a queue, shape (K, D).
        own_key: True if key i is the positive of anchor i and not one of its negatives.

    Returns:
        d, shape (N,).
    """
    result: Tensor = _QueueLogitMargin.apply(u, shift, tau, keys.detach(), own_key)
    return result


class _QueueLogitMargin(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, u: Tensor, shift: Tensor, tau: Tensor, keys: Tensor, own_key: bool
    ) -> Tensor:
        peak, total = u.new_full((len(u),), -torch.inf), u.new_zeros(len(u))
        for _, logits in _tiles(u, shift, tau, keys, own_key):
            higher = torch.maximum(peak, logits.amax(dim=1))
            total = total * (peak - higher).exp() + (logits - higher[:, None]).exp_().sum(dim=1)
            peak = higher
        d = peak + total.log()
        ctx.save_for_backward(u, shift, tau, keys, d)
        ctx.own_key = own_key
        return d

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        u, shift, tau, keys, d = ctx.saved_tensors
        scaled = gradient / tau
        to_u, to_tau = torch.zeros_like(u), torch.zeros_like(tau)
        with torch.autocast(device_type=u.device.type, enabled=False):
            for tile, logits in _tiles(u, shift, tau, keys, ctx.own_key):
                share = (logits - d[:, None]).exp_().mul_(scaled[:, None])
                to_u.addmm_(share, tile)
                to_tau -= (share * logits).sum(dim=1)
        return to_u, -scaled, to_tau, None, None


def _tiles(
    u: Tensor, shift: Tensor, tau: Tensor, keys: Tensor, own_key: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over parts of the keys, shape (k, D), and the logits of the anchors, shape (N, k)."""
    for start in range(0, len(keys), _TILE):
        tile = keys[start : start + _TILE]
        logits = (u @ tile.T).sub_(shift[:, None]).div_(tau[:, None])
        if own_key and start < len(u):
            logits.diagonal(-start).fill_(NEVER)
        yield tile, logits
