"""Tests of objectives not based on the margin d: float64 loops, other libraries, stated properties."""

import importlib
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import BarlowTwinsLoss, VICRegLoss
from torch import Tensor

from ssl_vision import objectives as o
from ssl_vision.objectives.objective import TwoViews

margin_module = importlib.import_module("ssl_vision.objectives.logit_margin")

N, D = 7, 5


def batch(aligned=0.5, seed=0, n=N, dim=D):
    g = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, dim, generator=g, dtype=torch.float64)
    z2 = aligned * z1 + (1 - aligned) * torch.randn(n, dim, generator=g, dtype=torch.float64)
    return z1.requires_grad_(), (3 * z2).requires_grad_()


def units(z1, z2) -> tuple[Tensor, Tensor]:
    return z1 / z1.norm(dim=1, keepdim=True), z2 / z2.norm(dim=1, keepdim=True)


def keys(v, i, pairs, n):
    """Return (view, image) of each negative of image i in view v."""
    views = {"both": (v, 1 - v), "cross": (1 - v,), "within": (v,)}[pairs]
    return [(w, j) for w in views for j in range(n) if j != i]


def triplet(between, margin):
    def loss(z1, z2, pairs):
        e, losses = units(z1, z2), []
        for v in (0, 1):
            for i in range(len(z1)):
                nearest = min(
                    (between(e[v][i], e[w][j]) for w, j in keys(v, i, pairs, len(z1))), key=torch.Tensor.item
                )
                losses.append(torch.clamp(between(e[v][i], e[1 - v][i]) - nearest + margin, min=0))
        return torch.stack(losses).mean()

    return loss


def arccon(tau, degrees):
    def loss(z1, z2, pairs):
        e, losses = units(z1, z2), []
        for v in (0, 1):
            for i in range(len(z1)):
                target = torch.cos(torch.acos(e[v][i] @ e[1 - v][i]) + degrees * math.pi / 180) / tau
                negatives = [e[v][i] @ e[w][j] / tau for w, j in keys(v, i, pairs, len(z1))]
                losses.append(torch.logsumexp(torch.stack([target, *negatives]), 0) - target)
        return torch.stack(losses).mean()

    return loss


def alignment_uniformity(a, b, alpha, t):
    def loss(z1, z2, pairs):
        e, n = units(z1, z2), len(z1)
        alignment = torch.stack([(x - y).norm() ** alpha for x, y in zip(*e, strict=True)]).mean()
        kernels = [
            [
                torch.exp(-t * (e[v][i] - e[w][j]).square().sum())
                for i in range(n)
                for w, j in keys(v, i, pairs, n)
            ]
            for v in (0, 1)
        ]
        if pairs == "within":
            uniformity = sum(torch.stack(view).mean().log() for view in kernels) / 2
        else:
            uniformity = torch.stack(kernels[0] + kernels[1]).mean().log()
        return a * alignment + b * uniformity

    return loss


def euclid(a, b):
    return (a - b).norm()


def angle(a, b):
    return torch.acos(a @ b)


WITH_PAIRS = {
    "MPT": (o.MPT, triplet(lambda a, b: -(a @ b), 0.23)),
    "MET": (o.MET, triplet(euclid, 0.45)),
    "MAT": (o.MAT, triplet(angle, 0.15 * math.pi)),
    "ArcCon": (lambda pairs: o.ArcCon(angle=20, pairs=pairs), arccon(0.1, 20)),
    "ArcCon at 0°": (lambda pairs: o.ArcCon(angle=0, pairs=pairs), arccon(0.1, 0)),
    "AlignmentUniformity": (o.AlignmentUniformity, alignment_uniformity(1, 1, 2, 2)),
    "AlignmentUniformity with options": (
        lambda pairs: o.AlignmentUniformity(
            alignment_weight=0.3, uniformity_weight=0.7, alpha=1.5, t=6.0, pairs=pairs
        ),
        alignment_uniformity(0.3, 0.7, 1.5, 6),
    ),
}
MODIFIED = [o.ModifiedMHE, o.ModifiedMHS, o.ModifiedBarlowTwins, o.ModifiedVICReg]
ALL = [o.MPT, o.MET, o.MAT, o.ArcCon, o.AlignmentUniformity, o.UnifiedGradient, *MODIFIED]
ALL += [o.MHE, o.MHS, o.BarlowTwins, o.SphericalBarlowTwins, o.VICReg, o.SphericalVICReg]
UNSCALED = (o.BarlowTwins, o.VICReg)
"""Objectives that do not normalise the embeddings."""


