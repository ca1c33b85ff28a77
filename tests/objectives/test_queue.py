"""Tests of objectives with a queue of negatives: values, gradients and invalid combinations."""

import pytest
import torch
import torch.nn.functional as F
from contrastive_classes import PRESETS

from ssl_vision import objectives as o
from ssl_vision.methods import SimCLR
from ssl_vision.objectives import queue
from ssl_vision.objectives.queue import queue_logit_margin

QUEUED = [*PRESETS, o.ArcCon]


@pytest.fixture(params=[3, 4096], ids=["several tiles", "one tile"])
def tile(request, monkeypatch):
    monkeypatch.setattr(queue, "_TILE", request.param)


def embeddings(n=5, k=11, dim=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    z1, z2, negatives = (torch.randn(rows, dim, generator=generator, dtype=dtype) for rows in (n, n, k))
    return z1.requires_grad_(), (z1.detach() + 0.5 * z2).requires_grad_(), negatives.requires_grad_()


def direct_margin(z1, z2, negatives, tau):
    """Compute the logit margins from one matrix, differentiable by autograd."""
    u1, u2, keys = (F.normalize(z, dim=1) for z in (z1, z2.detach(), negatives.detach()))
    return torch.logsumexp(u1 @ keys.T / tau, dim=1) - (u1 * u2).sum(dim=1) / tau


@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
@pytest.mark.usefixtures("tile")
def test_queue_infonce_equals_moco_cross_entropy(tau):
    z1, z2, negatives = embeddings()
    loss = o.InfoNCE(temperature=tau, pairs="queue")(z1, z2, negatives=negatives)
    u1, u2, keys = (F.normalize(z.detach(), dim=1) for z in (z1, z2, negatives))
    u1.requires_grad_()
    logits = torch.cat([(u1 * u2).sum(dim=1, keepdim=True), u1 @ keys.T], dim=1) / tau
    expected = F.cross_entropy(logits, torch.zeros(len(u1), dtype=torch.long))
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, z1, retain_graph=True)
    reference = F.cross_entropy(
        torch.cat([(F.normalize(z1, dim=1) * u2).sum(1, keepdim=True), F.normalize(z1, dim=1) @ keys.T], 1)
        / tau,
        torch.zeros(len(u1), dtype=torch.long),
    )
    torch.testing.assert_close(gradient, torch.autograd.grad(reference, z1)[0])


def test_only_anchors_receive_a_gradient():
    z1, z2, negatives = embeddings()
    o.MACLc(pairs="queue")(z1, z2, negatives=negatives).backward()
    assert z1.grad.abs().sum() > 0
    assert z2.grad is None
    assert negatives.grad is None


@pytest.mark.usefixtures("tile")
def test_queue_margin_passes_gradcheck():
    z1, z2, negatives = embeddings(n=3, k=7)
    u, keys = F.normalize(z1.detach(), dim=1).requires_grad_(), F.normalize(negatives.detach(), dim=1)
    shift = (u.detach() * F.normalize(z2.detach(), dim=1)).sum(dim=1).requires_grad_()
    tau = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda u, shift, tau: queue_logit_margin(u, shift, tau, keys), (u, shift, tau)
    )


@pytest.mark.parametrize("cls", QUEUED, ids=lambda c: c.__name__)
def test_queue_margins_equal_cross_margins_for_same_negatives(cls):
    """With two images, the negative of each anchor is the second view of the other image."""
    z1, z2, _ = embeddings(n=2)
    cross, with_queue = (cls(pairs=pairs, temperature=0.3) for pairs in ("cross", "queue"))
    cross(z1, z2)
    _, tau, d = cross._stats
    for i in range(2):
        repeated = [i, i]
        assert with_queue(z1[repeated], z2[repeated], negatives=z2[1 - i : 2 - i]).isfinite()
        _, queue_tau, queue_d = with_queue._stats
        # The temperature may depend on the batch; with one negative, d is proportional to 1/τ.
        torch.testing.assert_close(queue_d * queue_tau, (d * tau)[repeated])


def test_queue_infonce_is_computed_in_float32_under_autocast():
    z1, z2, negatives = embeddings(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = o.InfoNCE(pairs="queue")(z1, z2, negatives=negatives)
        (gradient,) = torch.autograd.grad(loss, z1)
    expected = o.InfoNCE(pairs="queue")(z1, z2, negatives=negatives)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, z1)[0], rtol=1e-5, atol=1e-6)


def test_learnable_temperature_receives_correct_gradient():
    z1, z2, negatives = embeddings()
    rule = o.Learnable(0.3)
    o.InfoNCE(temperature=rule, pairs="queue")(z1, z2, negatives=negatives).backward()
    (parameter,) = rule.parameters()
    gradient = parameter.grad.clone()
    tau = rule(torch.zeros(5))
    (expected,) = torch.autograd.grad(F.softplus(direct_margin(z1, z2, negatives, tau)).mean(), parameter)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("shape", [None, (11,), (11, 5), (0, 6)], ids=str)
def test_missing_or_misshapen_negatives_raise_value_error(shape):
    z1, z2, _ = embeddings()
    negatives = None if shape is None else torch.zeros(shape)
    with pytest.raises(ValueError, match=r"^negatives must have shape \(K, 6\)"):
        o.InfoNCE(pairs="queue")(z1, z2, negatives=negatives)


def test_negatives_without_queue_pairs_raise_value_error():
    z1, z2, negatives = embeddings()
    with pytest.raises(ValueError, match="negatives need pairs='queue', not 'both'"):
        o.InfoNCE()(z1, z2, negatives=negatives)


@pytest.mark.parametrize(
    "make",
    [
        lambda: o.SupCon(pairs="queue"),
        lambda: o.MPT(pairs="queue"),
        lambda: o.AlignmentUniformity(pairs="queue"),
        lambda: o.UnifiedGradient(pairs="queue"),
        lambda: SimCLR(objective=o.InfoNCE(pairs="queue")),
    ],
    ids=["labels", "triplets", "uniformity", "gradient", "SimCLR"],
)
def test_unsupported_queue_combinations_raise_at_construction(make):
    with pytest.raises(
        ValueError, match=r"pairs must be|InfoNCE needs negatives, which SimCLR does not have"
    ):
        make()
