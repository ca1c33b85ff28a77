"""The logit margin of each anchor, of which every objective of the InfoNCE family is a function."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives import fused
from ssl_vision.objectives.tiled import COLDEST, PAIRS, Exclude, Pairs, own_image, tiled, tiled_warm


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b, with its backward pass in the dtype of the inputs.

    A backward pass that is called inside ``torch.autocast`` computes the gradient of
    `torch.nn.functional.linear` in half precision, even if its forward pass ran with autocast disabled.
    The gradient of this function is exact, and differentiable again. Its forward pass follows autocast.

    Args:
        x: inputs, shape (…, I).
        weight: W, shape (O, I).
        bias: b, shape (O,).

    Returns:
        The product, shape (…, O).

    Example:
        >>> a, b = torch.ones(2, 3), torch.ones(4, 3)
        >>> linear(a, b).shape
        torch.Size([2, 4])
    """
    result: Tensor = _Linear.apply(x, weight, bias)
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, len(weight))
        with torch.autocast(device_type=gradient.device.type, enabled=False):
            return (
                linear(gradient, weight.T) if needs_x else None,
                linear(rows.T, x.reshape(-1, x.shape[-1]).T) if needs_weight else None,
                rows.sum(dim=0) if needs_bias else None,
            )


DENSE = 128
"""Maximum number of anchors with one matrix of similarities; for more, it is computed in tiles."""

_DEAD = 1e-12


def autocast_disabled(device: torch.device) -> torch.autocast:
    """Disable autocast, so that similarities are accumulated in float32."""
    return torch.autocast(device_type=device.type, enabled=False)