def assert_same(loss, reference, z1, z2):
    torch.testing.assert_close(loss, reference, rtol=1e-11, atol=1e-11)
    for got, want in zip(*(torch.autograd.grad(x, (z1, z2)) for x in (loss, reference)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("aligned", [0.2, 0.8])
@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("name", WITH_PAIRS)
def test_objective_matches_loop_reference(name, pairs, aligned):
    make, loop = WITH_PAIRS[name]
    z1, z2 = batch(aligned)
    assert_same(make(pairs=pairs)(z1, z2), loop(z1, z2, pairs), z1, z2)


@pytest.mark.parametrize("name", ["AlignmentUniformity", "AlignmentUniformity with options"])
def test_uniformity_within_each_view_matches_loop_reference(name):
    make, loop = WITH_PAIRS[name]
    z1, z2 = batch()
    assert_same(make(pairs="within")(z1, z2), loop(z1, z2, "within"), z1, z2)


def subclasses(base):
    direct = {cls for cls in base.__subclasses__() if cls.__module__.startswith("ssl_vision.")}
    public = {cls for cls in direct if not cls.__name__.startswith("_")}
    return public | {deeper for cls in direct for deeper in subclasses(cls)}


def test_every_objective_is_tested():
    assert subclasses(TwoViews) | {o.ArcCon} == {*ALL, o.HardestTriplet}


@pytest.mark.parametrize(("n", "dim"), [(16, 6), (5, 12)])
def test_barlow_twins_and_vicreg_match_lightly(n, dim):
    z1, z2 = batch(n=n, dim=dim)
    for objective, reference in [(o.BarlowTwins(), BarlowTwinsLoss()), (o.VICReg(), VICRegLoss())]:
        assert_same(objective(z1, z2), reference(z1, z2), z1, z2)


def tangential(objective, e1, e2):
    """Return the gradient on unit rows of view 1, which the objective normalises and thereby projects."""
    e1, e2 = (e.detach().requires_grad_() for e in (e1, e2))
    return torch.autograd.grad(objective(e1, e2), e1)[0]


def test_gradients_match_table_of_unified_paper():
    """The last column has the weight of each negative and the positive's pull on the anchors of view 1."""
    e, p = (x.detach() for x in units(*batch()))
    similarity, others = e @ e.T, p @ p.T
    off = ~torch.eye(N, dtype=torch.bool)
    exponential = similarity.exp() * off
    apart = torch.where(off, torch.cdist(e, p), torch.inf)
    nearest = apart.argmin(1)
    pushes = {
        o.MHE: 10 * exponential / (exponential.sum() / 2) @ e,
        o.MHS: p[nearest] / (N * apart.amin(1))[:, None],
        o.SphericalBarlowTwins: 2 * 30 * (others * off) / N**2 @ e,
        o.SphericalVICReg: 2 * 30 * (similarity * off) / N**2 @ e,
    }
    correlation = (e * p).sum(0) / N
    for which, push in pushes.items():
        per_dimension = 1 - (1 - 30) * correlation if which is o.SphericalBarlowTwins else 1
        want = push - 2 / N * per_dimension * p
        want = want - (want * e).sum(1, keepdim=True) * e
        torch.testing.assert_close(tangential(which(), e, p), want, rtol=1e-10, atol=1e-12)


def test_mhe_gradient_equals_alignment_uniformity_gradient():
    z1, z2 = batch()
    uniformity = o.AlignmentUniformity(uniformity_weight=2 * 10, t=0.5)
    for gradient, expected in zip(
        *(torch.autograd.grad(f(z1, z2), (z1, z2)) for f in (o.MHE(), uniformity)), strict=True
    ):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(3, 12),
    dim=st.integers(2, 9),
    aligned=st.floats(0, 1),
    tau=st.floats(0.01, 1),
    pairs=st.sampled_from(["both", "cross"]),
    seed=st.integers(0, 99),
)
def test_dissipating_objectives_bound_infonce(n, dim, aligned, tau, pairs, seed):
    """InfoNCE ≤ DCL⁺ + log 2, and ≤ MPT/τ + log 2 at m = τ log K."""
    z1, z2 = (z.detach() for z in batch(aligned, seed, n, dim))
    infonce = float(o.InfoNCE(temperature=tau, pairs=pairs)(z1, z2))
    assert infonce <= float(o.DCLPlus(temperature=tau, pairs=pairs)(z1, z2)) + math.log(2) + 1e-9
    negatives = (n - 1) * (2 if pairs == "both" else 1)
    triplet = o.MPT(margin=tau * math.log(negatives), pairs=pairs)
    assert infonce <= float(triplet(z1, z2)) / tau + math.log(2) + 1e-9


@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize(
    "which", [o.MPT, o.MET, o.MAT, lambda pairs: o.UnifiedGradient(weight=o.HardestNegative(), pairs=pairs)]
)
def test_gradient_is_exactly_zero_outside_the_margin(which, pairs):
    """Images 0 to 2 are isolated; 3 and 4 are close only to each other."""
    z1 = torch.eye(6)[:5]
    z1[4] = z1[3] + 0.3 * torch.eye(6)[5]
    z2 = z1 + 0.01 * torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    z1.requires_grad_()
    z2.requires_grad_()
    objective = which(pairs=pairs)
    first, second = torch.autograd.grad(objective(z1, z2), (z1, z2))
    for gradient in (first, second):
        assert not gradient[:3].any()
        assert gradient[3:].any(dim=1).all()
    torch.testing.assert_close(objective.statistics()["active_share"], torch.tensor(0.4))


@pytest.mark.parametrize("length", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0])
@pytest.mark.parametrize(
    "objective",
    [
        o.MET(margin=3),
        o.MAT(margin=1),
        o.ArcCon(),
        *(
            o.UnifiedGradient(gate=o.OpenGate(), weight=o.HardestNegative(metric), ratio=o.SlopeRatio(metric))
            for metric in ("euclidean", "angle")
        ),
        o.UnifiedGradient(gate=o.SigmoidGate(0.1, 10), ratio=o.AngularRatio(10)),
    ],
    ids=["MET", "MAT", "ArcCon", "parts of MET", "parts of MAT", "parts of ArcCon"],
)
def test_gradient_is_accurate_and_finite_for_nearly_equal_views(objective, length):
    """At a distance of 0.001, no clamp zeroes the gradient; at 0, it is finite."""
    z = torch.nn.functional.normalize(torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    aside = torch.zeros(8, 16)
    aside[:, 0] = length
    near = z + aside

    def gradient(dtype):
        a, b = z.to(dtype).requires_grad_(), near.to(dtype).requires_grad_()
        return torch.cat(torch.autograd.grad(objective(a, b), (a, b))).double()

    single, exact = gradient(torch.float32), gradient(torch.float64)
    assert torch.isfinite(single).all()
    if length >= 1e-3:
        assert (single - exact).norm() / exact.norm() < 1e-3
    assert single.norm(dim=1).max() < 1


BEYOND_TILES = [
    o.MPT,
    o.MET,
    o.MAT,
    o.ArcCon,
    o.AlignmentUniformity,
    o.MHE,
    o.MHS,
    o.UnifiedGradient,
    *MODIFIED,
]


def gradients(objective, z1, z2, dtype=torch.float64, autocast=None):
    z1, z2 = (z.detach().to(dtype).requires_grad_() for z in (z1, z2))
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        loss = objective(z1, z2)
    return torch.cat([g.double() for g in torch.autograd.grad(loss, (z1, z2))])


@pytest.mark.parametrize("which", BEYOND_TILES, ids=lambda c: c.__name__)
def test_tiles_and_blocks_do_not_change_gradients(monkeypatch, which):
    z1, z2 = batch(0.6, n=11, dim=4)
    whole = gradients(which(), z1, z2)
    monkeypatch.setattr(margin_module, "DENSE", 0)
    monkeypatch.setattr("ssl_vision.objectives.tiled.TILE", 3)
    monkeypatch.setattr("ssl_vision.objectives.gates_weights_ratios.BLOCK", 4)
    torch.testing.assert_close(gradients(which(), z1, z2), whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [4, 17, 100])
@pytest.mark.parametrize("aligned", [0.97, 0.5])
@pytest.mark.parametrize("which", ALL, ids=lambda c: c.__name__)
def test_float32_gradient_equals_float64(which, aligned, n):
    z1, z2 = (z.float() for z in batch(aligned, n=n, dim=32))
    exact, single = gradients(which(), z1, z2), gradients(which(), z1, z2, torch.float32)
    if exact.norm() < 1e-30:
        assert single.norm() < 1e-30
    else:
        assert (single - exact).norm() / exact.norm() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("which", ALL, ids=lambda c: c.__name__)
def test_autocast_does_not_reduce_internal_precision(which, dtype):
    z1, z2 = (z.float() for z in batch(0.6, n=12, dim=8))
    inside = gradients(which(), z1, z2, torch.float32, autocast=dtype)
    assert torch.equal(inside, gradients(which(), z1, z2, torch.float32))
    assert which()(z1.to(dtype), z2.to(dtype)).dtype == torch.float32
    assert which()(z1.double(), z2.double()).dtype == torch.float64


NORMAL = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
CASES = {
    "collapsed": torch.ones(8, 4),
    "zeros": torch.zeros(8, 4),
    "one zero row": torch.cat([torch.zeros(1, 4), NORMAL[:7]]),
    "huge": torch.full((8, 4), 3e38),
    "tiny": torch.full((8, 4), 1e-40),
    "duplicates": NORMAL[:4].repeat(2, 1),
    "opposite": torch.cat([torch.ones(4, 4), -torch.ones(4, 4)]),
}


@pytest.mark.parametrize(
    ("case", "which"),
    # squares of huge embeddings that are not normalised overflow
    [(case, which) for case in CASES for which in ALL if case != "huge" or which not in UNSCALED],
)
@pytest.mark.parametrize("flipped", [False, True])
def test_every_finite_input_gives_finite_value_and_gradient(case, which, flipped):
    z1 = CASES[case].clone().requires_grad_()
    z2 = (CASES[case].flip(0) if flipped else CASES[case]).clone().requires_grad_()
    loss = which()(z1, z2)
    loss.backward()
    for value in (loss, z1.grad, z2.grad):
        assert torch.isfinite(value).all()


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 9),
    dim=st.integers(2, 9),
    scale=st.floats(1e-3, 1e3),
    which=st.sampled_from(ALL),
    seed=st.integers(0, 99),
)
def test_value_is_invariant_to_order_scale_rotation_and_view_swap(n, dim, scale, which, seed):
    z1, z2 = (z.detach() for z in batch(0.6, seed, n, dim))
    objective = which()
    value = objective(z1, z2)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    values = [objective(z1[order], z2[order]), objective(z2, z1)]
    if which not in UNSCALED:
        values.append(objective(scale * z1, z2 / scale))
    if which not in (o.BarlowTwins, o.SphericalBarlowTwins, o.VICReg):  # these are computed per dimension
        rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=z1.dtype, generator=generator)).Q
        values.append(objective(z1 @ rotation, z2 @ rotation))
    for transformed in values:
        torch.testing.assert_close(transformed, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("which", ALL, ids=lambda c: c.__name__)
def test_pickled_objective_gives_same_value(which):
    z1, z2 = batch()
    assert pickle.loads(pickle.dumps(which()))(z1, z2) == which()(z1, z2)


@pytest.mark.parametrize("which", ALL, ids=lambda c: c.__name__)
def test_statistics_describe_last_call_and_are_detached(which):
    objective = which()
    assert objective.statistics() == {}
    z1, z2 = batch(0.3)
    z2 = z2 + 1.0
    objective(*batch(0.9))
    objective(z1, z2)
    stats = objective.statistics()
    e = units(z1, z2)
    torch.testing.assert_close(stats["alignment"], (e[0] * e[1]).sum(1).mean().detach())
    assert not any(value.requires_grad or value.ndim for value in stats.values())


def test_terms_in_statistics_add_up_to_loss():
    z1, z2 = batch()
    cases: list[tuple[o.Objective, dict[str, float]]] = [
        (o.BarlowTwins(), {"invariance": 1, "redundancy": 0.005}),
        (o.SphericalBarlowTwins(), {"invariance": 1, "redundancy": 30}),
        (o.VICReg(), {"invariance": 25, "variance": 25, "covariance": 1}),
    ]
    for objective, weights in cases:
        loss, stats = objective(z1, z2).detach(), objective.statistics()
        torch.testing.assert_close(sum(w * stats[name] for name, w in weights.items()), loss)
    aligned = 2 - 2 * (torch.stack(units(z1, z2)).prod(0)).sum(1).mean().detach()
    for objective, weights in [
        (o.AlignmentUniformity(), {"uniformity": 1}),
        (o.MHE(), {"energy": 20}),
        (o.MHS(), {"separation": -2}),
        (o.SphericalVICReg(), {"covariance": 30}),
    ]:
        loss, stats = objective(z1, z2).detach(), objective.statistics()
        torch.testing.assert_close(aligned + sum(w * stats[name] for name, w in weights.items()), loss)


@pytest.mark.parametrize("which", ALL, ids=lambda c: c.__name__)
def test_invalid_embeddings_raise_value_error_with_name_and_shape(which):
    z = torch.randn(4, 3)
    for z1, z2, words in [
        (z, z[:3], r"z1 and z2 .*\(4, 3\) and \(3, 3\)"),
        (z[:1], z[:1], r"z1 of shape \(1, 3\) .*at least 2 images"),
        (z.long(), z, "z1 must be floating point"),
    ]:
        with pytest.raises(ValueError, match=words):
            which()(z1, z2)


@pytest.mark.parametrize("n", [8, 200])
@pytest.mark.parametrize("which", ALL, ids=lambda c: c.__name__)
def test_non_finite_embeddings_give_non_finite_loss(which, n):
    for value in (math.nan, math.inf):
        z1, z2 = (z.detach() for z in batch(n=n))
        z2[3, 1] = value
        assert not torch.isfinite(which()(z1, z2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: o.MPT(margin=0.0), "margin must be above 0, got 0.0"),
        (lambda: o.MET(margin=math.nan), "margin must be above 0 and finite, got nan"),
        (lambda: o.MAT(pairs="all"), "pairs must be one of 'both', 'cross', got 'all'"),
        (lambda: o.HardestTriplet(metric="cosine", margin=1), "metric must be one of .*'cosine'"),
        (lambda: o.ArcCon(angle=91), "angle must be at least 0 and at most 90"),
        (lambda: o.ArcCon(temperature=0.0), "temperature"),
        (lambda: o.AlignmentUniformity(pairs="all"), "'within', 'both', 'cross', got 'all'"),
        (lambda: o.AlignmentUniformity(alpha=0.5), "alpha must be at least 1"),
        (lambda: o.AlignmentUniformity(t=0.0), "t must be above 0"),
        (lambda: o.AlignmentUniformity(uniformity_weight=-1.0), "uniformity_weight must be at least 0"),
        (lambda: o.MHE(weight=-1.0), "weight must be at least 0"),
        (lambda: o.MHS(weight=math.inf), "weight must be at least 0 and finite, got inf"),
        (lambda: o.BarlowTwins(epsilon=0.0), "epsilon must be above 0"),
        (lambda: o.VICReg(variance_weight=-1.0), "variance_weight"),
        (lambda: o.SphericalVICReg(weight=-1.0), "weight"),
    ],
)
def test_invalid_parameters_raise_value_error(make, words):
    with pytest.raises(ValueError, match=words):
        make()
