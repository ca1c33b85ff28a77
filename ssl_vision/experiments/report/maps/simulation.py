"""Gate, weight and ratio over the angles of positives and negatives, averaged over random batches."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ssl_vision.experiments.report.maps.gradient_factors import gradient_factors

SPREAD_POSITIVE, SPREAD_NEGATIVE = 0.05, 0.10
"""Standard deviations of the angles in radians."""

OPEN = 0.01
"""Gates below this value count as closed."""


class Maps(NamedTuple):
    """Maps over P mean angles of positives and Q of negatives, each (P, Q); NaN where no gate is open."""

    gate: Tensor
    """Mean GD."""
    share: Tensor
    """Mean share of the hardest negative, over batches with an open gate and a push."""
    ratio: Tensor
    """Effective R without spread of angles; NaN also without a push, or if the positive is further away."""


def angles(size: int) -> tuple[Tensor, Tensor]:
    """Return the axes of a map: ``size`` angles from π/20 to π/2 for positives, to π for negatives."""
    low = math.pi / 20
    positive = torch.linspace(low, math.pi / 2, size, dtype=torch.float64)
    return positive, torch.linspace(low, math.pi, size, dtype=torch.float64)


def simulated(
    objective: nn.Module,
    positive: Tensor,
    negative: Tensor,
    *,
    batches: int = 100,
    negatives: int = 127,
    seed: int = 0,
) -> Maps:
    """Simulate the maps of an objective as in the code of the unified-gradient paper.

    For each pair of means, the angle of an anchor to its positive is sampled from N(μ⁺, 0.05) and those to
    its negatives from N(μ⁻, 0.10), in radians, and folded into [0, π]. The same normal numbers are used for
    all cells and objectives, so that cells differ only by their means.

    Args:
        objective: as in `gradient_factors`.
        positive: means μ⁺, shape (P,).
        negative: means μ⁻, shape (Q,).
        batches: number of samples per cell; the paper's code uses 1000.
        negatives: number of negatives K.
        seed: seed of the samples.

    Raises:
        InputError: as `gradient_factors`.
    """
    generator = torch.Generator().manual_seed(seed)
    near = SPREAD_POSITIVE * torch.randn(batches, generator=generator, dtype=torch.float64)
    far = SPREAD_NEGATIVE * torch.randn(batches, negatives, generator=generator, dtype=torch.float64)
    maps = Maps(*(positive.new_full((len(positive), len(negative)), torch.nan) for _ in Maps._fields))
    for p, mean_positive in enumerate(positive):
        for n, mean_negative in enumerate(negative):
            samples = gradient_factors(objective, _fold(mean_positive + near), _fold(mean_negative + far))
            maps.gate[p, n] = samples.gate.mean()
            maps.share[p, n] = samples.share[samples.gate >= OPEN].nanmean()
            exact = gradient_factors(objective, mean_positive[None], mean_negative.expand(1, negatives))
            if exact.gate >= OPEN and mean_positive <= mean_negative:
                maps.ratio[p, n] = exact.ratio[0]
    return maps


def _fold(angle: Tensor) -> Tensor:
    return math.pi - (angle.abs() - math.pi).abs()
