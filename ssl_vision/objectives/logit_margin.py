"""The logit margin: the number per anchor of which every objective of the InfoNCE family is a function."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ssl_vision.objectives import fused
from ssl_vision.objectives.arguments import check_choice
from ssl_vision.objectives.linear import linear
from ssl_vision.objectives.tiled import COLDEST, PAIRS, Exclude, Pairs, own_image, tiled, tiled_warm

DENSE = 128
"""Anchors up to which the similarities are kept as one matrix; beyond it they are computed in tiles."""

_DEAD = 1e-12


@contextmanager
def autocast_disabled(device: torch.device) -> Iterator[None]:
    """Switches autocast off: similarities accumulate in float32 whatever the surrounding dtype."""
    with torch.autocast(device_type=device.type, enabled=False):
        yield


def normalize(z: Tensor) -> Tensor:
    """Rows of ``z`` divided by their L2 norm, in float32 (float64 stays float64).

    A row shorter than 1e-12 becomes zero and gets no gradient, so no finite input gives NaN or
    infinity; rows of any larger size, up to the end of the float range, come out at norm 1.

    Args:
        z: (N, D) floating point.

    Returns:
        (N, D), float32 or float64.

    Example:
        >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    with autocast_disabled(z.device):
        z = z if z.dtype == torch.float64 else z.float()
        largest = z.detach().abs().amax(dim=-1, keepdim=True)
        # Scale invariance makes dividing by a detached constant exact, and keeps the squares in range.
        z = z / torch.where(largest > _DEAD, largest, torch.inf)
        norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        return z / torch.where(norm > 0, norm, 1.0)


def check_views(z1: Tensor, z2: Tensor) -> None:
    """Refuses what cannot be two views of one batch.

    NaN and infinity are not looked for, which would stop an accelerator at every step: they show in the loss.

    Raises:
        ValueError: naming the argument and its shape or dtype.
    """
    for name, z in (("z1", z1), ("z2", z2)):
        if not z.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {z.dtype} of shape {tuple(z.shape)}")
        if z.ndim != 2:
            raise ValueError(f"{name} must have shape (N, D), got {tuple(z.shape)}")
    if z1.shape != z2.shape:
        raise ValueError(f"z1 and z2 must have one shape, got {tuple(z1.shape)} and {tuple(z2.shape)}")


def positive_similarity(z1: Tensor, z2: Tensor) -> Tensor:
    """Cosine similarity s⁺_i = cos(z1_i, z2_i) of each positive pair, (N,), in [−1, 1].

    Example:
        >>> z1, z2 = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]])
        >>> positive_similarity(z1, z2)
        tensor([1., 0.])
    """
    return (normalize(z1) * normalize(z2)).sum(dim=-1)


def logit_margin(z1: Tensor, z2: Tensor, temperature: Tensor | float, *, pairs: Pairs = "both") -> Tensor:
    """How far the negatives outweigh the positive, for each anchor.

        d_i(τ) = log Σ_{j ∈ Neg(i)} exp(s_ij / τ) − s⁺_i / τ

    with s the cosine similarity. DCL is d, InfoNCE is softplus(d), and the gradient-reduction factor of
    the MACL paper (its W, Eq. 3) is sigmoid(d). Computed as a log-sum-exp over the negatives alone:
    1 − softmax never appears, so the gradient survives at small τ. Beyond ``DENSE`` anchors nothing of size
    N × N is kept (see ``ssl_vision.objectives.tiled``); a second derivative then is an error.

    Args:
        z1: (N, D) embeddings of view 1, any scale.
        z2: (N, D) embeddings of view 2, any scale.
        temperature: τ > 0, a number, a scalar tensor, or (N,) with one value for each image.
        pairs: ``"both"`` takes every other embedding of the batch as negative (SimCLR, 2N − 2 of them),
            ``"cross"`` those of the other view only (N − 1).

    Returns:
        (2N,): anchors of view 1, then those of view 2; float32, or float64 for float64 input.

    Raises:
        ValueError: for shapes, dtypes or N < 2 (see ``check_views``), a temperature that is not
            positive or not of a fitting shape, or an unknown ``pairs``.

    Example:
        >>> d = logit_margin(torch.eye(4), torch.eye(4), temperature=1.0)  # log 6 − 1 for each anchor
        >>> d.shape, d[0]
        (torch.Size([8]), tensor(0.7918))
    """
    check_views(z1, z2)
    u = normalize(torch.cat([z1, z2]))
    return unit_logit_margin(u, positives(u), temperature, pairs=pairs)