def at_least_float32(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return an argument of `nn.Module._apply` that changes tensors as ``function`` does, but keeps float32.

    A tensor that moves by small steps, such as a moving average, would hardly move in bfloat16 or float16.

    Example:
        >>> at_least_float32(torch.Tensor.half)(torch.ones(2)).dtype
        torch.float32
    """

    def change(tensor: Tensor) -> Tensor:
        changed = function(tensor)
        if not changed.is_floating_point() or changed.dtype.itemsize >= 4:
            return changed
        return tensor.to(changed.device, torch.promote_types(tensor.dtype, torch.float32))

    return change


def normalize(z: Tensor) -> Tensor:
    """Divide the rows of ``z`` by their L2 norm, in float32 or, for float64 input, in float64.

    A row with all values at most 1e-12 becomes zero and has no gradient, so finite input never gives NaN or
    infinity. Larger rows, up to the end of the float range, have norm 1.

    Args:
        z: floating-point embeddings, shape (N, D).

    Returns:
        Unit rows, shape (N, D), float32 or float64.

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
    """Check that two tensors can be the embeddings of two views of a batch.

    NaN and infinity are not checked, because this would require a synchronisation at every step. They show in
    the loss.

    Raises:
        ValueError: a shape or dtype is invalid; the message names the argument.
    """
    for name, z in (("z1", z1), ("z2", z2)):
        if not z.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {z.dtype} of shape {tuple(z.shape)}")
        if z.ndim != 2:
            raise ValueError(f"{name} must have shape (N, D), got {tuple(z.shape)}")
    if z1.shape != z2.shape:
        raise ValueError(f"z1 and z2 must have the same shape, got {tuple(z1.shape)} and {tuple(z2.shape)}")


def positive_similarity(z1: Tensor, z2: Tensor) -> Tensor:
    """Compute the similarity s⁺_i = cos(z1_i, z2_i) ∈ [−1, 1] of each positive pair, shape (N,).

    Example:
        >>> z1, z2 = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]])
        >>> positive_similarity(z1, z2)
        tensor([1., 0.])
    """
    return (normalize(z1) * normalize(z2)).sum(dim=-1)


def logit_margin(z1: Tensor, z2: Tensor, temperature: Tensor | float, *, pairs: Pairs = "both") -> Tensor:
    """Compute the logit margin of each anchor: by how much the negatives outweigh the positive.

        d_i(τ) = log Σ_{j ∈ Neg(i)} exp(s_ij / τ) − s⁺_i / τ

    with the cosine similarity s. DCL is d, InfoNCE is softplus(d), and the gradient-reduction factor W of the
    MACL paper (Eq. 3) is sigmoid(d). d is a log-sum-exp over the negatives only, without 1 − softmax, so its
    gradient remains accurate at small τ. For more than ``DENSE`` anchors, no N × N matrix is stored (see
    ``ssl_vision.objectives.tiled``), and a second derivative is an error.

    Args:
        z1: embeddings of view 1 at any scale, shape (N, D).
        z2: embeddings of view 2 at any scale, shape (N, D).
        temperature: temperature τ > 0, a number, a scalar tensor, or one value for each image, shape (N,).
        pairs: ``"both"`` uses the 2N − 2 embeddings of all other images as negatives (SimCLR), ``"cross"``
            the N − 1 of the other view only.

    Returns:
        d of the anchors of view 1, then of view 2, shape (2N,), float32, or float64 for float64 input.

    Raises:
        ValueError: a shape or dtype is invalid (see ``check_views``), N < 2, the temperature is a number that
            is not positive, or a tensor of an invalid shape, or ``pairs`` is unknown.

    Example:
        >>> d = logit_margin(torch.eye(4), torch.eye(4), temperature=1.0)  # log 6 − 1 for each anchor
        >>> d.shape, d[0]
        (torch.Size([8]), tensor(0.7918))
    """
    check_views(z1, z2)
    u = normalize(torch.cat([z1, z2]))
    return unit_logit_margin(u, positives(u), temperature, pairs=pairs)


def positives(u: Tensor) -> Tensor:
    """Compute the positive similarities s⁺, shape (N,), of unit rows (2N, D), those of view 1 first."""
    u1, u2 = u.chunk(2)
    return (u1 * u2).sum(dim=-1)


def unit_logit_margin(
    u: Tensor, positive: Tensor, temperature: Tensor | float, *, pairs: Pairs = "both"
) -> Tensor:
    """Compute the `logit_margin` of unit rows (2N, D) with their positive similarities (N,).

    Raises:
        ValueError: there are fewer than 2 images, the temperature is invalid, or ``pairs`` is unknown.
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
            return fused.fused_logit_margin(u, positive, tau, pairs=pairs)
        if _is_one_warm_number(temperature):
            return tiled_warm(u, positive, float(temperature), exclude, pairs=pairs)
        return tiled(u, positive, tau, exclude, pairs=pairs)


def is_dense(u: Tensor) -> bool:
    """Return True if the similarities of these rows are computed as one matrix."""
    return len(u) <= DENSE or torch.compiler.is_compiling()


def dense(u: Tensor, shift: Tensor, tau: Tensor, exclude: Exclude, *, pairs: Pairs) -> Tensor:
    """Compute the result of ``ssl_vision.objectives.tiled.tiled`` from one matrix, with any derivative."""
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
    """Return True if τ is a constant that ``tiled_warm`` accepts; tensors on accelerators are not read."""
    if not isinstance(temperature, Tensor):
        return temperature >= COLDEST
    constant = temperature.ndim == 0 and not temperature.requires_grad
    return constant and temperature.device.type == "cpu" and float(temperature) >= COLDEST


def per_anchor(temperature: Tensor | float, u: Tensor) -> Tensor:
    """Expand a number, a scalar tensor, or one value for each image to τ of the 2N rows of ``u``.

    Raises:
        ValueError: a number is not positive, or the shape is invalid.
    """
    count = len(u) // 2
    if not isinstance(temperature, Tensor):
        check("temperature", temperature, above=0)
        return u.new_full((2 * count,), temperature)
    if temperature.ndim == 0:
        return temperature.to(u).expand(2 * count)
    if temperature.shape == (count,):
        return temperature.to(u).repeat(2)
    raise ValueError(f"temperature must be a scalar or of shape ({count},), got {tuple(temperature.shape)}")
