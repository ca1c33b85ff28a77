"""Margin losses, which map the logit margin d of an anchor to its loss.

The docstring of each class states its value and the weight of its gradient on ∇d. If the published formula
loses its gradient in floating point, such as 1 / (1 − softmax), the value follows this formula and the
gradient is computed from d directly.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from ssl_vision.errors import check


class Anchors(NamedTuple):
    """Inputs of a margin loss: A anchors, those of view 1 first.

    A batch of N images has 2N anchors, or N with ``pairs`` ``"keys"`` or ``"queue"``.

    Example:
        >>> d = torch.tensor([0.0, 2.0])
        >>> anchors = Anchors(
        ...     logit_margin=d, positive=-d, temperature=torch.tensor(1.0), logit_margin_at=lambda t: d / t
        ... )
        >>> Softmax()(anchors)
        tensor([0.6931, 2.1269])
    """

    logit_margin: Tensor
    """Logit margins d_i(τ) with gradient, shape (A,)."""
    positive: Tensor
    """Positive similarities s⁺ with gradient, shape (A,)."""
    temperature: Tensor
    """Current τ, a scalar or shape (A,)."""
    logit_margin_at: Callable[[float], Tensor]
    """Function that computes d_i at another temperature without gradient, shape (A,)."""


def value_with_gradient(value: Tensor, weight: Tensor | float, d: Tensor) -> Tensor:
    """Return a tensor whose value is ``value`` and whose gradient is ``weight`` · ∇d."""
    weighted = (weight.detach() if isinstance(weight, Tensor) else weight) * d
    return value.detach() + (weighted - weighted.detach())


def softplus_over_sigmoid(d: Tensor) -> Tensor:
    """Compute softplus(d) / sigmoid(d), which tends to 1 for d → −∞ and to d for d → ∞.

    It is computed as softplus(d) · (1 + e^−d). Below d = −15 the quotient is 1 to the last digit of float32,
    so d is clamped there, and neither factor leaves the float range.
    """
    d = d.clamp(min=-15.0)
    return F.softplus(d) * (1 + (-d).exp())


class MarginLoss(nn.Module):
    """Base class of margin losses, which map the anchors of a batch to a loss for each anchor.

    Example:
        >>> class Squared(MarginLoss):
        ...     def forward(self, anchors):
        ...         return anchors.logit_margin.clamp(min=0).square()
        >>> Contrastive(temperature=1.0, margin_loss=Squared())(torch.eye(4), torch.eye(4))
        tensor(0.6269)
    """

    def forward(self, anchors: Anchors) -> Tensor:
        """Return the losses of the anchors, shape (A,)."""
        raise NotImplementedError


class Softmax(MarginLoss):
    """InfoNCE: value softplus(d), weight W = sigmoid(d).

    Example:
        >>> Contrastive(temperature=1.0, margin_loss=Softmax())(torch.eye(4), torch.eye(4))
        tensor(1.1654)
    """

    def forward(self, anchors: Anchors) -> Tensor:
        """softplus(d)."""
        return F.softplus(anchors.logit_margin)


class Decoupled(MarginLoss):
    """DCL: value d, weight 1. The value has no lower bound.

    Example:
        >>> Contrastive(temperature=1.0, margin_loss=Decoupled())(torch.eye(4), torch.eye(4))
        tensor(0.7918)
    """

    def forward(self, anchors: Anchors) -> Tensor:
        """d."""
        return anchors.logit_margin


class Clipped(MarginLoss):
    """DCL⁺: value max(0, d), weight 1 where d > 0, else 0.

    Example:
        >>> Contrastive(temperature=0.1, margin_loss=Clipped())(torch.eye(4), torch.eye(4))
        tensor(0.)
    """

    def forward(self, anchors: Anchors) -> Tensor:
        """max(0, d)."""
        return F.relu(anchors.logit_margin)


class Flat(MarginLoss):
    """FlatNCE: value exp(d − sg d) = 1, weight 1.

    Example:
        >>> Contrastive(margin_loss=Flat())(torch.eye(4), torch.eye(4))
        tensor(1.)
    """

    def forward(self, anchors: Anchors) -> Tensor:
        """1, with the gradient of d."""
        d = anchors.logit_margin
        return value_with_gradient(d.new_ones(()), 1.0, d)


class Reweighted(MarginLoss):
    """MACL: value softplus(d) / sg W, weight 1 (MACL paper, Eq. 14).

    Example:
        >>> Contrastive(temperature=1.0, margin_loss=Reweighted())(torch.eye(4), torch.eye(4))
        tensor(1.6934)
    """

    def forward(self, anchors: Anchors) -> Tensor:
        """softplus(d) / sigmoid(d), with the gradient of d."""
        d = anchors.logit_margin
        return value_with_gradient(softplus_over_sigmoid(d), 1.0, d)


class ReweightedByAlignment(MarginLoss):
    """MACL-c: value sg(W′ / W) · softplus(d) with W′ = 2 − s⁺, weight W′ (MACL paper, Eq. 15).

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # s⁺ = 1, hence the value of Reweighted
        >>> Contrastive(temperature=1.0, margin_loss=ReweightedByAlignment())(z1, z2)
        tensor(1.6934)
    """

    def forward(self, anchors: Anchors) -> Tensor:
        """(2 − s⁺) · softplus(d) / sigmoid(d), with the gradient (2 − s⁺) ∇d."""
        d, scale = anchors.logit_margin, 2 - anchors.positive
        return value_with_gradient(scale * softplus_over_sigmoid(d), scale, d)


class AtTemperature(MarginLoss):
    """Dual temperature: value sg(W(τ_β) / W(τ_α)) · softplus(d), weight W(τ_β).

    The anchors are weighted at ``temperature`` (τ_β), and the negatives of an anchor at the temperature of
    the objective (τ_α). Zhang et al. 2022, Dual Temperature Helps Contrastive Learning.

    Args:
        temperature: temperature τ_β > 0.

    Raises:
        ValueError: ``temperature`` is not positive and finite.

    Example:
        >>> Contrastive(temperature=0.1, margin_loss=AtTemperature(1.0))(torch.eye(4), torch.eye(4))
        tensor(0.6883)
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        check("temperature", temperature, above=0)
        self.temperature = temperature

    def forward(self, anchors: Anchors) -> Tensor:
        """W(τ_β) · softplus(d) / sigmoid(d), with the gradient W(τ_β) ∇d."""
        outer = anchors.logit_margin_at(self.temperature).sigmoid()
        return value_with_gradient(
            outer * softplus_over_sigmoid(anchors.logit_margin), outer, anchors.logit_margin
        )


class VonMisesFisher(MarginLoss):
    """DCLW: value d + (1 − sg w) · s⁺/τ with w = 2 − N · softmax_batch(s⁺/σ).

    Only the pull of the positive is weighted. The mean of w over the anchors of a view is 1. Yeh et al. 2021,
    Decoupled Contrastive Learning.

    Args:
        sigma: concentration σ > 0 of the weight.

    Raises:
        ValueError: ``sigma`` is not positive and finite.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # all s⁺ are equal, hence w = 1
        >>> Contrastive(temperature=1.0, margin_loss=VonMisesFisher(0.5))(z1, z2)
        tensor(0.7918)
    """

    def __init__(self, sigma: float = 0.5) -> None:
        super().__init__()
        check("sigma", sigma, above=0)
        self.sigma = sigma

    def forward(self, anchors: Anchors) -> Tensor:
        """d + (1 − w) s⁺/τ."""
        share = (anchors.positive.detach() / self.sigma).softmax(dim=0) * len(anchors.positive)
        return anchors.logit_margin + (share - 1) * anchors.positive / anchors.temperature
