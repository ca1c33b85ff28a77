"""Analysis of loss gradients: pull and push on each embedding, by autograd on the embeddings alone."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_vision.metrics.rows import exact_float32

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of the embeddings of two views, each (N, D), that returns a mean over the 2N embeddings."""

_AGREES = 1e-2
"""Tolerance of the sum of pull and push to the gradient, relative to their norms; sufficient for TF32."""


class GradientTerms(NamedTuple):
    """Terms of the gradient on each of 2N embeddings, those of view 1 first, each of shape (2N,).

    Pull, push and the terms derived from them are NaN if the loss depends on more than cosines. For hinges,
    they are also NaN if the embeddings are so close that rounding decides which negative is the hardest.

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> terms = gradient_terms(InfoNCE(), torch.eye(4), torch.eye(4).roll(1, 0))
        >>> (terms.norm > 0).all()
        tensor(True)
    """

    norm: Tensor
    """‖g‖, the norm of the gradient."""
    toward_positive: Tensor
    """Component of −g towards the other view, negative if the step leads away from it."""
    pull: Tensor
    """Σ −C_ij over C_ij < 0."""
    push: Tensor
    """Σ C_ij over C_ij > 0."""
    hardest_share: Tensor
    """w_h · V/‖V‖², V the total push, h the most similar pushing embedding, w_h its push; NaN at V = 0."""
    effective_negatives: Tensor
    """(Σ C)²/Σ C² over C_ij > 0, the equivalent number of equal pushes; NaN if there is no push."""
    alignment_norm: Tensor
    """Norm of the pull, ‖Π_i Σ C_ij u_j‖ over C_ij < 0."""
    uniformity_norm: Tensor
    """Norm of the push, ‖Π_i Σ C_ij u_j‖ over C_ij > 0."""


class GradientStatistics(NamedTuple):
    """Statistics of `GradientTerms` over a batch; scalars, NaN if there is nothing to average.

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> statistics = gradient_statistics(InfoNCE(), torch.eye(4), torch.eye(4).roll(1, 0))
        >>> round(float(statistics.ratio), 3)  # pull over push
        1.0
    """

    norm: Tensor
    """Mean of ‖g‖."""
    toward_positive: Tensor
    """Mean component of −g towards the other view."""
    ratio: Tensor
    """Total pull divided by total push, which is the mean of R_i weighted by push."""
    hardest_share: Tensor
    """Mean over embeddings with a push."""
    effective_negatives: Tensor
    """Mean over embeddings with a push."""
    alignment_norm: Tensor
    """Mean norm of the pull."""
    uniformity_norm: Tensor
    """Mean norm of the push."""
    norm_quotient: Tensor
    """uniformity_norm/alignment_norm."""
    zero_share: Tensor
    """Share of embeddings whose gradient is exactly zero."""
    lemma_share: Tensor
    """Share of the other embeddings that a sufficiently small step moves closer to their positive."""
    angle_gap: Tensor
    """Mean angle between embeddings of different images minus that between two views of one, in radians."""


def gradient_terms(loss: Loss, z1: Tensor, z2: Tensor) -> GradientTerms:
    """Compute pull and push on each embedding, g_i = Π_i Σ_j C_ij u_j with Π_i = I − u_i u_iᵀ.

    u are the unit embeddings. g_i is 2N ‖z_i‖ ∂L/∂z_i without its component along z_i, that is, the gradient
    on u_i without the factor 1/2N of the mean. C is computed by `pair_coefficients`; embeddings with C_ij < 0
    pull and those with C_ij > 0 push.

    In the unified-gradient paper, the terms are those of an anchor: C_ij = GD_i W_ij for a negative and
    −GD_i R_i Σ_j W_ij for the positive. This agrees with C if keys are detached. Otherwise, each embedding is
    also a key of others, and C is the sum of both roles, because s_ij = s_ji. Sums over the batch are then
    twice those of the anchors, and single values combine both roles.

    This takes the time of two evaluations of the loss, one of them with width D + 2N, plus O(N² D), and
    O(N²) memory.

    Args:
        loss: a mean over the 2N embeddings; it is called twice.
        z1: embeddings of view 1 of any scale, shape (N, D).
        z2: embeddings of view 2, shape (N, D).

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> terms = gradient_terms(InfoNCE(), torch.eye(4), torch.eye(4).roll(1, 0))
        >>> terms.norm.shape
        torch.Size([8])
    """
    z = torch.cat([z1, z2]).detach()
    u, partner = F.normalize(z, dim=1), F.normalize(torch.cat([z2, z1]).detach(), dim=1)
    with exact_float32(z.device):
        gradient = _gradient(loss, z) * len(z) * z.norm(dim=1, keepdim=True)
        gradient = _tangential(gradient, u)
        c = pair_coefficients(loss, u)
        attraction, repulsion = (_tangential(part @ u, u) for part in (c.clamp(max=0), c.clamp(min=0)))
        error = (attraction + repulsion - gradient).norm()
        agrees = error <= _AGREES * (attraction.norm() + repulsion.norm())
        pushes = c.clamp(min=0)
        push, push_norm = pushes.sum(dim=1), repulsion.norm(dim=1)
        hardest = (u @ u.T).masked_fill(c <= 0, -torch.inf).argmax(dim=1, keepdim=True)
        along = (u[hardest[:, 0]] * repulsion).sum(dim=1) * pushes.gather(1, hardest)[:, 0]
        pair_terms = (
            -c.clamp(max=0).sum(dim=1),
            push,
            along / push_norm.square(),
            push.square() / pushes.square().sum(dim=1),
            attraction.norm(dim=1),
            push_norm,
        )
        return GradientTerms(
            gradient.norm(dim=1),
            -(gradient * F.normalize(_tangential(partner, u), dim=1)).sum(dim=1),
            *(value.where(agrees, torch.nan) for value in pair_terms),
        )