def positives(u: Tensor) -> Tensor:
    """Positive similarities s⁺, (N,), of unit rows (2N, D), those of view 1 first."""
    u1, u2 = u.chunk(2)
    return (u1 * u2).sum(dim=-1)


def unit_logit_margin(
    u: Tensor, positive: Tensor, temperature: Tensor | float, *, pairs: Pairs = "both"
) -> Tensor:
    """`logit_margin` of rows (2N, D) that are normalised already, with their positive similarities (N,).

    Raises:
        ValueError: for fewer than 2 images, a temperature that does not fit, or an unknown ``pairs``.
    """
    check_choice("pairs", pairs, PAIRS)
    if len(u) < 4:
        raise ValueError(
            f"z1 of shape {(len(u) // 2, u.shape[1])} has no negatives: at least 2 images are needed"
        )
    with autocast_disabled(u.device):
        tau = per_anchor(temperature, u)
        positive = positive.repeat(2)
        exclude = own_image(len(u) // 2)
        if is_dense(u):
            return dense(u, positive, tau, exclude, pairs=pairs)
        if fused.available(u):
            if pairs == "both":
                return fused.fused_both(u, positive, tau)
            u1, u2 = u.chunk(2)
            return fused.fused_cross(u1, u2, positive[: len(u1)], tau)
        if _is_one_warm_number(temperature):
            return tiled_warm(u, positive, float(temperature), exclude, pairs=pairs)
        return tiled(u, positive, tau, exclude, pairs=pairs)


def is_dense(u: Tensor) -> bool:
    """Whether the similarities of these rows are kept as one matrix."""
    return len(u) <= DENSE or torch.compiler.is_compiling()


def dense(u: Tensor, shift: Tensor, tau: Tensor, exclude: Exclude, *, pairs: Pairs) -> Tensor:
    """What ``ssl_vision.objectives.tiled.tiled`` computes, all at once and with any derivative."""
    count, half = len(u), len(u) // 2
    rows, columns = (
        (slice(0, count), slice(0, count)) if pairs == "both" else (slice(0, half), slice(half, count))
    )
    similarity = linear(u[rows], u[columns])
    counts = torch.zeros_like(similarity)
    exclude(counts, rows, columns)
    if pairs == "cross":
        similarity, counts = torch.cat([similarity, similarity.T]), torch.cat([counts, counts.T])
    return ((similarity - shift[:, None]) / tau[:, None] + counts).logsumexp(dim=1)


def _is_one_warm_number(temperature: Tensor | float) -> bool:
    """Whether τ is a constant that suits ``tiled_warm``; an accelerator's tensor is not looked at."""
    if not isinstance(temperature, Tensor):
        return temperature >= COLDEST
    constant = temperature.ndim == 0 and not temperature.requires_grad
    return constant and temperature.device.type == "cpu" and float(temperature) >= COLDEST


def per_anchor(temperature: Tensor | float, u: Tensor) -> Tensor:
    """τ of each of the 2N rows of ``u``, from a number, a scalar tensor, or one value for each image.

    Raises:
        ValueError: for a number that is not positive, or a shape that does not fit.
    """
    count = len(u) // 2
    if not isinstance(temperature, Tensor):
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        return u.new_full((2 * count,), temperature)
    if temperature.ndim == 0:
        return temperature.to(u).expand(2 * count)
    if temperature.shape == (count,):
        return temperature.to(u).repeat(2)
    raise ValueError(f"temperature must be a scalar or of shape ({count},), got {tuple(temperature.shape)}")
