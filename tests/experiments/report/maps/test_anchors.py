"""Tests of the maps of alignment losses with a spreading term: closed forms and gradients of a batch."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ssl_vision import objectives as o
from ssl_vision.errors import InputError
from ssl_vision.experiments.report.gradient_factors import gradient_factors
from ssl_vision.experiments.report.maps import simulated
from ssl_vision.metrics import gradient_terms, pair_coefficients


def closed_form(objective, near, far):
    """Return W, (K,), and R of a typical anchor of K + 1 images, with sums over the batch written out."""
    s, images = np.cos(far), len(far) + 1
    away, close = np.sqrt(2 - 2 * s), math.sqrt(2 - 2 * math.cos(near))
    pull = 2 / images
    if isinstance(objective, o.MHE):
        pairs_of_a_view = images * np.exp(s).sum() / 2
        w = objective.weight * np.exp(s) / pairs_of_a_view
    elif isinstance(objective, o.MHS):
        w = np.where(away == away.min(), objective.weight / (images * away), 0)
    elif isinstance(objective, o.SphericalVICReg):
        w = 2 * objective.weight * s / images**2
    else:
        a, b, alpha, t = (
            getattr(objective, f) for f in ("alignment_weight", "uniformity_weight", "alpha", "t")
        )
        potentials = np.exp(-t * away**2)
        w = b * 2 * t * potentials / (images * potentials.sum())
        pull = a * alpha * close ** (alpha - 2) / images
    return w, pull / w.sum()


SPREADS = [
    o.MHE(weight=3.0),
    o.MHS(weight=0.7),
    o.SphericalVICReg(weight=12.0),
    o.AlignmentUniformity(),
    o.AlignmentUniformity(alignment_weight=0.5, uniformity_weight=0.8, alpha=3, t=1.5, pairs="both"),
    o.AlignmentUniformity(alpha=1, t=0.5, pairs="cross"),
]


@pytest.mark.parametrize("objective", SPREADS, ids=lambda objective: type(objective).__name__)
def test_terms_match_closed_forms(objective):
    g = torch.Generator().manual_seed(0)
    near = 0.1 + 0.9 * torch.rand(60, generator=g, dtype=torch.float64)
    far = 0.6 + 1.8 * torch.rand(60, 5, generator=g, dtype=torch.float64)
    result, attracted = gradient_factors(objective, near, far), 0
    for i in range(60):
        w, ratio = closed_form(objective, float(near[i]), far[i].numpy())
        attracted += w.sum() <= 0
        assert float(result.gate[i]) == 1
        share = w.max() / w[w > 0].sum() if w.max() > 0 else math.nan
        want = (share, ratio if w.sum() > 0 else math.nan)
        assert (float(result.share[i]), float(result.ratio[i])) == pytest.approx(want, rel=1e-9, nan_ok=True)
    assert bool(attracted) == isinstance(objective, o.SphericalVICReg)


def test_ratios_over_equal_negatives_match_paper():
    near, far = torch.tensor([0.4], dtype=torch.float64), torch.full((1, 7), 1.1, dtype=torch.float64)
    away, similarity = math.sqrt(2 - 2 * math.cos(1.1)), math.cos(1.1)
    assert float(gradient_factors(o.MHE(weight=10.0), near, far).ratio) == pytest.approx(1 / 10)
    assert float(gradient_factors(o.MHS(weight=3.0), near, far).ratio) == pytest.approx(2 * away / 3)
    assert float(gradient_factors(o.SphericalVICReg(weight=30.0), near, far).ratio) == pytest.approx(
        8 / (30 * 7 * similarity)
    )


@pytest.mark.parametrize("objective", SPREADS, ids=lambda objective: type(objective).__name__)
def test_maps_match_gradients_of_batch_of_equivalent_anchors(objective, ring):
    """The gradients are from autograd of the loss of a whole batch, not from the terms of the maps."""
    pairs = getattr(objective, "pairs", "cross" if isinstance(objective, o.MHS) else "within")
    expected = gradient_factors(objective, *ring.angles(pairs))
    batch = gradient_terms(objective, *ring)
    torch.testing.assert_close(batch.pull / batch.push, expected.ratio.expand(len(batch.push)))
    pushes = pair_coefficients(objective, torch.cat(ring)).clamp(min=0)
    share = pushes.amax(dim=1) / pushes.sum(dim=1)
    torch.testing.assert_close(share, expected.share.expand(len(share)))


def test_share_and_ratio_are_nan_where_no_negative_pushes():
    """Beyond π/2, a covariance loss pulls negatives back until they are orthogonal."""
    positive, negative = (torch.tensor(axis, dtype=torch.float64) for axis in ([0.3], [1.0, 1.55, 2.4]))
    maps = simulated(o.SphericalVICReg(), positive, negative, batches=8, negatives=6)
    assert maps.gate.tolist() == [[1, 1, 1]]
    assert maps.share.isnan().tolist() == maps.ratio.isnan().tolist() == [[False, False, True]]
    assert maps.share[0, 0] < maps.share[0, 1] < 1


class Steeper(o.MHE):
    def loss(self, z1, z2):
        return 2 * super().loss(z1, z2)


class Hotter(o.InfoNCE):
    def forward(self, z1, z2):
        return super().forward(z1, z2) ** 2


@pytest.mark.parametrize(
    "objective",
    [
        o.SphericalBarlowTwins(), o.BarlowTwins(), o.VICReg(), o.SupCon(), o.RECLAIM(),
        Steeper(), Hotter(), nn.Linear(2, 2),
    ],
)  # fmt: skip
def test_objectives_that_angles_do_not_determine_are_refused(objective):
    with pytest.raises(
        InputError, match=f"^no map of {type(objective).__name__}: angles .* do not determine"
    ):
        gradient_factors(objective, torch.ones(1), torch.ones(1, 2))
