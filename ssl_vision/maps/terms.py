"""Gate, weight and ratio of single anchors whose angles are given."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_vision.errors import InputError
from ssl_vision.objectives import Anchors, ArcCon, Contrastive, HardestTriplet


class Terms(NamedTuple):
    """Of B anchors, (B,) each: the unified-gradient paper's GD, W and R, keys held still."""

    gate: Tensor
    """GD in [0, 1] (W′ ≥ 1 for MACL-c): the weight on ∇d, or whether a hinge is open."""
    share: Tensor
    """The largest W_ij over Σ_j W_ij; NaN at a gate of 0."""
    ratio: Tensor
    """R, pull over push: −∂ℓ/∂s⁺ over Σ_j ∂ℓ/∂s_j; NaN at a gate of 0."""


def terms(objective: nn.Module, positive: Tensor, negatives: Tensor) -> Terms:
    """The terms of anchors at these angles to their keys, by autograd from the objective's own loss of one.

    Args:
        objective: a `Contrastive` or a `HardestTriplet`. A temperature that follows the alignment reads these
            anchors' mean.
        positive: (B,) angles to the positives, in (0, π).
        negatives: (B, K) angles to the negatives.

    Raises:
        InputError: an objective of another kind, whose anchors have no loss of their own.
    """
    positive, negatives = positive.clone().requires_grad_(), negatives.clone().requires_grad_()
    losses, temperature = _losses(objective, positive, negatives)
    by_positive, by_negatives = torch.autograd.grad(losses.sum(), (positive, negatives))
    with torch.no_grad():
        pull = by_positive / positive.sin()  # −∂ℓ/∂s = ∂ℓ/∂θ / sin θ
        pushes = -by_negatives / negatives.sin()
        push = pushes.sum(dim=1)
        gate = (push > 0).to(push.dtype) if temperature is None else push * temperature
        return Terms(gate, pushes.amax(dim=1) / push, pull / push)


def scaling(negatives: Tensor, temperature: Tensor) -> Tensor:
    """W = K/(K + exp(2/τ)), of an anchor at its positive and opposite to K negatives (MACL paper, Fig. 3).

    Args:
        negatives: K.
        temperature: τ; the two are broadcast.
    """
    return (negatives.log() - 2 / temperature).sigmoid()


def _losses(objective: nn.Module, positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor | None]:
    """(B,) losses, and the temperature by which the gate is to be multiplied."""
    if isinstance(objective, HardestTriplet):
        between, anchor = objective.distance.between, _on_circle(positive.new_zeros(()))
        nearest = between(anchor, _on_circle(negatives)).amin(dim=1)
        return F.relu(between(anchor, _on_circle(positive)) - nearest + objective.margin), None
    if not isinstance(objective, Contrastive) or type(objective).forward not in (
        Contrastive.forward,
        ArcCon.forward,
    ):
        name = type(objective).__name__
        raise InputError(f"no map of {name}: only contrastive objectives and triplets have losses of anchors")
    similarity, others = positive.cos(), negatives.cos()
    turned = torch.cos(positive + objective.angle) if isinstance(objective, ArcCon) else similarity
    temperature = objective.temperature(similarity.detach()).detach()

    def margin_at(tau: Tensor | float) -> Tensor:
        by_row = tau[:, None] if isinstance(tau, Tensor) and tau.ndim else tau
        return torch.logsumexp(others / by_row, dim=1) - turned / tau

    anchors = Anchors(
        margin=margin_at(temperature),
        positive=similarity,
        temperature=temperature,
        margin_at=torch.no_grad()(margin_at),
    )
    return objective.weight(anchors), temperature


def _on_circle(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], dim=-1)
