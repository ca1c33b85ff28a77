"""Tests of objectives in float32, under autocast, on degenerate inputs and with invalid arguments."""

import itertools
import math

import pytest
import torch
from contrastive_classes import PRESETS

from ssl_vision import objectives as o
from ssl_vision.objectives.logit_margin import linear

ALL = [
    o.InfoNCE,
    o.DCL,
    o.DCLW,
    o.DCLPlus,
    o.FlatNCE,
    o.DualTemperature,
    o.MACL,
    o.MACLb,
    o.MACLc,
    o.MACLICML,
    o.AdaptiveInfoNCE,
]


def separated(n=128, dim=64, noise=0.03, seed=0):
    """Return well separated positives, for which 1 − softmax underflows."""
    g = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, dim, generator=g, dtype=torch.float64)
    return z1, z1 + noise * torch.randn(n, dim, generator=g, dtype=torch.float64)


def gradients(objective, z1, z2, autocast=None):
    z1, z2 = z1.clone().requires_grad_(), z2.clone().requires_grad_()
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        loss = objective(z1, z2)
    return torch.cat([g.double() for g in torch.autograd.grad(loss, (z1, z2))])


@pytest.mark.parametrize("n", [2, 17, 128])
@pytest.mark.parametrize(
    ("tau", "bound"),
    [(1.0, 5e-6), (0.5, 5e-6), (0.1, 5e-6), (0.07, 5e-6), (0.05, 5e-6), (0.03, 5e-6), (0.01, 5e-5)],
)
@pytest.mark.parametrize("which", ALL)
def test_float32_gradient_equals_float64(which, tau, bound, n):
    """A gradient too small for float32, such as InfoNCE's below d = −70, must be negligible there, too."""
    for pairs, noise in itertools.product(("both", "cross"), (0.03, 3.0)):
        objective = which(temperature=tau, pairs=pairs)
        z1, z2 = (z.float() for z in separated(n=n, noise=noise))
        exact = gradients(objective, z1.double(), z2.double())
        single = gradients(objective, z1, z2)
        assert torch.isfinite(single).all(), (pairs, noise)
        if exact.norm() < 1e-30:
            assert single.norm() < 1e-30, (pairs, noise)
        else:
            assert float((single - exact).norm() / exact.norm()) < bound, (pairs, noise)


@pytest.mark.parametrize("which", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reduce_internal_precision(which, dtype):
    objective = which(temperature=0.05)
    z1, z2 = (z.float() for z in separated(n=16))
    outside = gradients(objective, z1, z2)
    inside = gradients(objective, z1, z2, autocast=dtype)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)
    assert objective(z1.to(dtype), z2.to(dtype)).dtype == torch.float32


BASES = (o.Contrastive, o.TwoViews, o.RECLAIM)
EVERY = [
    cls
    for cls in map(vars(o).get, o.__all__)
    if isinstance(cls, type) and issubclass(cls, BASES) and cls not in (o.TwoViews, o.HardestTriplet)
]


def gradients_in_autocast(which, n, *, enabled):
    """Return the gradients of all leaves if forward and backward both run inside ``torch.autocast``."""
    z1, z2 = (z.float().requires_grad_() for z in separated(n, dim=16, noise=0.7))
    inputs = {"labels": torch.arange(n) % 4, "indices": torch.arange(n)}
    inputs["features"] = inputs["shallow"] = tuple(z.float().requires_grad_() for z in separated(n, seed=1))
    objective = which()
    if hasattr(objective, "prepare"):
        objective.prepare(images=200, embeddings=16, features=64, shallow=64)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        loss = objective(z1, z2, **{name: inputs[name] for name in objective.required_inputs})
        loss.backward()
    leaves = (z1, z2, *inputs["features"], *objective.parameters())
    return torch.cat([leaf.grad.flatten() for leaf in leaves if leaf.grad is not None])


@pytest.mark.parametrize("n", [16, 96])  # one similarity matrix, and tiles
@pytest.mark.parametrize("which", EVERY, ids=lambda cls: cls.__name__)
def test_backward_inside_autocast_equals_float32(which, n):
    exact = gradients_in_autocast(which, n, enabled=False)
    inside = gradients_in_autocast(which, n, enabled=True)
    assert exact.norm() > 0
    assert float((inside - exact).norm() / exact.norm()) < 1e-6


