"""Tests that gradient terms match the papers' closed forms and add up to the gradient."""

import math

import pytest
import torch
import torch.nn.functional as F

from ssl_vision.metrics import gradient_statistics, gradient_terms, pair_coefficients
from ssl_vision.objectives import (
    DCL,
    MAT,
    MET,
    MHE,
    MHS,
    MPT,
    AlignmentUniformity,
    ArcCon,
    BarlowTwins,
    DCLPlus,
    InfoNCE,
    MACLc,
    UnifiedGradient,
    VICReg,
)

TAU, TURN = 0.2, math.radians(10)
COUNT, DIM = 9, 5


def views(count=COUNT, dim=DIM, *, seed=0, noise=0.5, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    z1 = torch.randn(count, dim, generator=g, dtype=dtype)
    return z1, z1 + noise * torch.randn(count, dim, generator=g, dtype=dtype)


def anchor_objective(loss):
    """Return the mean loss over 2N anchors. Anchors of view 2 have no loss; the keys b have no gradient."""

    def mean(z1, z2):
        a, b = F.normalize(z1, dim=1), F.normalize(z2.detach(), dim=1)
        own = torch.eye(len(a), dtype=torch.bool)
        s = a @ b.T
        return loss(s[own], s[~own].view(len(a), -1)).sum() / (2 * len(a))

    return mean


def margin(positive, negatives):
    return torch.logsumexp(negatives / TAU, dim=1) - positive / TAU


def chord(s):
    return (2 - 2 * s).sqrt()


def hinge(distance, m):
    return lambda p, n: F.relu(distance(p) - distance(n.amax(dim=1)) + m)


LOSSES = {
    "InfoNCE": lambda p, n: F.softplus(margin(p, n)),
    "DCL": margin,
    "DCLPlus": lambda p, n: F.relu(margin(p, n)),
    "MPT": hinge(lambda s: -s, 0.3),
    "MET": hinge(chord, 0.4),
    "MAT": hinge(torch.arccos, 0.2 * math.pi),
    "ArcCon": lambda p, n: F.softplus(margin(torch.cos(p.arccos() + TURN), n)),
}


def closed_form(name, p, n):
    """Return gate, weights and ratio of an anchor as given in the table of the unified-gradient paper."""
    negatives = [math.exp(s / TAU) for s in n]
    softmax = [e / sum(negatives) / TAU for e in negatives]
    hardest = [float(s == max(n)) for s in n]
    top, theta, far = max(n), math.acos(p), math.acos(max(n))
    if name in ("InfoNCE", "ArcCon"):
        turn = TURN if name == "ArcCon" else 0
        positive = math.exp(math.cos(theta + turn) / TAU)
        gate = sum(negatives) / (positive + sum(negatives))
        return gate, softmax, math.sin(theta + turn) / math.sin(theta)
    if name in ("DCL", "DCLPlus"):
        return float(name == "DCL" or sum(negatives) > math.exp(p / TAU)), softmax, 1
    if name == "MPT":
        return float(p - top < 0.3), hardest, 1
    if name == "MET":
        near, away = math.sqrt(2 - 2 * p), math.sqrt(2 - 2 * top)
        return float(away - near < 0.4), [h / away for h in hardest], away / near
    return (
        float(far - theta < 0.2 * math.pi),
        [h / math.sin(far) for h in hardest],
        math.sin(far) / math.sin(theta),
    )


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_terms_match_closed_forms(name):
    z1, z2 = views()
    a, b = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
    terms = gradient_terms(anchor_objective(LOSSES[name]), z1, z2)
    c = pair_coefficients(anchor_objective(LOSSES[name]), torch.cat([a, b]))
    assert not c[COUNT:].any()
    gates = []
    for i in range(COUNT):
        others = [j for j in range(COUNT) if j != i]
        gate, weights, ratio = closed_form(name, float(a[i] @ b[i]), [float(a[i] @ b[j]) for j in others])
        gates.append(gate)
        assert float(terms.push[i]) == pytest.approx(gate * sum(weights), abs=1e-6)
        assert float(terms.pull[i]) == pytest.approx(gate * ratio * sum(weights), abs=1e-6)
        assert c[i, [COUNT + j for j in others]].tolist() == pytest.approx(
            [gate * w for w in weights], abs=1e-6
        )
        step = sum(w * (b[j] - (a[i] @ b[j]) * a[i]) for w, j in zip(weights, others, strict=True))
        toward = b[i] - (a[i] @ b[i]) * a[i]
        assert float(terms.uniformity_norm[i]) == pytest.approx(gate * float(step.norm()), abs=1e-6)
        pull = gate * ratio * sum(weights)
        assert float(terms.alignment_norm[i]) == pytest.approx(pull * float(toward.norm()), abs=1e-6)
        received = gate * step - pull * toward
        assert float(terms.norm[i]) == pytest.approx(float(received.norm()), abs=1e-6)
        leads = -float(received @ toward / toward.norm())
        assert float(terms.toward_positive[i]) == pytest.approx(leads, abs=1e-6)
        if gate:
            number = sum(weights) ** 2 / sum(w * w for w in weights)
            assert float(terms.effective_negatives[i]) == pytest.approx(number, abs=1e-6)
            h = max(range(len(others)), key=lambda k: a[i] @ b[others[k]])
            hard = weights[h] * (b[others[h]] - (a[i] @ b[others[h]]) * a[i])
            share = float(hard @ step / step.square().sum())
            assert float(terms.hardest_share[i]) == pytest.approx(share, abs=1e-6)
    if name in ("MPT", "MET", "MAT", "DCLPlus"):
        assert 0 < sum(gates) < COUNT
    assert (terms.norm[:COUNT] == 0).tolist() == [gate == 0 for gate in gates]


COSINE_OBJECTIVES = [
    InfoNCE(), InfoNCE(pairs="cross"), DCL(), DCLPlus(temperature=0.5), MACLc(), MPT(), MET(), MAT(),
    ArcCon(), AlignmentUniformity(), MHE(), MHS(), UnifiedGradient(detach="negatives"),
]  # fmt: skip


@pytest.mark.parametrize("objective", COSINE_OBJECTIVES, ids=lambda objective: type(objective).__name__)
@pytest.mark.parametrize("count", [COUNT, 80])
def test_pair_coefficients_add_up_to_gradient(objective, count):
    u = F.normalize(torch.cat(views(count)), dim=1).requires_grad_()
    (gradient,) = torch.autograd.grad(objective(*u.chunk(2)), u)
    c, u = pair_coefficients(objective, u.detach()), u.detach()
    total = c @ u
    expected = gradient * len(u)
    assert torch.allclose(total - (total * u).sum(1, keepdim=True) * u, expected, rtol=0, atol=1e-9)
    assert c.any()


def test_small_coefficients_keep_precision_in_float32():
    z1, z2 = views(noise=0.1)
    u = F.normalize(torch.cat([z1, z2]), dim=1)
    exact, single = (pair_coefficients(InfoNCE(temperature=0.05), x) for x in (u, u.float()))
    assert exact[exact > 0].min() < 1e-12
    assert torch.allclose(single.double(), exact, rtol=1e-4, atol=0)


def test_pair_coefficient_sums_both_anchor_roles():
    u = F.normalize(torch.cat(views()), dim=1)
    c = pair_coefficients(InfoNCE(temperature=TAU), u)
    s, n = u @ u.T, len(u)
    partner = torch.arange(n).roll(COUNT)
    other = ~(torch.eye(n, dtype=torch.bool) | torch.eye(n, dtype=torch.bool)[partner])
    weight = (s / TAU).exp() * other
    gate = weight.sum(1) / (weight.sum(1) + (s[range(n), partner] / TAU).exp())
    anchor = gate[:, None] * weight / weight.sum(1, keepdim=True) / TAU
    anchor[range(n), partner] = -gate / TAU
    assert torch.allclose(c, anchor + anchor.T, atol=1e-10)


def test_batch_ratio_is_gate_weighted_mean_of_anchor_ratios():
    z1, z2 = views()
    assert float(gradient_statistics(InfoNCE(), z1, z2).ratio) == pytest.approx(1)
    u = F.normalize(torch.cat([z1, z2]), dim=1)
    angle = (u * u.roll(COUNT, 0)).sum(1).arccos()
    objective = ArcCon(temperature=TAU)
    gate = torch.cat([*objective_gates(objective, z1, z2)])
    expected = (gate * (angle + TURN).sin() / angle.sin()).sum() / gate.sum()
    assert float(gradient_statistics(objective, z1, z2).ratio) == pytest.approx(float(expected))


def objective_gates(objective, z1, z2):
    objective(z1, z2)
    return [objective._stats[2].sigmoid()]


@pytest.mark.parametrize("objective", [BarlowTwins(), VICReg()])
def test_non_cosine_objectives_have_gradient_norm_but_no_pair_terms(objective):
    z = torch.cat(views(30)).requires_grad_()
    terms = gradient_terms(objective, *z.chunk(2))
    (gradient,) = torch.autograd.grad(objective(*z.chunk(2)), z)
    u = F.normalize(z.detach(), dim=1)
    g = gradient * len(z) * z.detach().norm(dim=1, keepdim=True)
    g -= (g * u).sum(1, keepdim=True) * u
    assert torch.allclose(terms.norm, g.norm(dim=1))
    assert terms.pull.isnan().all()
    assert terms.hardest_share.isnan().all()
    statistics = gradient_statistics(objective, *z.chunk(2))
    assert statistics.ratio.isnan()
    assert statistics.norm_quotient.isnan()
    assert float(statistics.norm) == pytest.approx(float(g.norm(dim=1).mean()))


@pytest.mark.parametrize("ratio", [0.3, 0.7, 1.0, 1.6])
def test_lemma_share_matches_paper_for_small_step(ratio):
    """Check the lemma's two bounds at a step of 1e-6.

    Each anchor has one negative, and its positive pulls ``ratio`` times as hard as the negative pushes.
    """
    z1, z2 = views(40, 3, noise=1.0)
    a, b = F.normalize(z1, dim=1), F.normalize(z2, dim=1)

    def loss(z1, z2):
        a, b = F.normalize(z1, dim=1), F.normalize(z2.detach(), dim=1)
        return ((a * b.roll(1, 0)).sum(1) - ratio * (a * b).sum(1)).sum() / (2 * len(a))

    within_count = 0
    for h, p, n in zip(a, b, b.roll(1, 0), strict=True):
        alpha, beta = torch.arccos(h @ p), torch.arccos(h @ n)
        toward, away = p - (h @ p) * h, n - (h @ n) * h
        theta = torch.arccos(F.normalize(toward, dim=0) @ F.normalize(away, dim=0))
        middle = beta.sin() / alpha.sin() * theta.cos()
        width = (1e12 - (beta.sin() / alpha.sin() * theta.sin()) ** 2).sqrt()
        within = 1e6 + middle - width < ratio < 1e6 + middle + width
        moved = h + 1e-6 * (ratio * toward - away)
        assert within == ((moved - p).norm() < (h - p).norm())
        within_count += bool(within)
    statistics = gradient_statistics(loss, z1, z2)
    assert float(statistics.lemma_share) == pytest.approx(within_count / 40)
    assert float(statistics.zero_share) == 0.5
    assert 0 < within_count < 40


def test_angle_gap_is_difference_of_mean_angles():
    z1, z2 = views()
    u = F.normalize(torch.cat([z1, z2]), dim=1)
    positive = [math.acos(float(u[i] @ u[i + COUNT])) for i in range(COUNT)]
    negative = [
        math.acos(float(u[i] @ u[j])) for i in range(len(u)) for j in range(len(u)) if i % COUNT != j % COUNT
    ]
    expected = sum(negative) / len(negative) - sum(positive) / COUNT
    assert float(gradient_statistics(InfoNCE(), z1, z2).angle_gap) == pytest.approx(expected)


def test_gradient_is_zero_if_all_anchors_satisfy_margin():
    u = torch.eye(6, dtype=torch.float64)
    statistics = gradient_statistics(MPT(), u, u)
    assert float(statistics.zero_share) == 1
    assert float(statistics.norm) == 0
    assert statistics.lemma_share.isnan()
    assert statistics.hardest_share.isnan()


def test_gradient_statistics_do_not_set_embedding_gradients():
    z1, z2 = (z.requires_grad_() for z in views())
    gradient_statistics(InfoNCE(), z1, z2)
    assert z1.grad is None
    assert z2.grad is None
