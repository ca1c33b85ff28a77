"""Tests of contrastive values and gradients against a double loop over anchors and keys in float64."""

import math

import pytest
import torch

from ssl_vision import objectives as o

N, D = 7, 5


def cosine(a, b):
    return (a @ b) / (a.norm() * b.norm())


def loop_margins(z1, z2, taus, pairs):
    """Compute every margin d_i from the sum over the negatives of its anchor."""
    views, margins, positives = (z1, z2), [], []
    for v in (0, 1):
        for i in range(len(z1)):
            anchor, key = views[v][i], views[1 - v][i]
            negatives = [views[1 - v][j] for j in range(len(z1)) if j != i]
            if pairs == "both":
                negatives += [views[v][j] for j in range(len(z1)) if j != i]
            total = sum(torch.exp(cosine(anchor, n) / taus[i]) for n in negatives)
            margins.append(torch.log(total) - cosine(anchor, key) / taus[i])
            positives.append(cosine(anchor, key))
    return torch.stack(margins), torch.stack(positives)


def constant(tau):
    return lambda s: [tau] * N


def exponential(base, alpha):
    return lambda s: [base * alpha ** float(s.mean())] * N


def linear(base, beta, threshold=0.0):
    return lambda s: [base * (1 + beta * (float(s.mean()) - threshold))] * N


def infonce(d, s, tau, at):
    return torch.log(1 + torch.exp(d))


def dcl(d, s, tau, at):
    return d


def macl(d, s, tau, at):
    return infonce(d, s, tau, at) / torch.sigmoid(d).detach()


def macl_c(d, s, tau, at):
    return (2 - s).detach() * macl(d, s, tau, at)


def dual(outer):
    return lambda d, s, tau, at: at(outer).sigmoid().detach() * macl(d, s, tau, at)


def dclw(sigma):
    def loss(d, s, tau, at):
        w = 2 - N * torch.softmax(s[:N].detach() / sigma, 0)
        return d + s / tau - w.repeat(2) * s / tau

    return loss


def per_anchor(s):
    return [0.1 * 2.0 ** float(x) for x in s]


WEIGHTS = {
    "Softmax": (o.Softmax, infonce),
    "Decoupled": (o.Decoupled, dcl),
    "Clipped": (o.Clipped, lambda d, s, t, at: torch.clamp(d, min=0)),
    "Flat": (o.Flat, lambda d, s, t, at: torch.exp(d - d.detach())),
    "Reweighted": (o.Reweighted, macl),
    "ReweightedByAlignment": (o.ReweightedByAlignment, macl_c),
    "AtTemperature": (lambda: o.AtTemperature(0.3), dual(0.3)),
    "VonMisesFisher": (lambda: o.VonMisesFisher(0.4), dclw(0.4)),
}
RULES = {
    "constant": (lambda: o.Constant(0.2), constant(0.2)),
    "alignment_exponential": (lambda: o.AlignmentExponential(0.1, 2.0), exponential(0.1, 2.0)),
    "alignment_linear": (lambda: o.AlignmentLinear(0.1, 0.5), linear(0.1, 0.5)),
    "alignment_icml": (lambda: o.AlignmentLinear(0.1, 0.5, 0.3), linear(0.1, 0.5, 0.3)),
    "linear_in_epoch": (lambda: o.LinearInEpoch(0.07, 0.01), constant(0.07 + 0.01 * 3)),
    "cosine_in_epoch": (
        lambda: o.CosineInEpoch(0.1, 0.3, epochs=6),
        constant(0.3 - 0.2 * (1 + math.cos(math.pi / 2)) / 2),
    ),
    "per_anchor": (lambda: o.PerAnchor(o.AlignmentExponential(0.1, 2.0)), per_anchor),
    # the parameter is float32, so the loop must take its rounded value
    "learnable": (lambda: o.Learnable(0.15), constant(o.Learnable(0.15)(torch.ones(1)).item())),
}


def batch(aligned=0.5, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    z1 = torch.randn(N, D, generator=g, dtype=dtype)
    z2 = aligned * z1 + (1 - aligned) * torch.randn(N, D, generator=g, dtype=dtype)
    return z1.requires_grad_(), (3 * z2).requires_grad_()


def assert_matches(objective, taus_of, loss_of, pairs):
    z1, z2 = batch()
    loss = objective(z1, z2)
    gradients = torch.autograd.grad(loss, (z1, z2))
    with torch.no_grad():
        taus = taus_of(torch.stack([cosine(a, b) for a, b in zip(z1, z2, strict=True)]))
    d, s = loop_margins(z1, z2, taus, pairs)

    def margins_at(tau):
        return loop_margins(z1, z2, [tau] * N, pairs)[0]

    expected = loss_of(d, s, torch.tensor(taus * 2, dtype=z1.dtype), margins_at).mean()
    expected_gradients = torch.autograd.grad(expected, (z1, z2))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_any_weight_with_any_temperature_rule_matches_loop_reference(weight, rule, pairs):
    make_weight, loss_of = WEIGHTS[weight]
    make_rule, taus_of = RULES[rule]
    objective = o.Contrastive(temperature=make_rule(), margin_loss=make_weight(), pairs=pairs)
    objective.set_epoch(3)
    assert_matches(objective, taus_of, loss_of, pairs)


def test_every_weight_and_rule_is_tested():
    own = {cls for cls in o.MarginLoss.__subclasses__() if cls.__module__.startswith("ssl_vision.")}
    assert {type(make()) for make, _ in WEIGHTS.values()} == own
    rules = {type(make()) for make, _ in RULES.values()}
    assert rules == {
        o.Constant,
        o.LinearInEpoch,
        o.CosineInEpoch,
        o.AlignmentExponential,
        o.AlignmentLinear,
        o.PerAnchor,
        o.Learnable,
    }
