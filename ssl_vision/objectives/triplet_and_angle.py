"""Gradient dissipation: objectives that ignore an anchor whose negatives are sufficiently far away.

InfoNCE reduces the gradient smoothly by W, and ``DCLPlus`` clips DCL at 0. This module contains hinge losses
on the hardest negative and the additive angle. They follow "On the inadequacy of optimizing alignment and
uniformity in contrastive learning of sentence representations" (the gradient-dissipation paper) and its code.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.contrastive import InfoNCE
from ssl_vision.objectives.distance import DistanceName, angle, distance
from ssl_vision.objectives.logit_margin import autocast_disabled, normalize, positives
from ssl_vision.objectives.objective import TwoViews
from ssl_vision.objectives.temperature import TemperatureRule
from ssl_vision.objectives.tiled import PAIRS, Pairs, hardest


class HardestTriplet(TwoViews):
    """Mean hinge loss on the hardest negative of each of the 2N anchors.

        L = 1/(2N) Σ_i max(0, dist(i, positive) − min_j dist(i, j) + m)

    Anchor, positive and negative have a gradient, which is exactly zero for an anchor outside the margin.
    Memory is O(N · D) for any N.

    Statistics: ``active_share``, the share of anchors inside the margin.

    Args:
        metric: distance ``"product"`` (1 − s), ``"euclidean"`` (δ) or ``"angle"`` (θ, in radians).
        margin: margin m > 0, in the unit of the metric.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: the margin is not positive, or ``metric`` or ``pairs`` is unknown.

    Example:
        >>> objective = HardestTriplet(metric="product", margin=0.5)
        >>> objective(torch.eye(4), torch.eye(4))  # every negative is 1 further away than the positive
        tensor(0.)
        >>> objective.statistics()["active_share"]
        tensor(0.)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        hardest = (u @ u.T).masked_fill(same_image, -torch.inf).amax(dim=1)
        positive = (u[:n] * u[n:]).sum(dim=1).repeat(2)
        euclidean, product = lambda s: (2 - 2 * s).sqrt(), lambda s: 1 - s
        distance = {"product": product, "euclidean": euclidean, "angle": torch.acos}[metric]
        loss = F.relu(distance(positive) - distance(hardest) + margin).mean()
        ```
    """

    def __init__(
        self, *, metric: DistanceName, margin: float, pairs: Pairs = "both", gather: bool = True
    ) -> None:
        super().__init__(gather=gather)
        check("margin", margin, above=0)
        check_choice("pairs", pairs, PAIRS)
        self.distance = distance(metric)
        self.margin = margin
        self.pairs: Pairs = pairs

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute the mean hinge loss."""
        u = normalize(torch.cat([z1, z2]))
        nearest = hardest(u, pairs=self.pairs)
        to_positive = self.distance.between(*u.chunk(2)).repeat(2)
        losses = F.relu(to_positive - self.distance.between(u, u[nearest]) + self.margin)
        self.record(alignment=positives(u).mean(), active_share=(losses > 0).to(u.dtype).mean())
        return losses.mean()


class MPT(HardestTriplet):
    """Margin-product triplet: max(0, s⁻ − s⁺ + m), s the cosine.

    At m = τ log K, with K the number of negatives, InfoNCE ≤ MPT/τ + log 2. The default 0.23 is approximately
    this value for τ = 0.05 and K = 127.

    Args:
        margin: margin m; the unified-gradient paper uses 0.23, the gradient-dissipation paper 0.09.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # s⁺ = 1 and all s⁻ = 0
        >>> MPT(margin=1.5)(z1, z2)
        tensor(0.5000)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        hardest = (u @ u.T).masked_fill(same_image, -torch.inf).amax(dim=1)
        positive = (u[:n] * u[n:]).sum(dim=1).repeat(2)
        loss = F.relu(hardest - positive + margin).mean()
        ```
    """

    def __init__(self, *, margin: float = 0.23, pairs: Pairs = "both", gather: bool = True) -> None:
        super().__init__(metric="product", margin=margin, pairs=pairs, gather=gather)


class MET(HardestTriplet):
    """Margin-Euclidean triplet: max(0, δ⁺ − δ⁻ + m), δ = ‖·−·‖ on unit vectors.

    Args:
        margin: margin m of the distance.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # δ⁺ = 0 and all δ⁻ = √2
        >>> MET(margin=1.5)(z1, z2)
        tensor(0.0858)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        hardest = (u @ u.T).masked_fill(same_image, -torch.inf).amax(dim=1)
        positive = (u[:n] * u[n:]).sum(dim=1).repeat(2)
        loss = F.relu((2 - 2 * positive).sqrt() - (2 - 2 * hardest).sqrt() + margin).mean()
        ```
    """

    def __init__(self, *, margin: float = 0.45, pairs: Pairs = "both", gather: bool = True) -> None:
        super().__init__(metric="euclidean", margin=margin, pairs=pairs, gather=gather)


class MAT(HardestTriplet):
    """Margin-angle triplet: max(0, θ⁺ − θ⁻ + mπ), θ the angle.

    Args:
        margin: margin m, as a share of π.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # θ⁺ = 0 and all θ⁻ = π/2
        >>> MAT(margin=0.6)(z1, z2)
        tensor(0.3142)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        hardest = (u @ u.T).masked_fill(same_image, -torch.inf).amax(dim=1)
        positive = (u[:n] * u[n:]).sum(dim=1).repeat(2)
        loss = F.relu(positive.acos() - hardest.acos() + margin * torch.pi).mean()
        ```
    """

    def __init__(self, *, margin: float = 0.15, pairs: Pairs = "both", gather: bool = True) -> None:
        super().__init__(metric="angle", margin=margin * math.pi, pairs=pairs, gather=gather)


class ArcCon(InfoNCE):
    """InfoNCE with an additive angle: cos(θ⁺ + u) replaces s⁺ (Zhang et al. 2022, ArcCSE).

    The pull of the positive is multiplied by sin(θ⁺ + u)/sin θ⁺. The formula is used as printed: beyond
    θ⁺ = π − u, where cos(θ⁺ + u) increases again, the positive is pushed away.

    Args:
        temperature: temperature τ, a number or a temperature rule.
        angle: additive angle u in degrees, in [0, 90]; 0 gives InfoNCE.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: ``angle`` is outside [0, 90], or the errors of ``Contrastive``.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> ArcCon(temperature=1.0, angle=60.0)(z1, z2)  # cos 60° = 0.5 replaces s⁺ = 1
        tensor(1.5345)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        theta = (u[:n] * u[n:]).sum(dim=1).acos()
        positive = (theta + angle * torch.pi / 180).cos().repeat(2) / temperature
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = (u @ u.T / temperature).masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = F.softplus(d).mean()
        ```
    """

    def __init__(
        self, *, temperature: float | TemperatureRule = 0.1, angle: float = 10.0, **options: Any
    ) -> None:
        super().__init__(temperature=temperature, **options)
        check("angle", angle, at_least=0, at_most=90)
        self.angle = math.radians(angle)

    def _shift(self, u1: Tensor, u2: Tensor, positive: Tensor) -> Tensor:
        """cos(θ⁺ + u), shape (N,)."""
        with autocast_disabled(u1.device):
            return torch.cos(angle(u1, u2) + self.angle)