def pair_coefficients(loss: Loss, u: Tensor) -> Tensor:
    """Compute C in 2N ∂L/∂u_i = Σ_j C_ij u_j for a loss that depends on cosines only; C_ii is set to 0.

    Each embedding i gets an additional coordinate in which it alone is non-zero, with the value ε. This
    changes no cosine by more than ε², far below rounding, and the gradient on i in the coordinate of j is
    ε C_ij/2N. There are no subtractions, so that small coefficients keep their precision. If keys are
    detached, C_ij ≠ C_ji.

    Args:
        loss: a function of cosines; for other losses the result is meaningless.
        u: unit embeddings, shape (2N, D), those of view 1 first.

    Returns:
        The coefficients, shape (2N, 2N).

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> pair_coefficients(InfoNCE(), torch.eye(4)).shape
        torch.Size([4, 4])
    """
    step = torch.finfo(u.dtype).eps ** 0.75
    coordinates = torch.eye(len(u), dtype=u.dtype, device=u.device) * step
    gradient = _gradient(loss, torch.cat([u, coordinates], dim=1))[:, u.shape[1] :]
    coefficients: Tensor = (gradient * (len(u) / step)).fill_diagonal_(0.0)
    return coefficients


def gradient_statistics(loss: Loss, z1: Tensor, z2: Tensor) -> GradientStatistics:
    """Compute statistics of `gradient_terms` over a batch; see there for arguments, time and memory.

    ``lemma_share`` refers to Lemma 1 of the unified-gradient paper for small steps: if the pull is r times
    the push, an embedding approaches its positive iff r > cos θ · sin β/sin α, with α and β its angles to the
    positive and the negative, and θ the angle between these in its tangent plane. This is equivalent to −g
    having a positive component towards the positive, which is counted for any loss and number of negatives.

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> statistics = gradient_statistics(InfoNCE(), torch.eye(4), torch.eye(4).roll(1, 0))
        >>> float(statistics.zero_share)
        0.0
    """
    terms = gradient_terms(loss, z1, z2)
    u = F.normalize(torch.cat([z1, z2]).detach(), dim=1)
    moved = terms.norm > 0
    alignment, uniformity = terms.alignment_norm.mean(), terms.uniformity_norm.mean()
    return GradientStatistics(
        norm=terms.norm.mean(),
        toward_positive=terms.toward_positive.mean(),
        ratio=terms.pull.sum() / terms.push.sum(),
        hardest_share=terms.hardest_share.nanmean(),
        effective_negatives=terms.effective_negatives.nanmean(),
        alignment_norm=alignment,
        uniformity_norm=uniformity,
        norm_quotient=uniformity / alignment,
        zero_share=(~moved).to(u.dtype).mean(),
        lemma_share=(terms.toward_positive[moved] > 0).to(u.dtype).mean(),
        angle_gap=_angle_gap(u),
    )


def _gradient(loss: Loss, z: Tensor) -> Tensor:
    with torch.enable_grad():
        z = z.clone().requires_grad_()
        return torch.autograd.grad(loss(*z.chunk(2)), z)[0]


def _tangential(vectors: Tensor, u: Tensor) -> Tensor:
    return vectors - (vectors * u).sum(dim=1, keepdim=True) * u


def _angle_gap(u: Tensor) -> Tensor:
    u1, u2 = u.chunk(2)
    positive = 2 * torch.atan2((u1 - u2).norm(dim=1), (u1 + u2).norm(dim=1))
    images = torch.arange(len(u), device=u.device) % len(u1)
    other = images[:, None] != images
    with exact_float32(u.device):
        return (u @ u.T).clamp(-1, 1).arccos()[other].mean() - positive.mean()
