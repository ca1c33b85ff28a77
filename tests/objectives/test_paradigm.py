"""Tests of ``UnifiedGradient`` against the losses that its parts reproduce, and of the modified losses."""

import math
from functools import partial

import pytest
import torch

from ssl_vision import objectives as o

N, D = 7, 5
TAU = 0.2


def batch(aligned=0.5, seed=0):
    g = torch.Generator().manual_seed(seed)
    z1 = torch.randn(N, D, generator=g, dtype=torch.float64)
    z2 = aligned * z1 + (1 - aligned) * torch.randn(N, D, generator=g, dtype=torch.float64)
    return z1.requires_grad_(), (3 * z2).requires_grad_()


def units(z1, z2):
    return [z / z.norm(dim=1, keepdim=True) for z in (z1, z2)]


def gradients(loss, z1, z2):
    return torch.cat(torch.autograd.grad(loss, (z1, z2)))


def relative_error(got, want):
    return float((got - want).norm() / want.norm())


ROWS = {
    "InfoNCE": (
        partial(o.InfoNCE, temperature=TAU),
        (lambda: o.SigmoidGate(TAU), lambda: o.SoftmaxOverNegatives(TAU), lambda: 1.0),
    ),
    "ArcCon": (
        partial(o.ArcCon, temperature=TAU, angle=15),
        (lambda: o.SigmoidGate(TAU, 15), lambda: o.SoftmaxOverNegatives(TAU), lambda: o.AngularRatio(15)),
    ),
    "DCL": (
        partial(o.DCL, temperature=TAU),
        (o.OpenGate, lambda: o.SoftmaxOverNegatives(TAU), lambda: 1.0),
    ),
    "DCLPlus": (
        partial(o.DCLPlus, temperature=TAU),
        (lambda: o.StepGate(TAU), lambda: o.SoftmaxOverNegatives(TAU), lambda: 1.0),
    ),
    "MPT": (o.MPT, (lambda: o.HingeGate("product", 0.23), o.HardestNegative, lambda: 1.0)),
    "MET": (
        o.MET,
        (
            lambda: o.HingeGate("euclidean", 0.45),
            lambda: o.HardestNegative("euclidean"),
            lambda: o.SlopeRatio("euclidean"),
        ),
    ),
    "MAT": (
        o.MAT,
        (
            lambda: o.HingeGate("angle", 0.15),
            lambda: o.HardestNegative("angle"),
            lambda: o.SlopeRatio("angle"),
        ),
    ),
}


@pytest.mark.parametrize("aligned", [0.4, 0.6])
@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("name", ROWS)
def test_gate_weight_and_ratio_reproduce_gradient_of_loss(name, pairs, aligned):
    loss, (gate, weight, ratio) = ROWS[name]
    z1, z2 = batch(aligned)
    parts = o.UnifiedGradient(gate=gate(), weight=weight(), ratio=ratio(), pairs=pairs)
    want = gradients(loss(pairs=pairs)(z1, z2), z1, z2)
    assert relative_error(gradients(parts(z1, z2), z1, z2), want) < 1e-10
    share = parts.statistics()["active_share"]
    assert 0.2 < share <= 1 if name in ("InfoNCE", "ArcCon", "DCL") else 0.2 < share < 1


def simulated_loss(z1, z2, pairs, detach, gate, average, ratio):
    """Compute the simulated gradient explicitly: softmax weights without 1/τ, gate on the cosine gap."""
    e, terms, opened = units(z1, z2), [], 0
    for v in (0, 1):
        for i in range(N):
            views = {"both": (v, 1 - v), "cross": (1 - v,), "within": (v,)}[pairs]
            others = [e[w][j] for w in views for j in range(N) if j != i]
            anchor, positive = e[v][i], e[1 - v][i]
            if detach != "nothing":
                others = [k.detach() for k in others]
            if detach == "keys":
                positive = positive.detach()
            s = torch.stack([anchor @ k for k in others])
            weights = torch.softmax(s.detach() / 0.05, 0)
            if (anchor @ positive - s.max()).item() < gate:
                opened += 1
                terms.append(weights @ (s - ratio * (anchor @ positive)))
    total = sum(terms) if terms else 0 * e[0].sum()
    return total / (2 * N if average == "all" else max(opened, 1))


