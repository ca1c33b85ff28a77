"""Gate, weight and ratio of single anchors with given angles."""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ssl_vision.errors import InputError
from ssl_vision.experiments.report.maps.anchors import losses, on_circle
from ssl_vision.objectives import AnchorBatch, UnifiedGradient
from ssl_vision.objectives.uniformity import Spread


class Factors(NamedTuple):
    """GD, W and R of the unified-gradient paper for B anchors, each of shape (B,)."""

    gate: Tensor
    """GD in [0, 1] (W′ ≥ 1 for MACL-c): the weight on ∇d, 0 or 1 for a hinge, 1 without a gate."""
    share: Tensor
    """The largest W_ij divided by the sum of the positive ones; NaN without any, or at a gate of 0."""
    ratio: Tensor
    """Effective R, pull divided by push Σ_j W_ij; NaN if the negatives do not push, or at a gate of 0."""


def gradient_factors(objective: nn.Module, positive: Tensor, negatives: Tensor) -> Factors:
    """Compute GD, W and R of anchors with given angles, each in a batch of anchors with the same angles.

    For `Contrastive`, `HardestTriplet`, `AlignmentUniformity`, `MHE`, `MHS` and `SphericalVICReg`, these
    are derivatives of the anchor's loss with respect to the cosines, by autograd. For `UnifiedGradient`, they
    are computed by its own gate, weight and ratio, with R twice its ratio if it `doubles`.

    Args:
        objective: one of these. A temperature that depends on the alignment uses the mean of these anchors.
        positive: angles to the positives, shape (B,), in (0, π).
        negatives: angles to the negatives, shape (B, K).

    Raises:
        InputError: the objective is not supported, or one of its parts depends on more than angles.
    """
    if isinstance(objective, UnifiedGradient):
        return _of_unified_gradient(objective, positive, negatives)
    positive, negatives = positive.clone().requires_grad_(), negatives.clone().requires_grad_()
    anchors = losses(objective, positive, negatives)
    by_positive, by_negatives = torch.autograd.grad(anchors.values.sum(), (positive, negatives))
    with torch.no_grad():
        pull = by_positive / positive.sin()  # −∂ℓ/∂s = ∂ℓ/∂θ / sin θ
        pushes = -by_negatives / negatives.sin()
        return _factors(anchors.gate(pushes.sum(dim=1)), pushes, pull)


def doubles(objective: nn.Module) -> bool:
    """Return True if the effective R is twice the objective's own ratio.

    This is so if negatives are detached and positives are not. The similarity of a positive then pulls an
    embedding as anchor and as key, while that of a negative pushes it only as anchor.
    """
    return isinstance(objective, UnifiedGradient) and objective.detach == "negatives"


def scaling(negatives: Tensor, temperature: Tensor) -> Tensor:
    """Compute W = K/(K + exp(2/τ)) of an anchor with s⁺ = 1 and K negatives at s = −1 (MACL paper, Fig. 3).

    Args:
        negatives: number of negatives K.
        temperature: temperature τ, broadcast with ``negatives``.
    """
    return (negatives.log() - 2 / temperature).sigmoid()


class Angles(AnchorBatch):
    """B anchors from different batches; all anchors of a batch and both views have the same angles.

    Args:
        positive: angles to the positives, shape (B,).
        negatives: angles to the negatives in either view, shape (B, K).
        pairs: as in ``AnchorBatch``.
    """

    def __init__(self, positive: Tensor, negatives: Tensor, pairs: Spread) -> None:
        super().__init__(on_circle(torch.zeros_like(positive)), on_circle(positive), pairs)
        self.angles = negatives

    @cached_property
    def similarity(self) -> Tensor:
        """Cosines of the negatives, (B, K)."""
        return self.angles.cos()

    @property
    def other_similarity(self) -> Tensor:
        """The same as `similarity`, (B, K)."""
        return self.similarity

    def negatives(self, pairs: Spread) -> Tensor:
        """Return a mask of the negatives, all True, (B, K)."""
        return torch.ones_like(self.angles, dtype=torch.bool)

    def keys(self, index: Tensor) -> Tensor:
        """Return unit vectors (B, 2) at the angles of the negatives."""
        return on_circle(self.angles.gather(1, index[:, None])[:, 0])

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """Return the value of each anchor, (B, 1)."""
        return ((self.similarity - 1) / temperature).logsumexp(dim=1, keepdim=True)


@torch.no_grad()
def _of_unified_gradient(objective: UnifiedGradient, positive: Tensor, negatives: Tensor) -> Factors:
    anchors = Angles(positive, negatives, objective.pairs)
    try:
        gate, weight, ratio = objective.gate(anchors), objective.weight(anchors), objective.ratio(anchors)
    except AttributeError as error:
        name = type(objective).__name__
        raise InputError(f"no map of {name}: one of its parts needs more than angles: {error}") from error
    pushes = weight * gate[:, None]
    return _factors(gate, pushes, pushes.sum(dim=1) * ratio * (2 if doubles(objective) else 1))


def _factors(gate: Tensor, pushes: Tensor, pull: Tensor) -> Factors:
    push, outward = pushes.sum(dim=1), pushes.clamp(min=0)
    return Factors(gate, outward.amax(dim=1) / outward.sum(dim=1), (pull / push).where(push > 0, torch.nan))
