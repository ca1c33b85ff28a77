"""Losses of single anchors as functions of their angles to positive and negatives.

Contrastive objectives and hinges have a loss per anchor. Alignment with a spread term has one loss for a
batch of N = K + 1 images; its anchor is a typical one, and all others in the batch have the same angles. ℓ is
then defined such that the gradient on the anchor's embedding, from all its pairs, is ∇ℓ/N.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_vision.errors import InputError
from ssl_vision.objectives import (
    MHE,
    MHS,
    RECLAIM,
    AlignmentUniformity,
    Anchors,
    ArcCon,
    BarlowTwins,
    Contrastive,
    HardestTriplet,
    SphericalBarlowTwins,
    SphericalVICReg,
    SupCon,
    VICReg,
)
from ssl_vision.objectives.distance import chord


class Losses(NamedTuple):
    """Losses of B anchors."""

    values: Tensor
    """ℓ with gradient, (B,)."""
    gate: Callable[[Tensor], Tensor]
    """Function of Σ_j ∂ℓ/∂s_j, (B,), that returns GD, (B,)."""


def losses(objective: nn.Module, positive: Tensor, negatives: Tensor) -> Losses:
    """Compute the losses of B anchors.

    Args:
        objective: an objective that `gradient_factors` supports, except `UnifiedGradient`.
        positive: angles to the positives, shape (B,).
        negatives: angles to the negatives, shape (B, K).

    Raises:
        InputError: the objective has no such losses; the message says why.
    """
    cls = type(objective)
    function = _LOSSES.get(getattr(cls, "loss", cls.forward))
    if function is None:
        reasons = (reason for kind, reason in _UNSUPPORTED.items() if isinstance(objective, kind))
        raise InputError(f"no map of {cls.__name__}: {next(reasons, _FOREIGN)}")
    return function(objective, positive, negatives)


def on_circle(angle: Tensor) -> Tensor:
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
    return Losses(objective.margin_loss(anchors), lambda push: push * temperature)


def _triplet(objective: HardestTriplet, positive: Tensor, negatives: Tensor) -> Losses:
    between, anchor = objective.distance.between, on_circle(positive.new_zeros(()))
    nearest = between(anchor, on_circle(negatives)).amin(dim=1)
    hinge = F.relu(between(anchor, on_circle(positive)) - nearest + objective.margin)
    return Losses(hinge, lambda push: (push > 0).to(push.dtype))


def _uniformity(objective: AlignmentUniformity, positive: Tensor, negatives: Tensor) -> Losses:
    alignment = objective.alignment_weight * _chord(positive).pow(objective.alpha)
    energy = (-objective.t * _chord(negatives).square()).logsumexp(dim=1)
    return Losses(alignment + objective.uniformity_weight * energy, torch.ones_like)


def _energy(objective: MHE, positive: Tensor, negatives: Tensor) -> Losses:
    energy = negatives.cos().logsumexp(dim=1)
    return Losses(_chord(positive).square() + 2 * objective.weight * energy, torch.ones_like)


def _separation(objective: MHS, positive: Tensor, negatives: Tensor) -> Losses:
    separation = _chord(negatives).amin(dim=1)
    return Losses(_chord(positive).square() - objective.weight * separation, torch.ones_like)


def _covariance(objective: SphericalVICReg, positive: Tensor, negatives: Tensor) -> Losses:
    covariance = negatives.cos().square().sum(dim=1) / (negatives.shape[1] + 1)
    return Losses(_chord(positive).square() + objective.weight * covariance, torch.ones_like)


def _chord(angle: Tensor) -> Tensor:
    """Return the chord length δ of an angle."""
    return chord(on_circle(torch.zeros_like(angle)), on_circle(angle))


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

_UNSUPPORTED: dict[type[nn.Module], str] = {
    SphericalBarlowTwins: "its pull differs between dimensions, unlike R; for W use SphericalVICReg",
    BarlowTwins: "it standardises dimensions over the batch, so it is not a function of angles",
    VICReg: "it depends on the scale and dimensions of embeddings, unlike SphericalVICReg",
    SupCon: "its positives and negatives depend on labels",
    RECLAIM: "it uses banks of earlier embeddings and a trained critic",
}
"""Reasons; the first matching class applies."""

_FOREIGN = "only the losses of ssl_vision.objectives are known as functions of angles"
