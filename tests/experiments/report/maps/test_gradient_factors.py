"""Tests of maps of objectives with a gate, weight and ratio against losses, closed forms and gradients."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from ssl_vision import objectives as o
from ssl_vision.errors import InputError
from ssl_vision.experiments.report.gradient_factors import doubles, gradient_factors
from ssl_vision.experiments.report.maps import simulated
from ssl_vision.metrics import gradient_terms, pair_coefficients

TAU = 0.2
ROWS = {
    "InfoNCE": (partial(o.InfoNCE, temperature=TAU), o.SigmoidGate(TAU), o.SoftmaxOverNegatives(TAU), 1.0),
    "ArcCon": (
        partial(o.ArcCon, temperature=TAU, angle=15),
        o.SigmoidGate(TAU, 15), o.SoftmaxOverNegatives(TAU), o.AngularRatio(15),
    ),
    "DCL": (partial(o.DCL, temperature=TAU), o.OpenGate(), o.SoftmaxOverNegatives(TAU), 1.0),
    "DCLPlus": (partial(o.DCLPlus, temperature=TAU), o.StepGate(TAU), o.SoftmaxOverNegatives(TAU), 1.0),
    "MPT": (o.MPT, o.HingeGate("product", 0.23), o.HardestNegative("product"), 1.0),
    "MET": (
        o.MET, o.HingeGate("euclidean", 0.45), o.HardestNegative("euclidean"), o.SlopeRatio("euclidean")
    ),
    "MAT": (o.MAT, o.HingeGate("angle", 0.15), o.HardestNegative("angle"), o.SlopeRatio("angle")),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_maps_of_parts_match_those_of_the_loss_they_make_up(name):
    loss, gate, weight, ratio = ROWS[name]
    positive = torch.tensor([0.2, 0.7, 1.4], dtype=torch.float64)
    negative = torch.tensor([0.3, 0.8, 1.3, 2.4, 3.0], dtype=torch.float64)
    parts = o.UnifiedGradient(gate=gate, weight=weight, ratio=ratio)
    want, got = (simulated(x, positive, negative, batches=9, negatives=6) for x in (loss(), parts))
    for field in want._fields:
        torch.testing.assert_close(
            getattr(got, field), getattr(want, field), rtol=1e-10, atol=1e-12, equal_nan=True
        )
    assert not want.ratio.isnan().all()
    assert len(want.gate.unique()) > 1 or name == "DCL"


def closed_form(near, far, *, tau, ratio, margin, mode):
    """Return gate, share of the hardest negative and R of a modified loss; τ is None for ModifiedMHS."""
    similarities = np.cos(far)
    gap = np.cos(near) - similarities.max() if mode == "cross_view" else 1 - similarities.max()
    share = 1.0 if tau is None else np.exp(similarities / tau).max() / np.exp(similarities / tau).sum()
    return float(gap < margin), share, 2 * ratio


MODES = ["cross_view", "within_view"]
MODIFIED = {
    o.ModifiedMHE: {"temperature": 0.3, "ratio": 1.75},
    o.ModifiedMHS: {"ratio": 0.5},
    o.ModifiedBarlowTwins: {"temperature": 0.2, "ratio": 1.5},
    o.ModifiedVICReg: {"temperature": 0.1, "ratio": 1.25},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", MODIFIED)
def test_terms_of_modified_losses_match_closed_forms(kind, mode):
    options = MODIFIED[kind]
    objective = kind(margin=0.3, gate_mode=mode, **options)
    g = torch.Generator().manual_seed(0)
    near = 0.1 + 0.8 * torch.rand(40, generator=g, dtype=torch.float64)
    far = 0.6 + torch.rand(40, 5, generator=g, dtype=torch.float64)
    result = gradient_factors(objective, near, far)
    for i in range(40):
        gate, share, ratio = closed_form(
            float(near[i]), far[i].numpy(), tau=options.get("temperature"), ratio=options["ratio"],
            margin=0.3, mode=mode,
        )  # fmt: skip
        want = (share, ratio) if gate else (math.nan, math.nan)
        assert float(result.gate[i]) == gate
        assert (float(result.share[i]), float(result.ratio[i])) == pytest.approx(want, rel=1e-12, nan_ok=True)
    assert 0 < result.gate.sum() < 40


@pytest.mark.parametrize(
    "objective",
    [
        *(kind(gate_mode=mode, **MODIFIED[kind]) for mode in MODES for kind in MODIFIED),
        *(
            o.UnifiedGradient(gate=o.SigmoidGate(0.2), weight=weight, ratio=1.3, pairs=pairs, detach=detach)
            for pairs in ("within", "cross")
            for detach in ("nothing", "negatives", "keys")
            for weight in (o.SoftmaxOverNegatives(0.3), o.SoftmaxOverPairs(0.3, swap=True))
        ),
    ],
)
def test_maps_match_gradients_of_batch_of_equivalent_anchors(objective, ring):
    near, far = ring.angles(objective.pairs)
    expected = gradient_factors(objective, near, far)
    batch = gradient_terms(objective, *ring)
    torch.testing.assert_close(batch.pull / batch.push, expected.ratio.expand(len(batch.push)))
    assert float(expected.ratio) == objective.ratio.value * (2 if doubles(objective) else 1)
    pushes = pair_coefficients(objective, torch.cat(ring)).clamp(min=0)
    share = pushes.amax(dim=1) / pushes.sum(dim=1)
    torch.testing.assert_close(share, expected.share.expand(len(share)))
    weight_scale = {
        o.SoftmaxOverNegatives: 1 / 0.3,
        o.SoftmaxOverPairs: 1,
        o.HardestNegative: 0.5 / math.sin(far.min() / 2),
    }[type(objective.weight)]
    roles = 2 if objective.detach == "nothing" else 1  # a negative also pushes as a key
    gate = batch.push / (objective.scale * roles * weight_scale)
    torch.testing.assert_close(gate, expected.gate.expand(len(gate)))


class Half(o.Gate):
    """Gate that uses only what the maps can provide."""

    def forward(self, batch):
        return (batch.among(batch.other_similarity, "cross").amax(dim=1) > 0.5).to(batch.positive.dtype) / 2


class FirstRows(o.Gate):
    """Gate that uses the position of the anchors in the batch."""

    def forward(self, batch):
        return batch.positive.new_full((len(batch.anchors),), float(batch.rows.start == 0))


def test_user_gate_is_accepted_unless_it_needs_more_than_angles(ring):
    near, far = torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 2.0], [1.2, 2.0]])
    assert gradient_factors(o.UnifiedGradient(gate=Half()), near, far).gate.tolist() == [0.5, 0.0]
    assert torch.isfinite(o.UnifiedGradient(gate=FirstRows())(*ring))
    with pytest.raises(InputError, match=r"^no map of UnifiedGradient: one of its parts needs .* 'rows'$"):
        gradient_factors(o.UnifiedGradient(gate=FirstRows()), near, far)