def test_linear_has_correct_first_and_second_derivatives():
    shapes, g = ((2, 1, 2), (3, 2), (3,)), torch.Generator().manual_seed(0)
    arguments = [torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(linear, arguments)
    assert torch.autograd.gradgradcheck(linear, arguments)


NORMAL = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("which", ALL)
@pytest.mark.parametrize(
    "case",
    {
        "collapsed": torch.ones(8, 4),
        "zeros": torch.zeros(8, 4),
        "one zero row": torch.cat([torch.zeros(1, 4), NORMAL[:7]]),
        "huge": torch.full((8, 4), 3e38),
        "tiny": torch.full((8, 4), 1e-40),
        "duplicates": NORMAL[:4].repeat(2, 1),
        "opposite": torch.cat([torch.ones(4, 4), -torch.ones(4, 4)]),
    }.items(),
    ids=lambda case: case[0],
)
def test_every_finite_input_gives_finite_value_and_gradient(case, which):
    for tau, pairs in itertools.product((0.5, 0.05, 0.01), ("both", "cross")):
        z1 = case[1].clone().requires_grad_()
        z2 = case[1].flip(0).clone().requires_grad_()
        loss = which(temperature=tau, pairs=pairs)(z1, z2)
        loss.backward()
        assert torch.isfinite(loss), (tau, pairs)
        assert torch.isfinite(z1.grad).all(), (tau, pairs)
        assert torch.isfinite(z2.grad).all(), (tau, pairs)


Z = NORMAL[:4, :3]


@pytest.mark.parametrize(
    ("z1", "z2", "words"),
    [
        (Z, Z[:3], r"z1 and z2 .*\(4, 3\) and \(3, 3\)"),
        (Z, Z[:, :2], r"\(4, 3\) and \(4, 2\)"),
        (Z[:1], Z[:1], r"z1 of shape \(1, 3\) has no negatives"),
        (Z[:0], Z[:0], r"z1 of shape \(0, 3\) has no negatives"),
        (Z.long(), Z, r"z1 must be floating point, got torch.int64 of shape \(4, 3\)"),
        (Z, Z[0], r"z2 must have shape \(N, D\), got \(3,\)"),
    ],
)
@pytest.mark.parametrize("which", [o.InfoNCE, o.MACL])
def test_invalid_embeddings_raise_value_error_with_name_and_shape(which, z1, z2, words):
    with pytest.raises(ValueError, match=words):
        which()(z1, z2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: o.InfoNCE(temperature=0.0), "temperature"),
        (lambda: o.InfoNCE(temperature=-1.0), "temperature"),
        (lambda: o.InfoNCE(temperature=float("nan")), "temperature"),
        (lambda: o.InfoNCE(pairs="all"), "pairs"),
        (lambda: o.DualTemperature(outer_temperature=0.0), "temperature"),
        (lambda: o.DCLW(sigma=0.0), "sigma"),
        (lambda: o.MACL(alpha=0.5), "alpha"),
        (lambda: o.MACL(alpha=math.nan), "alpha must be .* got nan"),
        (lambda: o.MACL(alpha=1e3), r"temperature must be at least 1\.0, got 0\.1"),
        (lambda: o.MACL(temperature=-1.0), r"temperature must be at least 0\.002, got -1"),
        (lambda: o.MACLb(temperature=-1.0), r"temperature must be at least 0\.001, got -1"),
        (lambda: o.MACLICML(temperature=-1.0), r"temperature must be at least 0\.001, got -1"),
        (lambda: o.AlignmentExponential(0.1, alpha=1e3), "base / alpha"),
        (lambda: o.MACLb(beta=-0.1), "beta"),
        (lambda: o.MACLb(beta=1.1), "beta"),
        (lambda: o.MACLICML(threshold=1.5), "threshold"),
        (lambda: o.MACLb(minimum=0.0), "minimum"),
        (lambda: o.MACLICML(temperature=0.05, minimum=0.06), "minimum must be .* at most 0.05"),
        (lambda: o.LinearInEpoch(0.07, -1e-4), "slope"),
        (lambda: o.CosineInEpoch(0.1, 0.0), "end"),
        (lambda: o.CosineInEpoch(epochs=0), "epochs"),
        (lambda: o.Learnable(2.0), "temperature"),
        (lambda: o.logit_margin(Z, Z, 0.0), "temperature"),
        (lambda: o.logit_margin(Z, Z, torch.ones(3)), r"temperature must be a scalar or of shape \(4,\)"),
        (lambda: o.logit_margin(Z, Z, 0.1, pairs="all"), "pairs"),
    ],
)
def test_invalid_parameters_raise_value_error(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("n", [16, 256])
@pytest.mark.parametrize("preset", PRESETS)
def test_non_finite_embeddings_give_non_finite_loss(preset, n):
    for value in (math.nan, math.inf):
        z = torch.randn(2 * n, 8, generator=torch.Generator().manual_seed(0))
        z[3, 2] = value
        assert not preset()(*z.chunk(2)).isfinite()


def test_learnable_temperature_of_bfloat16_network_is_learned_as_in_float32():
    z1 = torch.randn(64, 16, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    z2 = (z1 + 0.1).bfloat16().float()
    learned = []
    for dtype in (torch.float32, torch.bfloat16):
        objective = o.InfoNCE(temperature=o.Learnable(0.1)).to(dtype)
        optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
        for _ in range(20):
            optimizer.zero_grad()
            objective(z1.to(dtype), z2.to(dtype)).backward()
            optimizer.step()
        learned.append(float(objective.statistics()["temperature"]))
    assert learned[1] == learned[0] < 0.0985