@pytest.mark.parametrize("average", ["all", "open"])
@pytest.mark.parametrize("detach", ["nothing", "negatives", "keys"])
@pytest.mark.parametrize("pairs", ["both", "cross", "within"])
def test_simulated_gradient_matches_loop_reference(pairs, detach, average):
    z1, z2 = batch(0.6)
    objective = o.UnifiedGradient(
        gate=o.HingeGate(margin=0.5), ratio=1.3, pairs=pairs, detach=detach, average=average, scale=0.05
    )
    loss, want = objective(z1, z2), simulated_loss(z1, z2, pairs, detach, 0.5, average, 1.3)
    torch.testing.assert_close(loss, want, rtol=1e-11, atol=1e-12)
    assert relative_error(gradients(loss, z1, z2), gradients(want, z1, z2)) < 1e-10
    assert 0 < objective.statistics()["active_share"] < 1


def test_power_weight_matches_loop_reference():
    z1, z2 = batch()
    u = torch.cat(units(z1, z2)).detach()
    objective = o.UnifiedGradient(
        gate=o.OpenGate(), weight=o.PowerOverNegatives(3.0), pairs="cross", detach="keys"
    )
    got = gradients(objective(z1, z2), z1, z2) * torch.cat([z1, z2]).norm(dim=1, keepdim=True) * 2 * N
    for i in range(2 * N):
        partner = (i + N) % (2 * N)
        keys = [j for j in range(2 * N) if (j < N) != (i < N) and j != partner]
        powers = [max(float(u[i] @ u[j]), 1e-4) ** 3 for j in keys]
        want = sum(p / sum(powers) * (u[j] - u[partner]) for p, j in zip(powers, keys, strict=True))
        torch.testing.assert_close(got[i].detach(), want - (want @ u[i]) * u[i], rtol=1e-9, atol=1e-12)


def released_loss(z1, z2, *, margin, tau, ratio):
    """Compute the simulated gradient as the paper's code does: the mean of matrix rows with an open gate."""
    x, y = units(z1, z2)
    own = torch.eye(len(x), dtype=torch.bool)
    aligned = (x * y).sum(dim=1)
    total = 0
    for anchors, keys in ((x, y.detach()), (y, x.detach())):
        similarity = anchors @ keys.T
        plain = similarity.detach().masked_fill(own, -torch.inf)
        rows = aligned.detach() - plain.amax(dim=1) < margin
        weights = (plain / tau).softmax(dim=1)
        target = torch.where(own, aligned[:, None], similarity) - ratio * aligned[:, None]
        total = total + (weights * target)[rows].mean()
    return total


def test_open_per_view_average_matches_released_code_up_to_scale():
    z1, z2 = batch(0.6, seed=4)
    z2 = (z2 + 0.3 * z2.roll(1, 1)).detach().requires_grad_()
    options = {"gate": o.HingeGate(margin=0.25), "ratio": 1.3, "pairs": "cross", "detach": "negatives"}
    objective = o.UnifiedGradient(**options, average="open_per_view", scale=0.1 / N)
    want = released_loss(z1, z2, margin=0.25, tau=0.05, ratio=1.3)
    loss = objective(z1, z2)
    torch.testing.assert_close(loss, want, rtol=1e-11, atol=1e-12)
    assert relative_error(gradients(loss, z1, z2), gradients(want, z1, z2)) < 1e-10
    pooled = o.UnifiedGradient(**options, average="open", scale=0.1 / N)(z1, z2)
    assert abs(pooled - want) > 1e-3 * abs(want)  # the views have different numbers of open rows


