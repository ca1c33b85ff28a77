"""Gate, weight and ratio over the angles of positives and negatives, in batches drawn at random."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ssl_vision.report.maps.terms import terms

SPREAD_POSITIVE, SPREAD_NEGATIVE = 0.05, 0.10
"""Standard deviations of the angles in radians."""

OPEN = 0.01
"""Gates below this value count as closed."""


class Maps(NamedTuple):
    """(P, Q) each, over P mean angles of positives and Q of negatives; NaN where no gate is open."""

    gate: Tensor
    """Mean GD."""
    share: Tensor
    """Mean share of the hardest negative, over the batches with an open gate and negatives that push."""
    ratio: Tensor
    """R in effect where no angle is spread; NaN also where no negative pushes or the positive is further."""


def angles(size: int) -> tuple[Tensor, Tensor]:
    """Axes of a map: ``size`` angles from π/20 to π/2 for positives, from π/20 to π for negatives."""
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
    """Maps of an objective, as the unified-gradient paper's code simulates them.

    At each pair of means an anchor's angle to its positive is drawn from N(μ⁺, 0.05), those to its negatives
    from N(μ⁻, 0.10), in radians, and folded into [0, π]. The same normal numbers serve every cell and every
    objective: cells differ by their means alone.

    Args:
        objective: as in `terms`.
        positive: (P,) μ⁺.
        negative: (Q,) μ⁻.
        batches: draws a cell; the paper's code has 1000.
        negatives: K.
        seed: of the draws.

    Raises:
        InputError: as `terms`.
    """
    g = torch.Generator().manual_seed(seed)
    near = SPREAD_POSITIVE * torch.randn(batches, generator=g, dtype=torch.float64)
    far = SPREAD_NEGATIVE * torch.randn(batches, negatives, generator=g, dtype=torch.float64)
    maps = Maps(*(positive.new_full((len(positive), len(negative)), torch.nan) for _ in Maps._fields))
    for p, mean_positive in enumerate(positive):
        for n, mean_negative in enumerate(negative):
            drawn = terms(objective, _folded(mean_positive + near), _folded(mean_negative + far))
            maps.gate[p, n] = drawn.gate.mean()
            maps.share[p, n] = drawn.share[drawn.gate >= OPEN].nanmean()
            exact = terms(objective, mean_positive[None], mean_negative.expand(1, negatives))
            if exact.gate >= OPEN and mean_positive <= mean_negative:
                maps.ratio[p, n] = exact.ratio[0]
    return maps


def _folded(angle: Tensor) -> Tensor:
    return math.pi - (angle.abs() - math.pi).abs()
