"""What a loss does to each embedding: how it pulls and pushes, from autograd on the embeddings alone."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_vision.metrics.precision import exact_float32

Loss = Callable[[Tensor, Tensor], Tensor]
"""From the two views' embeddings, each (N, D), to a scalar that is a mean over the 2N of them."""

_AGREES = 1e-2
"""Share of pull and push by which their sum may differ from the gradient, TF32 included."""


class GradientTerms(NamedTuple):
    """The gradient that each of 2N embeddings receives, those of view 1 first.

    All (2N,). Pull, push and what is made of them are NaN where the loss is not one of cosines alone.

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> terms = gradient_terms(InfoNCE(), torch.eye(4), torch.eye(4).roll(1, 0))
        >>> (terms.norm > 0).all()
        tensor(True)
    """

    norm: Tensor
    """‖g‖."""
    toward_positive: Tensor
    """Length of −g along the way to the other view, negative where the step leads away from it."""
    pull: Tensor
    """Σ −C_ij over C_ij < 0."""
    push: Tensor
    """Σ C_ij over C_ij > 0."""
    hardest_share: Tensor
    """w_h · V/‖V‖², h the most similar of those that push, V all their push and w_h its own; NaN at V = 0."""
    effective_negatives: Tensor
    """(Σ C)²/Σ C² over C_ij > 0: the number of equal pushes that are as concentrated; NaN where none is."""
    alignment_norm: Tensor
    """Length of the pull, ‖Π_i Σ C_ij u_j‖ over C_ij < 0."""
    uniformity_norm: Tensor
    """Length of the push, the same over C_ij > 0."""


class GradientStatistics(NamedTuple):
    """A batch's `GradientTerms` in numbers; scalars, NaN where there is nothing to average.

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> statistics = gradient_statistics(InfoNCE(), torch.eye(4), torch.eye(4).roll(1, 0))
        >>> round(float(statistics.ratio), 3)  # pull over push
        1.0
    """

    norm: Tensor
    """Mean ‖g‖."""
    toward_positive: Tensor
    """Mean length of −g along the way to the other view."""
    ratio: Tensor
    """All pull over all push: the mean of R_i, weighed by push."""
    hardest_share: Tensor
    """Mean, over embeddings that are pushed."""
    effective_negatives: Tensor
    """Mean, over embeddings that are pushed."""
    alignment_norm: Tensor
    """Mean."""
    uniformity_norm: Tensor
    """Mean."""
    norm_quotient: Tensor
    """uniformity_norm/alignment_norm."""
    zero_share: Tensor
    """Share of embeddings whose gradient is exactly zero."""
    lemma_share: Tensor
    """Share of the others that a small enough step brings closer to their positive."""
    angle_gap: Tensor
    """Mean angle of two images' embeddings, of any views, less that of an image's two views; radians."""


def gradient_terms(loss: Loss, z1: Tensor, z2: Tensor) -> GradientTerms:
    """Pull and push on each embedding, g_i = Π_i Σ_j C_ij u_j with Π_i = I − u_i u_iᵀ, u unit embeddings.

    g_i = 2N ‖z_i‖ ∂L/∂z_i less its part along z_i: the gradient on u_i, without the mean's 1/2N. C comes from
    `pair_coefficients`; what has C_ij < 0 pulls and what has C_ij > 0 pushes.

    The unified-gradient paper's terms are those of an anchor: C_ij = GD_i W_ij for a negative and
    −GD_i R_i Σ_j W_ij for the positive. They come out where keys are detached. Elsewhere an embedding is a
    key of others, too, and a loss of cosines does not say whose similarity s_ij = s_ji is: C is then the sum
    of both roles. Sums over the batch are those of the anchors, twice; single values mix an anchor's own with
    what it gets as a key.

    Time is that of two evaluations of the loss, one of them of width D + 2N, and O(N² D); memory O(N²).

    Args:
        loss: a mean over the 2N embeddings; it is called twice.
        z1: (N, D) embeddings of view 1, any scale.
        z2: (N, D) embeddings of view 2.

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
        of_pairs = (
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
            *(value.where(agrees, torch.nan) for value in of_pairs),
        )


def pair_coefficients(loss: Loss, u: Tensor) -> Tensor:
    """C of 2N ∂L/∂u_i = Σ_j C_ij u_j for a loss of cosines, (2N, 2N); C_ii, which moves nothing, is 0.

    Embedding i gets a coordinate of its own, in which it alone is not zero: ε. No cosine changes by more than
    ε², far below rounding, and in the coordinate of j the gradient on i is ε C_ij/2N. Nothing is subtracted,
    so small coefficients keep all their digits. Keys that are detached have C_ij ≠ C_ji.

    Args:
        loss: a function of cosines; for any other the result means nothing.
        u: (2N, D) unit embeddings, those of view 1 first.

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import InfoNCE
        >>> pair_coefficients(InfoNCE(), torch.eye(4)).shape
        torch.Size([4, 4])
    """
    step = torch.finfo(u.dtype).eps ** 0.75
    own = torch.eye(len(u), dtype=u.dtype, device=u.device) * step
    gradient = _gradient(loss, torch.cat([u, own], dim=1))[:, u.shape[1] :]
    coefficients: Tensor = (gradient * (len(u) / step)).fill_diagonal_(0.0)
    return coefficients


def gradient_statistics(loss: Loss, z1: Tensor, z2: Tensor) -> GradientStatistics:
    """Means over a batch of what `gradient_terms` finds, which see for arguments, time and memory.

    The lemma is the unified-gradient paper's Lemma 1 for small steps: pulled r times as hard as pushed, an
    embedding nears its positive iff r > cos θ · sin β/sin α, with α and β its angles to positive and negative
    and θ the one between these on its tangent plane. That is iff −g points to the positive's side, which is
    how it is counted, for any loss and any number of negatives.

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