@pytest.mark.parametrize("average", ["all", "open", "open_per_view"])
@pytest.mark.parametrize("gate", [None, o.WithinViewGate()], ids=["hinge", "within view"])
def test_loss_and_gradient_are_zero_if_all_gates_are_closed(gate, average):
    z = torch.eye(6, dtype=torch.float64).requires_grad_()
    objective = o.UnifiedGradient(gate=gate, average=average)
    loss = objective(z, z)
    assert loss == 0
    assert not torch.autograd.grad(loss, z)[0].any()
    assert objective.statistics()["active_share"] == 0


def modified_loss(z1, z2, kind, *, mode, margin, ratio, tau=None):
    """Compute the modified losses as their released code does, including the gates."""
    plain = [x.detach() for x in units(z1, z2)]
    e = units(z1, z2)
    off = ~torch.eye(N, dtype=torch.bool)
    across = plain[0] @ plain[1].T
    if mode == "within_view":
        near = [(x @ x.T).masked_fill(~off, -2).amax(1) for x in plain]
        opened = [1 - s < margin for s in near]
        e = [torch.where(is_open[:, None], x, x.detach()) for x, is_open in zip(e, opened, strict=True)]
        gates = [torch.ones(N), torch.ones(N)]
    else:
        near = [s.masked_fill(~off, -2).amax(1) for s in (across, across.T)]
        gates = [(across.diagonal() - s < margin).double() for s in near]
    aligned = (e[0] * e[1]).sum(1)
    if kind == "MHS":
        apart = [torch.cdist(plain[v], plain[1 - v]).masked_fill(~off, 9) for v in (0, 1)]
        loss = 0
        for v in (0, 1):
            nearest = plain[1 - v][apart[v].argmin(1)]
            separation = (e[v] - nearest).norm(dim=1)
            loss = loss - (gates[v] * separation).mean()
            loss = loss + (gates[v] * ratio / 2 / separation.detach() * (2 - 2 * aligned)).mean()
        return loss
    loss = 0
    for v in (0, 1):
        source = plain[1 - v] if kind == "BarlowTwins" else plain[v]
        weight = torch.exp(source @ source.T / tau) * off
        weight = weight / weight.sum()
        if kind == "MHE" and mode == "within_view":
            upper = torch.triu(torch.ones(N, N, dtype=torch.bool), 1)
            loss = loss + torch.logsumexp((e[v] @ e[v].T / tau)[upper], 0)
            loss = loss + (ratio / 2 * 2 * weight.sum(1) / tau * (2 - 2 * aligned)).sum()
            continue
        if kind == "MHE":
            weight = weight * 2 / tau
        for i in range(N):
            push = sum(weight[i, j] * (e[v][i] @ plain[v][j]) for j in range(N) if j != i)
            loss = loss + gates[v][i] * (push - ratio * weight[i].sum() * aligned[i])
    return loss


MODIFIED = {
    "MHE": (o.ModifiedMHE, {"ratio": 1.75, "tau": 0.05}),
    "MHS": (o.ModifiedMHS, {"ratio": 1.75}),
    "BarlowTwins": (o.ModifiedBarlowTwins, {"ratio": 1.5, "tau": 0.05}),
    "VICReg": (o.ModifiedVICReg, {"ratio": 1.5, "tau": 0.05}),
}


@pytest.mark.parametrize("mode", ["cross_view", "within_view"])
@pytest.mark.parametrize("kind", MODIFIED)
def test_modified_loss_gradients_match_loop_reference(kind, mode):
    make, options = MODIFIED[kind]
    z1, z2 = batch(0.7, seed=3)
    objective = make(gate_mode=mode)
    want = modified_loss(z1, z2, kind, mode=mode, margin=0.3, **options)
    assert relative_error(gradients(objective(z1, z2), z1, z2), gradients(want, z1, z2)) < 1e-10
    assert 0 < objective.statistics()["active_share"] < 1


