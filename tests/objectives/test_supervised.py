"""SupCon against its definition, a peer's, and the self-supervised objective that it becomes."""

import importlib

import pytest
import torch
from torch.nn.functional import normalize

from ssl_vision import objectives as o

margin_module = importlib.import_module("ssl_vision.objectives.logit_margin")

LABELS = torch.tensor([4, 0, 4, -1, 7, 4, 0, -1])


def views(n=8, noise=0.5, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    z1 = torch.randn(n, 6, generator=g, dtype=dtype)
    z2 = z1 + noise * torch.randn(n, 6, generator=g, dtype=dtype)
    return z1.requires_grad_(), (2 * z2).requires_grad_()


def loop(z1, z2, labels, tau, pairs, decoupled=False):
    """Khosla et al., Eq. 2, written out; ``decoupled`` leaves the positives out of the denominator."""
    u, n = normalize(torch.cat([z1, z2])), len(z1)
    losses = []
    for i in range(2 * n):
        others = [a for a in range(2 * n) if a != i and (pairs == "both" or (a < n) != (i < n))]

        def alike(a, i=i):
            return a % n == i % n or (labels[a % n] == labels[i % n] and labels[i % n] >= 0)

        denominator = [a for a in others if not (decoupled and alike(a))]
        total = torch.logsumexp(torch.stack([u[i] @ u[a] / tau for a in denominator]), 0)
        terms = [total - u[i] @ u[p] / tau for p in others if alike(p)]
        losses.append(sum(terms) / len(terms))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("dense", [0, 10**9], ids=["tiled", "dense"])
@pytest.mark.parametrize("tau", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_value_and_gradient_are_those_of_the_definition(monkeypatch, decoupled, pairs, tau, dense):
    monkeypatch.setattr(margin_module, "DENSE", dense)
    z1, z2 = views()
    objective = o.SupCon(temperature=tau, pairs=pairs, weight=o.Decoupled() if decoupled else None)
    loss, want = objective(z1, z2, LABELS), loop(z1, z2, LABELS, tau, pairs, decoupled)
    torch.testing.assert_close(loss, want, rtol=1e-11, atol=1e-11)
    ours, exact = (torch.autograd.grad(value, (z1, z2)) for value in (loss, want))
    for got, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_pytorch_metric_learning_agrees():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    z1, z2 = views()
    labels = LABELS.abs()
    theirs = losses.SupConLoss(temperature=0.1)(torch.cat([z1, z2]), labels.repeat(2))
    torch.testing.assert_close(o.SupCon()(z1, z2, labels), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("labels", [torch.arange(8), torch.full((8,), -1)], ids=["distinct", "none"])
def test_with_no_two_labels_alike_it_is_infonce(labels, pairs):
    z1, z2 = views()
    ours, infonce = o.SupCon(pairs=pairs)(z1, z2, labels), o.InfoNCE(pairs=pairs)(z1, z2)
    torch.testing.assert_close(ours, infonce, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(ours, z1)[0], torch.autograd.grad(infonce, z1)[0])


@pytest.mark.parametrize("noise", [0.03, 3.0])
@pytest.mark.parametrize(("tau", "bound"), [(1.0, 5e-6), (0.1, 5e-6), (0.03, 5e-6), (0.01, 5e-5)])
@pytest.mark.parametrize("n", [40, 300])
def test_float32_gradient_equals_float64(n, tau, bound, noise):
    z1, z2 = views(n, noise)
    labels = torch.arange(n) % 7

    def gradient(dtype):
        a, b = (z.detach().to(dtype).requires_grad_() for z in (z1, z2))
        return torch.cat(torch.autograd.grad(o.SupCon(temperature=tau)(a, b, labels), (a, b))).double()

    exact, single = gradient(torch.float64), gradient(torch.float32)
    assert (single - exact).norm() / exact.norm() < bound


@pytest.mark.parametrize("n", [4, 150])
def test_a_batch_of_one_class_has_no_negatives_and_stays_finite(n):
    z1, z2 = views(n, dtype=torch.float32)
    loss = o.SupCon()(z1, z2, torch.zeros(n, dtype=torch.long))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z1.grad).all()
    want = loop(z1.detach().double(), z2.detach().double(), torch.zeros(n), 0.1, "both")
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=0)


def test_rules_and_statistics_read_the_mean_similarity_of_the_positives():
    z1, z2 = views()
    objective = o.SupCon(temperature=o.AlignmentExponential(0.1, 2.0))
    objective(z1, z2, LABELS)
    u = normalize(torch.cat([z1, z2]))
    twice = torch.where(LABELS < 0, -1 - torch.arange(8), LABELS).repeat(2)
    alike = (twice[:, None] == twice) & ~torch.eye(16, dtype=torch.bool)
    mean = ((u @ u.T * alike).sum(1) / alike.sum(1)).mean().detach()
    seen = objective.statistics()
    torch.testing.assert_close(seen["alignment"], mean)
    torch.testing.assert_close(seen["temperature"], 0.1 * 2**mean)


@pytest.mark.parametrize(
    ("labels", "words"),
    [(None, "got none"), (LABELS[:3], r"got torch.int64 of shape \(3,\)"), (LABELS.float(), "torch.float32")],
)
def test_labels_that_do_not_fit_are_refused(labels, words):
    with pytest.raises(ValueError, match=r"labels must be integers of shape \(8,\).*" + words):
        o.SupCon()(*views(), labels)
