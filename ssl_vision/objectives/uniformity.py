"""Alignment of the views plus a term that spreads the embeddings over the sphere."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from ssl_vision.objectives.arguments import check_choice, check_not_negative, check_positive
from ssl_vision.objectives.distance import chord
from ssl_vision.objectives.logit_margin import (
    autocast_disabled,
    dense,
    is_dense,
    normalize,
    positives,
    unit_logit_margin,
)
from ssl_vision.objectives.tiled import hardest, itself, own_image, tiled
from ssl_vision.objectives.two_views import TwoViews

Spread = Literal["within", "both", "cross"]
"""Pairs that repel each other: other images in the anchor's own view, in both views, in the other view."""

SPREADS = get_args(Spread)


def log_sums(u: Tensor, temperature: float, *, pairs: Spread) -> Tensor:
    """log Σ_j exp((s_ij − 1)/τ) over the pairs of each row i of (2N, D) unit rows, (2N,)."""
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

    on unit vectors, the second mean over pairs of different images: a pair within a view, and the two views'
    logarithms averaged, as published; or all pairs that ``pairs`` names, under one logarithm.

    Statistics: ``uniformity``, the second term without b.

    Args:
        alignment_weight: a. The gradient-dissipation paper takes a = b = 0.5 and adds t to the value.
        uniformity_weight: b.
        alpha: α ≥ 1; below it the gradient at coinciding views is infinite.
        t: t > 0.
        pairs: which pairs repel, ``"within"`` each view, ``"both"`` or ``"cross"`` as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.

    Raises:
        ValueError: for negative weights, α < 1, t ≤ 0 or unknown ``pairs``.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # aligned views, ‖·−·‖² = 2 between images
        >>> round(AlignmentUniformity(t=2.0)(z1, z2).item(), 2)
        -4.0
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
        check_not_negative("alignment_weight", alignment_weight)
        check_not_negative("uniformity_weight", uniformity_weight)
        if not 1 <= alpha < math.inf:
            raise ValueError(f"alpha must be at least 1, got {alpha}")
        check_positive("t", t)
        self.alignment_weight, self.uniformity_weight = alignment_weight, uniformity_weight
        self.alpha, self.t = alpha, t
        self.pairs: Spread = pairs

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Alignment plus uniformity."""
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

    The gradient is that of ``AlignmentUniformity`` at t = ½ with the weights 1 and 2λ. From the
    unified-gradient paper (Towards better understanding of contrastive sentence representation learning), as
    its code has it.

    Statistics: ``energy``, the second term's mean of a view, without λ.

    Args:
        weight: λ ≥ 0.
        gather: across processes, as in ``Contrastive``.

    Raises:
        ValueError: for a negative weight.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> MHE(weight=1.0)(z1, z2)  # 2 log 6
        tensor(3.5835)
    """

    def __init__(self, *, weight: float = 10.0, gather: bool = True) -> None:
        super().__init__(gather=gather)
        check_not_negative("weight", weight)
        self.weight = weight

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Alignment plus energy."""
        u = normalize(torch.cat([z1, z2]))
        energy = log_sums(u, 1.0, pairs="within").view(2, -1).logsumexp(dim=1) + 1 - math.log(2)
        self.record(alignment=positives(u).mean(), energy=energy.mean())
        return chord(*u.chunk(2)).square().mean() + self.weight * energy.sum()


class MHS(TwoViews):
    """Alignment plus maximum hyperspherical separation: each embedding leaves its nearest other image.

        L = mean_i (2 − 2 s⁺_i) − λ Σ_directions mean_i min_{j≠i} ‖e_i − sg e′_j‖

    From the unified-gradient paper, as its code has it. The nearest image itself gets no gradient.

    Statistics: ``separation``, the mean minimum.

    Args:
        weight: λ ≥ 0.
        gather: across processes, as in ``Contrastive``.

    Raises:
        ValueError: for a negative weight.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> MHS(weight=1.0)(z1, z2)  # −2 √2
        tensor(-2.8284)
    """

    def __init__(self, *, weight: float = 1.0, gather: bool = True) -> None:
        super().__init__(gather=gather)
        check_not_negative("weight", weight)
        self.weight = weight

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Alignment less separation."""
        u = normalize(torch.cat([z1, z2]))
        nearest = u.detach()[hardest(u, own_image(len(u) // 2), pairs="cross")]
        separation = chord(u, nearest).mean()
        self.record(alignment=positives(u).mean(), separation=separation)
        return chord(*u.chunk(2)).square().mean() - 2 * self.weight * separation