@pytest.mark.parametrize("kind", MODIFIED)
def test_wide_margin_opens_every_gate_in_both_modes(kind):
    make, options = MODIFIED[kind]
    z1, z2 = batch(0.7, seed=3)
    for mode in ("cross_view", "within_view"):
        got = gradients(make(gate_mode=mode, margin=2.1)(z1, z2), z1, z2)
        want = modified_loss(z1, z2, kind, mode="within_view", margin=2.1, **options)
        assert relative_error(got, gradients(want, z1, z2)) < 1e-10


def test_only_within_view_gate_stops_gradient_of_lone_embeddings():
    z1, z2 = batch(0.7, seed=3)
    e = units(z1.detach(), z2.detach())[0]
    lone = (e @ e.T - 2 * torch.eye(N, dtype=e.dtype)).amax(1) <= 0.7
    within_view_gradient = torch.autograd.grad(o.ModifiedVICReg(gate_mode="within_view")(z1, z2), z1)[0]
    assert torch.equal(~within_view_gradient.any(dim=1), lone)
    cross_view_gradient = torch.autograd.grad(o.ModifiedVICReg()(z1, z2), z1)[0]
    assert cross_view_gradient.any(dim=1).sum() > within_view_gradient.any(dim=1).sum()


def test_effective_ratio_is_twice_r():
    """With detached negatives, the gradient of e_i is Σ_j W_ij e'_j − 2r Σ_j W_ij e'_i."""
    z1, z2 = (z.detach() for z in batch())
    e, p = units(z1, z2)
    a, b = e.clone().requires_grad_(), p.clone().requires_grad_()
    objective = o.UnifiedGradient(gate=o.OpenGate(), ratio=0.5, pairs="cross", detach="negatives")
    got = torch.autograd.grad(objective(a, b), a)[0]
    weight = (e @ p.T).fill_diagonal_(-torch.inf).div(0.05).softmax(1) / 0.05 / (2 * N)
    want = weight @ p - 2 * 0.5 * weight.sum(1, keepdim=True) * p
    torch.testing.assert_close(got, want - (want * e).sum(1, keepdim=True) * e)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: o.UnifiedGradient(pairs="all"), "'within', 'both', 'cross', got 'all'"),
        (lambda: o.UnifiedGradient(detach="all"), "detach must be .* got 'all'"),
        (lambda: o.UnifiedGradient(average="none"), "average must be .* got 'none'"),
        (lambda: o.UnifiedGradient(scale=0.0), "scale must be above 0"),
        (lambda: o.UnifiedGradient(ratio=-1.0), "value must be at least 0, got -1.0"),
        (lambda: o.HingeGate(margin=0.0), "margin must be above 0"),
        (lambda: o.HingeGate("cosine"), "metric must be one of .*'cosine'"),
        (lambda: o.HingeGate(pairs="all"), "'within', 'both', 'cross'"),
        (lambda: o.WithinViewGate(-1.0), "margin must be above 0"),
        (lambda: o.SigmoidGate(0.0), "temperature must be above 0"),
        (lambda: o.SigmoidGate(angle=-1.0), "angle must be at least 0 and at most 90"),
        (lambda: o.StepGate(math.inf), "temperature must be above 0"),
        (lambda: o.SoftmaxOverNegatives(0.0), "temperature must be above 0"),
        (lambda: o.SoftmaxOverPairs(0.0), "temperature must be above 0"),
        (lambda: o.PowerOverNegatives(0.0), "power must be above 0"),
        (lambda: o.AngularRatio(100), "angle must be at least 0 and at most 90"),
        (lambda: o.ModifiedMHE(gate_mode="both"), "gate_mode must be .* got 'both'"),
    ],
)
def test_invalid_parts_raise_value_error(make, words):
    with pytest.raises(ValueError, match=words):
        make()
