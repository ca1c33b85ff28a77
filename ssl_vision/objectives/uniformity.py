"""Objectives with an alignment term and a term that spreads the embeddings over the sphere."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.distance import chord
from ssl_vision.objectives.logit_margin import (
    autocast_disabled,
    dense,
    is_dense,
    normalize,
    positives,
    unit_logit_margin,
)
from ssl_vision.objectives.objective import TwoViews
from ssl_vision.objectives.tiled import hardest, itself, tiled

Spread = Literal["within", "both", "cross"]
"""Pairs that repel each other: other images in the anchor's own view, in both views, or in the other view."""

SPREADS = get_args(Spread)


def log_sums(u: Tensor, temperature: float, *, pairs: Spread) -> Tensor:
    """Compute log Σ_j exp((s_ij − 1)/τ) over the pairs of each unit row i, shape (2N, D) to (2N,)."""
    ones = u.new_ones(len(u) // 2)
    if pairs != "within":
        return unit_logit_margin(u, ones, temperature, pairs=pairs)
    with autocast_disabled(u.device):
        compute = dense if is_dense(u) else tiled
        views = [compute(view, ones, temperature * ones, itself, pairs="both") for view in u.chunk(2)]
    return torch.cat(views)


class AlignmentUniformity(TwoViews):
    """Alignment and uniformity (Wang and Isola 2020, Understanding Contrastive Representation Learning).

        L = a · mean_i ‖x_i − y_i‖^α + b · log mean exp(−t ‖·−·‖²)

    on unit vectors. The second mean is over pairs of different images. By default, as published, these are
    pairs within a view, and the logarithms of the two views are averaged. Otherwise, all pairs that ``pairs``
    selects are under one logarithm.

    Statistics: ``uniformity``, the second term without b.

    Args:
        alignment_weight: weight a of the alignment. The gradient-dissipation paper uses a = b = 0.5 and adds
            t to the value.
        uniformity_weight: weight b of the uniformity.
        alpha: exponent α ≥ 1 of the distance; below 1, the gradient of equal views would be infinite.
        t: inverse width t > 0 of the Gaussian potential.
        pairs: pairs that repel: ``"within"`` each view, or ``"both"`` or ``"cross"`` as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: a weight is negative, α < 1, t ≤ 0, or ``pairs`` is unknown.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # aligned views, ‖·−·‖² = 2 between images
        >>> round(AlignmentUniformity(t=2.0)(z1, z2).item(), 2)
        -4.0

    Naive form:
        ```python
        x, y = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        alignment = (x - y).norm(dim=1).pow(alpha).mean()
        uniformity = sum(torch.pdist(v).square().mul(-t).exp().mean().log() for v in (x, y)) / 2
        loss = alignment_weight * alignment + uniformity_weight * uniformity
        ```
    """

    def __init__(
        self,
        *,
        alignment_weight: float = 1.0,
        uniformity_weight: float = 1.0,
        alpha: float = 2.0,
        t: float = 2.0,
        pairs: Spread = "within",
        gather: bool = True,
    ) -> None:
        super().__init__(gather=gather)
        check_choice("pairs", pairs, SPREADS)
        check("alignment_weight", alignment_weight, at_least=0)
        check("uniformity_weight", uniformity_weight, at_least=0)
        check("alpha", alpha, at_least=1)
        check("t", t, above=0)
        self.alignment_weight, self.uniformity_weight = alignment_weight, uniformity_weight
        self.alpha, self.t = alpha, t
        self.pairs: Spread = pairs

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute alignment plus uniformity."""
        u = normalize(torch.cat([z1, z2]))
        alignment = chord(*u.chunk(2)).pow(self.alpha).mean()
        sums = log_sums(u, 1 / (2 * self.t), pairs=self.pairs)
        images = len(u) // 2
        if self.pairs == "within":
            uniformity = (sums.view(2, images).logsumexp(dim=1) - math.log(images * (images - 1))).mean()
        else:
            keys = (images - 1) * (2 if self.pairs == "both" else 1)
            uniformity = sums.logsumexp(dim=0) - math.log(2 * images * keys)
        self.record(alignment=positives(u).mean(), uniformity=uniformity)
        return self.alignment_weight * alignment + self.uniformity_weight * uniformity


class MHE(TwoViews):
    """Alignment plus minimum hyperspherical energy, a log-sum over the pairs within each view.

        L = mean_i (2 − 2 s⁺_i) + λ Σ_views log Σ_{j>k} exp(s_jk)

    The gradient is that of ``AlignmentUniformity`` at t = ½ with the weights 1 and 2λ. This follows the code
    of the unified-gradient paper (Towards better understanding of contrastive sentence representation
    learning).

    Statistics: ``energy``, the second term without λ, as the mean of the views.

    Args:
        weight: weight λ ≥ 0 of the second term.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: the weight is negative.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> MHE(weight=1.0)(z1, z2)  # 2 log 6
        tensor(3.5835)

    Naive form:
        ```python
        x, y = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        energy = sum((1 - torch.pdist(v).square() / 2).exp().sum().log() for v in (x, y))
        loss = (x - y).square().sum(dim=1).mean() + weight * energy
        ```
    """

    def __init__(self, *, weight: float = 10.0, gather: bool = True) -> None:
        super().__init__(gather=gather)
        check("weight", weight, at_least=0)
        self.weight = weight

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute alignment plus energy."""
        u = normalize(torch.cat([z1, z2]))
        energy = log_sums(u, 1.0, pairs="within").view(2, -1).logsumexp(dim=1) + 1 - math.log(2)
        self.record(alignment=positives(u).mean(), energy=energy.mean())
        return chord(*u.chunk(2)).square().mean() + self.weight * energy.sum()


class MHS(TwoViews):
    """Alignment plus maximum hyperspherical separation from the nearest other image.

        L = mean_i (2 − 2 s⁺_i) − λ Σ_directions mean_i min_{j≠i} ‖e_i − sg e′_j‖

    This follows the code of the unified-gradient paper. The nearest image has no gradient.

    Statistics: ``separation``, the mean minimum distance.

    Args:
        weight: weight λ ≥ 0 of the second term.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: the weight is negative.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> MHS(weight=1.0)(z1, z2)  # −2 √2
        tensor(-2.8284)

    Naive form:
        ```python
        x, y = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        same_image = torch.eye(len(x), dtype=torch.bool)
        separation = 0.0
        for a, b in ((x, y), (y, x)):
            distances = torch.cdist(a, b.detach()).masked_fill(same_image, torch.inf)
            separation = separation + distances.amin(dim=1).mean()
        loss = (x - y).square().sum(dim=1).mean() - weight * separation
        ```
    """

    def __init__(self, *, weight: float = 1.0, gather: bool = True) -> None:
        super().__init__(gather=gather)
        check("weight", weight, at_least=0)
        self.weight = weight

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute alignment minus separation."""
        u = normalize(torch.cat([z1, z2]))
        nearest = u.detach()[hardest(u, pairs="cross")]
        separation = chord(u, nearest).mean()
        self.record(alignment=positives(u).mean(), separation=separation)
        return chord(*u.chunk(2)).square().mean() - 2 * self.weight * separation
