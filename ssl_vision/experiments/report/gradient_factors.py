"""Gate, weight and ratio of single anchors with given angles to positive and negatives.

Contrastive objectives and hinges have a loss per anchor. Alignment with a spread term has one loss for a
batch of N = K + 1 images; its anchor is a typical one, and all others in the batch have the same angles. ℓ is
then defined such that the gradient on the anchor's embedding, from all its pairs, is ∇ℓ/N.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_vision.errors import InputError
from ssl_vision.objectives import (
    MHE,
    MHS,
    AlignmentUniformity,
    AnchorBatch,
    Anchors,
    ArcCon,
    Contrastive,
    HardestTriplet,
    SphericalVICReg,
    UnifiedGradient,
)
from ssl_vision.objectives.distance import chord
from ssl_vision.objectives.uniformity import Spread

Losses = tuple[Tensor, Callable[[Tensor], Tensor]]
"""ℓ of B anchors with gradient, (B,), and a function of Σ_j ∂ℓ/∂s_j, (B,), that returns GD, (B,)."""


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
    cls = type(objective)
    function = _LOSSES.get(getattr(cls, "loss", cls.forward))
    if function is None:
        raise InputError(f"no map of {cls.__name__}: angles of single anchors do not determine its gradient")
    values, gate = function(objective, positive, negatives)
    by_positive, by_negatives = torch.autograd.grad(values.sum(), (positive, negatives))
    with torch.no_grad():
        pull = by_positive / positive.sin()  # −∂ℓ/∂s = ∂ℓ/∂θ / sin θ
        pushes = -by_negatives / negatives.sin()
        return _factors(gate(pushes.sum(dim=1)), pushes, pull)


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
        super().__init__(_on_circle(torch.zeros_like(positive)), _on_circle(positive), pairs)
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
        return _on_circle(self.angles.gather(1, index[:, None])[:, 0])

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


def _on_circle(angle: Tensor) -> Tensor:
    """Return unit vectors (…, 2) at the given angles to (1, 0)."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def _contrastive(objective: Contrastive, positive: Tensor, negatives: Tensor) -> Losses:
    similarity, others = positive.cos(), negatives.cos()
    turned = torch.cos(positive + objective.angle) if isinstance(objective, ArcCon) else similarity
    temperature = objective.temperature(similarity.detach()).detach()

    def logit_margin_at(tau: Tensor | float) -> Tensor:
        by_row = tau[:, None] if isinstance(tau, Tensor) and tau.ndim else tau
        return torch.logsumexp(others / by_row, dim=1) - turned / tau

    anchors = Anchors(
        logit_margin=logit_margin_at(temperature),
        positive=similarity,
        temperature=temperature,
        logit_margin_at=torch.no_grad()(logit_margin_at),
    )
    return objective.margin_loss(anchors), lambda push: push * temperature


def _triplet(objective: HardestTriplet, positive: Tensor, negatives: Tensor) -> Losses:
    between, anchor = objective.distance.between, _on_circle(positive.new_zeros(()))
    nearest = between(anchor, _on_circle(negatives)).amin(dim=1)
    hinge = F.relu(between(anchor, _on_circle(positive)) - nearest + objective.margin)
    return hinge, lambda push: (push > 0).to(push.dtype)


def _uniformity(objective: AlignmentUniformity, positive: Tensor, negatives: Tensor) -> Losses:
    alignment = objective.alignment_weight * _chord(positive).pow(objective.alpha)
    energy = (-objective.t * _chord(negatives).square()).logsumexp(dim=1)
    return alignment + objective.uniformity_weight * energy, torch.ones_like


def _energy(objective: MHE, positive: Tensor, negatives: Tensor) -> Losses:
    energy = negatives.cos().logsumexp(dim=1)
    return _chord(positive).square() + 2 * objective.weight * energy, torch.ones_like


def _separation(objective: MHS, positive: Tensor, negatives: Tensor) -> Losses:
    separation = _chord(negatives).amin(dim=1)
    return _chord(positive).square() - objective.weight * separation, torch.ones_like


def _covariance(objective: SphericalVICReg, positive: Tensor, negatives: Tensor) -> Losses:
    covariance = negatives.cos().square().sum(dim=1) / (negatives.shape[1] + 1)
    return _chord(positive).square() + objective.weight * covariance, torch.ones_like


def _chord(angle: Tensor) -> Tensor:
    """Return the chord length δ of an angle."""
    return chord(_on_circle(torch.zeros_like(angle)), _on_circle(angle))


_LOSSES: dict[object, Callable[[Any, Tensor, Tensor], Losses]] = {
    Contrastive.forward: _contrastive,
    ArcCon.forward: _contrastive,
    HardestTriplet.loss: _triplet,
    AlignmentUniformity.loss: _uniformity,
    MHE.loss: _energy,
    MHS.loss: _separation,
    SphericalVICReg.loss: _covariance,
}
"""Losses by the method that computes them, so that subclasses with another method are not matched."""
