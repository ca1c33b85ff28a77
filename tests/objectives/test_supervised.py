"""Tests of SupCon against its definition, pytorch-metric-learning, and InfoNCE as a special case."""

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


def loop_loss(z1, z2, labels, tau, pairs, decoupled=False):
    """Compute Eq. 2 of Khosla et al. explicitly; ``decoupled`` omits the positives from the denominator."""
    u, n = normalize(torch.cat([z1, z2])), len(z1)
    losses = []
    for i in range(2 * n):
        others = [a for a in range(2 * n) if a != i and (pairs == "both" or (a < n) != (i < n))]

        def is_positive(a, i=i):
            return a % n == i % n or (labels[a % n] == labels[i % n] and labels[i % n] >= 0)

        denominator = [a for a in others if not (decoupled and is_positive(a))]
        total = torch.logsumexp(torch.stack([u[i] @ u[a] / tau for a in denominator]), 0)
        terms = [total - u[i] @ u[p] / tau for p in others if is_positive(p)]
        losses.append(sum(terms) / len(terms))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("dense", [0, 10**9], ids=["tiled", "dense"])
@pytest.mark.parametrize("tau", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_supcon_value_and_gradient_match_definition(monkeypatch, decoupled, pairs, tau, dense):
    monkeypatch.setattr(margin_module, "DENSE", dense)
    z1, z2 = views()
    objective = o.SupCon(temperature=tau, pairs=pairs, margin_loss=o.Decoupled() if decoupled else None)
    loss, want = objective(z1, z2, LABELS), loop_loss(z1, z2, LABELS, tau, pairs, decoupled)
    torch.testing.assert_close(loss, want, rtol=1e-11, atol=1e-11)
    gradients, expected_gradients = (torch.autograd.grad(value, (z1, z2)) for value in (loss, want))
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


def test_supcon_matches_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    z1, z2 = views()
    labels = LABELS.abs()
    reference = losses.SupConLoss(temperature=0.1)(torch.cat([z1, z2]), labels.repeat(2))
    torch.testing.assert_close(o.SupCon()(z1, z2, labels), reference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("labels", [torch.arange(8), torch.full((8,), -1)], ids=["distinct", "none"])
def test_supcon_without_shared_labels_equals_infonce(labels, pairs):
    z1, z2 = views()
    supcon, infonce = o.SupCon(pairs=pairs)(z1, z2, labels), o.InfoNCE(pairs=pairs)(z1, z2)
    torch.testing.assert_close(supcon, infonce, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(supcon, z1)[0], torch.autograd.grad(infonce, z1)[0])


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
def test_single_class_batch_without_negatives_is_finite_and_exact(n):
    z1, z2 = views(n, dtype=torch.float32)
    loss = o.SupCon()(z1, z2, torch.zeros(n, dtype=torch.long))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z1.grad).all()
    want = loop_loss(z1.detach().double(), z2.detach().double(), torch.zeros(n), 0.1, "both")
    torch.testing.assert_close(loss.double(), want, rtol=1e-5, atol=0)


@pytest.mark.parametrize("margin_loss", [o.Decoupled(), o.Reweighted()])
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_anchors_without_negatives_add_nothing_to_margin_loss(margin_loss, pairs):
    z1, z2 = views(6)
    labels = torch.zeros(6, dtype=torch.long)
    losses = [o.SupCon(margin_loss=each, pairs=pairs)(z1, z2, labels) for each in (margin_loss, o.Softmax())]
    torch.testing.assert_close(losses[0], losses[1])
    actual, expected = (torch.autograd.grad(loss, (z1, z2)) for loss in losses)
    torch.testing.assert_close(actual, expected)


def test_temperature_rule_and_statistics_use_mean_positive_similarity():
    z1, z2 = views()
    objective = o.SupCon(temperature=o.AlignmentExponential(0.1, 2.0))
    objective(z1, z2, LABELS)
    u = normalize(torch.cat([z1, z2]))
    row_labels = torch.where(LABELS < 0, -1 - torch.arange(8), LABELS).repeat(2)
    is_positive = (row_labels[:, None] == row_labels) & ~torch.eye(16, dtype=torch.bool)
    mean = ((u @ u.T * is_positive).sum(1) / is_positive.sum(1)).mean().detach()
    stats = objective.statistics()
    torch.testing.assert_close(stats["alignment"], mean)
    torch.testing.assert_close(stats["temperature"], 0.1 * 2**mean)


@pytest.mark.parametrize(
    ("labels", "words"),
    [(None, "got none"), (LABELS[:3], r"got torch.int64 of shape \(3,\)"), (LABELS.float(), "torch.float32")],
)
def test_invalid_labels_raise_value_error(labels, words):
    with pytest.raises(ValueError, match=r"labels must be integers of shape \(8,\).*" + words):
        o.SupCon()(*views(), labels)
