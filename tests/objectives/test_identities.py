"""Tests of identities between the objectives in float64, and of agreement with other libraries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import DCLLoss, DCLWLoss, MACLLoss, NTXentLoss

from ssl_vision import objectives as o
from ssl_vision.objectives.distance import angle


def views(n=16, dim=8, noise=0.5, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, dim, generator=g, dtype=dtype)
    z2 = z1 + noise * torch.randn(n, dim, generator=g, dtype=dtype)
    return z1.requires_grad_(), z2.requires_grad_()


def gradient(objective, z1, z2):
    return torch.cat(torch.autograd.grad(objective(z1, z2), (z1, z2)))


def relative_error(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_macl_and_flatnce_gradients_equal_dcl_at_fixed_temperature(pairs):
    z1, z2 = views()
    dcl = gradient(o.DCL(pairs=pairs), z1, z2)
    assert relative_error(gradient(o.MACL(alpha=1.0, pairs=pairs), z1, z2), dcl) < 1e-12
    assert relative_error(gradient(o.MACLb(beta=0.0, pairs=pairs), z1, z2), dcl) < 1e-12
    assert relative_error(gradient(o.FlatNCE(pairs=pairs), z1, z2), dcl) < 1e-12


def test_arccon_of_angle_zero_is_infonce_even_for_rows_of_zeros():
    rows = [z.detach().clone() for z in views()]
    for z in rows:
        z[0] = 0  # a positive pair whose cosine is defined as 0
    z1, z2 = (z.requires_grad_() for z in rows)
    torch.testing.assert_close(o.ArcCon(angle=0.0)(z1, z2), o.InfoNCE()(z1, z2))
    expected = gradient(o.InfoNCE(), z1, z2)
    torch.testing.assert_close(gradient(o.ArcCon(angle=0.0), z1, z2), expected)
    assert float(angle(torch.zeros(2), torch.zeros(2))) == pytest.approx(torch.pi / 2)


def test_infonce_is_softplus_of_dcl_and_weight_is_its_sigmoid():
    z1, z2 = views()
    d = o.logit_margin(z1, z2, 0.1)
    info = torch.nn.functional.softplus(d)
    torch.testing.assert_close(o.InfoNCE()(z1, z2), info.mean())
    torch.testing.assert_close(d - torch.log(torch.sigmoid(d)), info)
    objective = o.InfoNCE()
    objective(z1, z2)
    torch.testing.assert_close(objective.statistics()["weight_mean"], torch.sigmoid(d).mean())


def test_dual_temperature_has_infonce_and_scaled_dcl_as_limits():
    z1, z2 = views()
    equal_temperatures = o.DualTemperature(temperature=0.2, outer_temperature=0.2)
    torch.testing.assert_close(equal_temperatures(z1, z2), o.InfoNCE(temperature=0.2)(z1, z2))
    assert (
        relative_error(gradient(equal_temperatures, z1, z2), gradient(o.InfoNCE(temperature=0.2), z1, z2))
        < 1e-12
    )
    negatives = 2 * len(z1) - 2
    limit = gradient(o.DualTemperature(temperature=0.2, outer_temperature=1e7), z1, z2)
    assert (
        relative_error(limit, negatives / (negatives + 1) * gradient(o.DCL(temperature=0.2), z1, z2)) < 1e-6
    )


def test_macl_icml_with_zero_threshold_equals_macl_b():
    z1, z2 = views()
    assert relative_error(gradient(o.MACLICML(beta=0.4), z1, z2), gradient(o.MACLb(beta=0.4), z1, z2)) < 1e-14


def test_dclw_tends_to_dcl():
    z1, z2 = views()
    assert relative_error(gradient(o.DCLW(sigma=1e8), z1, z2), gradient(o.DCL(), z1, z2)) < 1e-6


def test_macl_value_is_at_least_one_and_tends_to_one():
    z = torch.eye(12, dtype=torch.float64)
    for noise in (0.0, 0.2, 2.0):
        shifted = z + noise * torch.randn(12, 12, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
        assert o.MACL()(z, shifted) >= 1
    assert float(o.MACL(temperature=0.03)(z, z)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 0.2, 0.1])
def test_infonce_and_dcl_match_lightly(temperature):
    z1, z2 = views(n=24, dim=16)
    for objective, reference in [
        (o.InfoNCE(temperature=temperature), NTXentLoss(temperature=temperature)),
        (o.DCL(temperature=temperature), DCLLoss(temperature=temperature)),
    ]:
        torch.testing.assert_close(objective(z1, z2), reference(z1, z2), rtol=1e-6, atol=1e-6)
        assert relative_error(gradient(objective, z1, z2), gradient(reference, z1, z2)) < 1e-6


@pytest.mark.parametrize("temperature", [0.5, 0.1])
def test_infonce_matches_pytorch_metric_learning(temperature):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    z1, z2 = views(n=12, dim=16)
    reference = losses.NTXentLoss(temperature=temperature)

    def reference_of_views(a, b):
        return reference(torch.cat([a, b]), torch.arange(12).repeat(2))

    objective = o.InfoNCE(temperature=temperature)
    torch.testing.assert_close(objective(z1, z2), reference_of_views(z1, z2), rtol=1e-6, atol=1e-6)
    assert relative_error(gradient(objective, z1, z2), gradient(reference_of_views, z1, z2)) < 1e-6


def test_macl_icml_matches_lightly():
    z1, z2 = views(n=24, dim=16)
    objective = o.MACLICML(temperature=0.2, beta=0.5, threshold=0.1)
    reference = MACLLoss(temperature=0.2, alpha=0.5, A_0=0.1)
    torch.testing.assert_close(objective(z1, z2), reference(z1, z2), rtol=1e-5, atol=1e-5)
    assert relative_error(gradient(objective, z1, z2), gradient(reference, z1, z2)) < 1e-4


def test_dclw_matches_lightly():
    z1, z2 = views(n=24, dim=16)
    objective, reference = o.DCLW(temperature=0.2), DCLWLoss(temperature=0.2)
    torch.testing.assert_close(objective(z1, z2), reference(z1, z2), rtol=1e-6, atol=1e-6)
    assert relative_error(gradient(objective, z1, z2), gradient(reference, z1, z2)) < 1e-6


ALL = [o.InfoNCE, o.DCL, o.DCLW, o.DCLPlus, o.DualTemperature, o.MACL, o.MACLb, o.MACLc, o.AdaptiveInfoNCE]


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 12),
    dim=st.integers(2, 9),
    scale=st.floats(1e-3, 1e3),
    which=st.sampled_from(ALL),
    pairs=st.sampled_from(["both", "cross"]),
    seed=st.integers(0, 99),
)
def test_value_is_invariant_to_order_scale_rotation_and_view_swap(n, dim, scale, which, pairs, seed):
    objective = which(pairs=pairs)
    z1, z2 = (z.detach() for z in views(n=n, dim=dim, seed=seed))
    value = objective(z1, z2)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=z1.dtype, generator=generator)).Q
    for other in [
        objective(z1[order], z2[order]),
        objective(z2, z1),
        objective(scale * z1, z2 / scale),
        objective(z1 @ rotation, z2 @ rotation),
    ]:
        torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-9)
