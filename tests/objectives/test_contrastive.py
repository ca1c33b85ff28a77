"""Tests of statistics, temperature rules and custom combinations of contrastive objectives."""

import pytest
import torch

from ssl_vision import objectives as o

Z1 = torch.nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
Z2 = torch.nn.functional.normalize(Z1 + 0.3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))


def test_statistics_describe_the_last_call():
    objective = o.MACL()
    assert objective.statistics() == {}
    objective(Z1, Z2)
    stats = objective.statistics()
    alignment = (Z1 * Z2).sum(1).mean()
    d = o.logit_margin(Z1, Z2, 0.1 * 2**alignment)
    torch.testing.assert_close(stats["alignment"], alignment)
    torch.testing.assert_close(stats["temperature"], 0.1 * 2**alignment)
    torch.testing.assert_close(stats["weight_mean"], d.sigmoid().mean())
    torch.testing.assert_close(stats["weight_q95"], d.sigmoid().quantile(0.95))
    torch.testing.assert_close(stats["easy_share"], (d < 0).float().mean())
    assert not any(value.requires_grad for value in stats.values())


@pytest.mark.parametrize(
    ("rule", "smallest", "largest"),
    [
        (o.AlignmentExponential(0.1, 2.0), 0.05, 0.2),
        (o.AlignmentLinear(0.1, 0.5), 0.05, 0.15),
        (o.AlignmentLinear(0.1, 0.5, 0.4), 0.03, 0.13),
        (o.AlignmentLinear(0.1, 1.0), 0.01, 0.2),
        (o.AlignmentLinear(0.1, 1.0, 1.0, minimum=0.02), 0.02, 0.1),
    ],
)
def test_alignment_rules_reach_stated_minimum_and_maximum(rule, smallest, largest):
    assert float(rule(-torch.ones(3))) == pytest.approx(smallest)
    assert float(rule(torch.ones(3))) == pytest.approx(largest)


@pytest.mark.parametrize(
    ("objective", "tau"), [(o.MACLb(beta=1.0), 0.15), (o.MACLICML(beta=1.0, threshold=1.0), 0.05)]
)
def test_macl_supports_largest_beta_and_threshold_at_any_alignment(objective, tau):
    """At an alignment of −1, the gradient equals that of DCL at the smallest temperature."""
    assert float(objective.temperature(torch.full((6,), 0.5))) == pytest.approx(tau)
    z = Z1.double().requires_grad_()
    gradient = torch.autograd.grad(objective(z, -z), z)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(o.DCL(temperature=0.01)(z, -z), z)[0])
    assert gradient.norm() > 0


def test_schedules_count_epochs_from_zero():
    linear, cosine = o.LinearInEpoch(0.07, 2.8e-4), o.CosineInEpoch(0.1, 0.2, epochs=10)
    assert float(linear(Z1[:, 0])) == pytest.approx(0.07)
    assert float(cosine(Z1[:, 0])) == pytest.approx(0.1)
    for rule in (linear, cosine):
        rule.set_epoch(200)
    assert float(linear(Z1[:, 0])) == pytest.approx(0.126)
    assert float(cosine(Z1[:, 0])) == pytest.approx(0.2)


def test_schedule_sets_temperature_in_place_and_keeps_the_dtype():
    rule = o.LinearInEpoch(0.07, 2.8e-4)
    with torch.inference_mode():
        before = rule(Z1[:, 0])
    rule.set_epoch(200)
    assert rule(Z1[:, 0]) is before
    assert float(before) == pytest.approx(0.126)
    assert float(rule(Z1[:, 0].double())) == 0.07 + 200 * 2.8e-4


def test_adaptive_temperature_is_detached():
    z1, z2 = Z1.double().requires_grad_(), Z2.double().requires_grad_()
    adaptive = torch.autograd.grad(o.MACL()(z1, z2), z1)[0]
    tau = float(0.1 * 2 ** (z1 * z2).sum(1).mean().detach())
    fixed = torch.autograd.grad(o.DCL(temperature=tau)(z1, z2), z1)[0]
    torch.testing.assert_close(adaptive, fixed)


def test_learnable_temperature_is_saved_trained_and_bounded():
    objective = o.InfoNCE(temperature=o.Learnable(0.5))
    assert list(objective.state_dict()) == ["temperature.log_temperature"]
    before = float(objective.temperature(Z1[:, 0]))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        objective(Z1, Z2).backward()
        optimizer.step()
    assert float(objective.temperature(Z1[:, 0])) < before
    with torch.no_grad():
        objective.temperature.log_temperature.fill_(-100)
    assert float(objective.temperature(Z1[:, 0])) == pytest.approx(0.01)


def test_contrastive_with_parts_of_preset_equals_preset():
    rule = o.AlignmentLinear(0.1, 0.5)
    combination = o.Contrastive(temperature=rule, margin_loss=o.Reweighted(), pairs="cross")
    torch.testing.assert_close(combination(Z1, Z2), o.MACLb(pairs="cross")(Z1, Z2))
    torch.testing.assert_close(o.Contrastive()(Z1, Z2), o.InfoNCE()(Z1, Z2))


def test_logit_margin_accepts_one_temperature_per_image():
    taus = torch.linspace(0.1, 0.6, 6)
    d = o.logit_margin(Z1, Z2, taus, pairs="cross")
    for i, tau in enumerate(taus):
        torch.testing.assert_close(d[[i, i + 6]], o.logit_margin(Z1, Z2, tau, pairs="cross")[[i, i + 6]])


def test_dense_path_compiles_as_full_graph():
    objective = o.MACL()
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(Z1, Z2), objective(Z1, Z2))


def test_learnable_temperature_above_maximum_recovers():
    rule = o.Learnable(0.5, minimum=0.1, maximum=1.0)
    with torch.no_grad():
        rule.log_temperature.fill_(2.0)
    optimizer = torch.optim.SGD(rule.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        rule(Z1[:, 0]).backward()  # the gradient lowers τ
        optimizer.step()
    assert float(rule(Z1[:, 0]).detach()) < 0.9
