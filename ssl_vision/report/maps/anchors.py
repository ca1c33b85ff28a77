"""Losses of single anchors as functions of their angles to positive and negatives.

A contrastive objective or a hinge has one for each anchor. Alignment with a spread has one sum for a batch of
N = K + 1 images; its anchor here is a typical one, with all others of the batch like it. ℓ is then such that
the gradient on the anchor's embedding, all its pairs counted, is ∇ℓ/N.
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
    """Of B anchors."""

    values: Tensor
    """(B,) ℓ, with gradient."""
    gate: Callable[[Tensor], Tensor]
    """From (B,) Σ_j ∂ℓ/∂s_j to (B,) GD."""


def losses(objective: nn.Module, positive: Tensor, negatives: Tensor) -> Losses:
    """The losses of B anchors.

    Args:
        objective: one of those that `terms` differentiates.
        positive: (B,) angles to the positives.
        negatives: (B, K) angles to the negatives.

    Raises:
        InputError: an objective without such losses, and why it has none.
    """
    cls = type(objective)
    known = _LOSSES.get(getattr(cls, "loss", cls.forward))
    if known is None:
        reasons = (reason for kind, reason in _WITHOUT.items() if isinstance(objective, kind))
        raise InputError(f"no map of {cls.__name__}: {next(reasons, _FOREIGN)}")
    return known(objective, positive, negatives)


def on_circle(angle: Tensor) -> Tensor:
    """(…, 2) unit vectors at these angles to (1, 0)."""
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
    return Losses(objective.weight(anchors), lambda push: push * temperature)


def _triplet(objective: HardestTriplet, positive: Tensor, negatives: Tensor) -> Losses:
    between, anchor = objective.distance.between, on_circle(positive.new_zeros(()))
    nearest = between(anchor, on_circle(negatives)).amin(dim=1)
    hinge = F.relu(between(anchor, on_circle(positive)) - nearest + objective.margin)
    return Losses(hinge, lambda push: (push > 0).to(push.dtype))


def _uniformity(objective: AlignmentUniformity, positive: Tensor, negatives: Tensor) -> Losses:
    alignment = objective.alignment_weight * _away(positive).pow(objective.alpha)
    energy = (-objective.t * _away(negatives).square()).logsumexp(dim=1)
    return Losses(alignment + objective.uniformity_weight * energy, torch.ones_like)


def _energy(objective: MHE, positive: Tensor, negatives: Tensor) -> Losses:
    energy = negatives.cos().logsumexp(dim=1)
    return Losses(_away(positive).square() + 2 * objective.weight * energy, torch.ones_like)


def _separation(objective: MHS, positive: Tensor, negatives: Tensor) -> Losses:
    separation = _away(negatives).amin(dim=1)
    return Losses(_away(positive).square() - objective.weight * separation, torch.ones_like)


def _covariance(objective: SphericalVICReg, positive: Tensor, negatives: Tensor) -> Losses:
    covariance = negatives.cos().square().sum(dim=1) / (negatives.shape[1] + 1)
    return Losses(_away(positive).square() + objective.weight * covariance, torch.ones_like)


def _away(angle: Tensor) -> Tensor:
    """δ at an angle."""
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
"""By the method that computes the loss: a subclass that computes another is not taken for its parent."""

_WITHOUT: dict[type[nn.Module], str] = {
    SphericalBarlowTwins: "its pull differs between dimensions, which no R says; W is SphericalVICReg's",
    BarlowTwins: "it standardises dimensions over the batch and is no function of angles",
    VICReg: "it depends on scale and dimensions of embeddings, not on angles alone as SphericalVICReg does",
    SupCon: "its positives and negatives come from labels",
    RECLAIM: "it contrasts with banks of earlier embeddings, by a critic that is trained",
}
"""The first that fits counts."""

_FOREIGN = "its loss is its own, and only those of ssl_vision.objectives are known as functions of angles"
