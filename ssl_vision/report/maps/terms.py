"""Gate, weight and ratio of single anchors whose angles are given."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ssl_vision.errors import InputError
from ssl_vision.objectives import UnifiedGradient
from ssl_vision.report.maps.anchors import losses
from ssl_vision.report.maps.parts import Angles


class Terms(NamedTuple):
    """Of B anchors, (B,) each: the unified-gradient paper's GD, W and R."""

    gate: Tensor
    """GD in [0, 1] (W′ ≥ 1 for MACL-c): the weight on ∇d, whether a hinge is open, 1 where there is none."""
    share: Tensor
    """The largest W_ij over the sum of those above 0; NaN where none is, or at a gate of 0."""
    ratio: Tensor
    """R in effect, pull over push Σ_j W_ij; NaN where the negatives do not push, or at a gate of 0."""


def terms(objective: nn.Module, positive: Tensor, negatives: Tensor) -> Terms:
    """The terms of anchors at these angles to their keys, each in a batch of anchors like it.

    Of a `Contrastive`, a `HardestTriplet`, `AlignmentUniformity`, `MHE`, `MHS` or `SphericalVICReg` they are
    slopes, by autograd, of the anchor's loss over the cosines. Of a `UnifiedGradient` they are what its own
    gate, weight and ratio say of the angles, with R twice its ratio where it `doubles`.

    Args:
        objective: one of those. A temperature that follows the alignment reads these anchors' mean.
        positive: (B,) angles to the positives, in (0, π).
        negatives: (B, K) angles to the negatives.

    Raises:
        InputError: an objective of another kind, or one with a part that asks for more than angles.
    """
    if isinstance(objective, UnifiedGradient):
        return _of_parts(objective, positive, negatives)
    positive, negatives = positive.clone().requires_grad_(), negatives.clone().requires_grad_()
    anchors = losses(objective, positive, negatives)
    by_positive, by_negatives = torch.autograd.grad(anchors.values.sum(), (positive, negatives))
    with torch.no_grad():
        pull = by_positive / positive.sin()  # −∂ℓ/∂s = ∂ℓ/∂θ / sin θ
        pushes = -by_negatives / negatives.sin()
        return _terms(anchors.gate(pushes.sum(dim=1)), pushes, pull)


def doubles(objective: nn.Module) -> bool:
    """Return true if the effective R is twice the objective's own ratio.

    This is so if negatives are detached and positives are not. The similarity of a positive then pulls an
    embedding as anchor and as key, while that of a negative pushes it only as anchor.
    """
    return isinstance(objective, UnifiedGradient) and objective.detach == "negatives"


def scaling(negatives: Tensor, temperature: Tensor) -> Tensor:
    """W = K/(K + exp(2/τ)), of an anchor at its positive and opposite to K negatives (MACL paper, Fig. 3).

    Args:
        negatives: K.
        temperature: τ; the two are broadcast.
    """
    return (negatives.log() - 2 / temperature).sigmoid()


@torch.no_grad()
def _of_parts(objective: UnifiedGradient, positive: Tensor, negatives: Tensor) -> Terms:
    block = Angles(positive, negatives, objective.pairs)
    try:
        gate, weight, ratio = objective.gate(block), objective.weight(block), objective.ratio(block)
    except AttributeError as error:
        name = type(objective).__name__
        raise InputError(f"no map of {name}: a part of it asks for more than angles: {error}") from error
    pushes = weight * gate[:, None]
    return _terms(gate, pushes, pushes.sum(dim=1) * ratio * (2 if doubles(objective) else 1))


def _terms(gate: Tensor, pushes: Tensor, pull: Tensor) -> Terms:
    push, outward = pushes.sum(dim=1), pushes.clamp(min=0)
    return Terms(gate, outward.amax(dim=1) / outward.sum(dim=1), (pull / push).where(push > 0, torch.nan))
