"""Tests of RECLAIM against float64 loops, its critic against singular values, its banks by brute force."""

import importlib
import math
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import assert_ranks_succeed
from torch.nn.functional import leaky_relu, normalize
from torch.nn.parallel import DistributedDataParallel

from ssl_vision import objectives as o

reclaim_module = importlib.import_module("ssl_vision.objectives.reclaim")

IMAGES, N = 20, 6
DIMS = {"embeddings": 5, "features": 7, "shallow": 4}
SOURCES = {
    "layers": ("features", "embeddings"),
    "views": ("embeddings",) * 2,
    "depths": ("shallow", "features"),
}
INDICES = torch.tensor([3, 0, 17, 9, 12, 5])
LABELS = torch.tensor([1, 0, 1, -1, 2, 0])


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_prepared(**options):
    """Return a RECLAIM with critic and banks in float64; all rows but those of images 1 and 9 are written."""
    options = {"k": 4, "width": 3, "warmup_epochs": 0} | options
    objective = o.RECLAIM(**options)
    objective.prepare(images=IMAGES, **DIMS)
    objective.double()
    written = torch.tensor([i for i in range(IMAGES) if i not in (1, 9)])
    for seed, bank in ((1, objective.u_bank), (2, objective.v_bank)):
        bank.write(written, normalize(randn(len(written), bank.rows.shape[1], seed=seed)), rho=0.0)
    with torch.no_grad():
        for name, parameter in objective.critic.named_parameters():
            parameter.copy_(3 * randn(*parameter.shape, seed=len(name)))
        for layer in objective.critic.children():  # the power iteration has converged
            left, _, right = torch.linalg.svd(layer.parametrizations.weight.original)
            layer.parametrizations.weight[0]._u.copy_(left[:, 0])
            layer.parametrizations.weight[0]._v.copy_(right[0])
    return objective


def batch(objective):
    """Return the embeddings and all other inputs; all tensors but the integers are leaves."""
    views = {
        name: tuple(randn(N, dim, seed=10 * dim + view).requires_grad_() for view in (0, 1))
        for name, dim in DIMS.items()
    }
    inputs = {name: views[name] for name in ("features", "shallow") if name in objective.required_inputs}
    return views["embeddings"], {"indices": INDICES, "labels": LABELS, **inputs}


def normalized_critic(objective):
    """Return the critic c(u, v) with every matrix divided by its largest singular value."""
    layers = {}
    for name, layer in objective.critic.named_children():
        weight = layer.parametrizations.weight.original
        layers[name] = weight / torch.linalg.matrix_norm(weight, ord=2), layer.bias

    def c(u, v):
        def linear(name, x):
            weight, bias = layers[name]
            return weight @ x + bias

        hidden = leaky_relu(linear("first", torch.cat([linear("u", u), linear("v", v)])), 0.2)
        return linear("third", leaky_relu(linear("second", hidden), 0.2))[0]

    return c


def brute_force(rows, written, query, own, k):
    cosines = {i: float(rows[i] @ query.detach()) for i in range(len(rows)) if written[i] and i != own}
    return sorted(cosines, key=cosines.get, reverse=True)[:k]


def loop_loss(objective, z, inputs, draw=None):
    """Compute λ · −L_ANS of the corrected Eq. 6, one anchor at a time."""
    c, views = normalized_critic(objective), {"embeddings": z, **inputs}
    u, v = (normalize(views[name][view]) for view, name in enumerate(SOURCES[objective.pair]))
    losses = []
    for i, own in enumerate(INDICES.tolist()):
        total = -torch.log(torch.sigmoid(c(u[i], v[i])))
        for bank, query, others in ((objective.v_bank, v, v), (objective.u_bank, u, u)):
            if objective.negatives == "nearest":
                chosen = brute_force(bank.rows, bank.written, query[i], own, objective.k)
                negatives = [bank.rows[j] for j in chosen]
            elif objective.negatives == "random":
                negatives = [bank.rows[j] for j in draw if bank.written[j] and j != own]
            else:
                negatives = [others[j].detach() for j in range(N) if j != i]
            logits = [c(u[i], x) if bank is objective.v_bank else c(x, v[i]) for x in negatives]
            terms = [-torch.log(1 - torch.sigmoid(logit)) for logit in logits]
            total = total + objective.gamma / 2 * sum(terms) / len(terms)
        losses.append(total)
    return objective.weight * torch.stack(losses).mean()


@pytest.mark.parametrize("pairs", [1, 9, 10**6], ids=["one anchor at a time", "in parts", "at once"])
@pytest.mark.parametrize("negatives", ["nearest", "random", "batch"])
@pytest.mark.parametrize(("pair", "gamma"), [("layers", None), ("views", 1.0), ("depths", 7.0)])
def test_value_and_gradients_match_corrected_equation(monkeypatch, pair, gamma, negatives, pairs):
    monkeypatch.setattr(reclaim_module, "PAIRS", pairs)
    objective = make_prepared(pair=pair, gamma=gamma, negatives=negatives, weight=0.3, share=0.5)
    z, inputs = batch(objective)
    want = loop_loss(objective, z, inputs, objective._draw().tolist()) + o.InfoNCE()(*z)
    leaves = [*z, *inputs.get("features", ()), *inputs.get("shallow", ()), *objective.critic.parameters()]
    expected_gradients = torch.autograd.grad(want, leaves, allow_unused=True)
    loss = objective(*z, **inputs)
    torch.testing.assert_close(loss, want, rtol=1e-9, atol=0)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    assert [g is None for g in gradients] == [g is None for g in expected_gradients]
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        if expected is not None:
            torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("negatives", ["nearest", "random", "batch"])
@pytest.mark.parametrize(("gamma", "level"), [(None, 1 + 4), (1.0, 2)])
def test_contrast_of_zero_critic_is_one_plus_gamma_times_log_2(negatives, gamma, level):
    objective = make_prepared(negatives=negatives, gamma=gamma, weight=1.0)
    objective.critic.third = torch.nn.Linear(3, 1).double()
    torch.nn.init.zeros_(objective.critic.third.weight)
    torch.nn.init.zeros_(objective.critic.third.bias)
    z, inputs = batch(objective)
    objective(*z, **inputs)
    assert float(objective.statistics()["contrast"]) == pytest.approx(level * math.log(2), rel=1e-12)


def test_critic_is_1_lipschitz_with_bounded_range():
    torch.manual_seed(0)  # for some weights, the largest sampled slope is below 0.05
    critic = o.Critic(7, 5, width=8).double()
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.mul_(20)
        for _ in range(500):
            critic(randn(1, 7), randn(1, 5))
    for layer in critic.children():
        assert float(torch.linalg.matrix_norm(layer.weight, ord=2)) == pytest.approx(1, abs=1e-6)
    u, v = (randn(4000, dim, seed=dim).requires_grad_() for dim in (7, 5))
    c = critic(u, v)
    slope = torch.cat(torch.autograd.grad(c.sum(), (u, v)), dim=1).norm(dim=1)
    assert 0.05 < slope.max() <= 1 + 1e-6
    apart = torch.cat([u - u.roll(1, 0), v - v.roll(1, 0)], dim=1).norm(dim=1)
    assert ((c - c.roll(1, 0)).abs() <= (1 + 1e-6) * apart).all()
    u, v = normalize(u), normalize(v)
    c = critic(u, v)
    assert c.max() - c.min() <= 2 * math.sqrt(2)
    c = critic(u[:1], v)
    assert c.max() - c.min() <= 2


def test_critic_weights_run_one_power_iteration():
    critic = o.Critic(4, 3, width=5)
    before = critic.first.parametrizations.weight[0]._u.clone()
    weights = critic.weights(torch.zeros(1))
    after = critic.first.parametrizations.weight[0]._u.clone()
    assert not torch.equal(after, before)
    u, v = torch.randn(6, 4), torch.randn(2, 1, 3)
    c = weights.joined(weights.left(u), weights.right(v))
    assert torch.equal(critic.first.parametrizations.weight[0]._u, after)
    torch.testing.assert_close(critic.eval()(u, v), c)
    assert c.shape == (2, 6)


@pytest.mark.parametrize("tile", [1, 100, 2**24])
@pytest.mark.parametrize("k", [1, 5, 30])
def test_nearest_equals_brute_force_without_own_and_unwritten_rows(monkeypatch, tile, k):
    monkeypatch.setattr(reclaim_module, "TILE", tile)
    bank = o.Bank(40, 6)
    written = torch.arange(4, 37)
    bank.write(written, normalize(randn(33, 6)).float(), rho=0.5)
    queries, own = normalize(randn(9, 6, seed=3)).float(), torch.arange(0, 36, 4)
    index, counts = bank.nearest(queries, own, k)
    assert counts.shape == index.shape == (9, k)
    for i in range(9):
        expected = brute_force(bank.rows, bank.written, queries[i], int(own[i]), k)
        assert index[i][counts[i]].tolist() == expected


def test_nearest_returns_all_other_rows_if_fewer_than_k():
    bank = o.Bank(10, 3)
    bank.write(torch.tensor([2, 7]), normalize(randn(2, 3)).float(), rho=0.5)
    index, counts = bank.nearest(normalize(randn(2, 3, seed=1)).float(), torch.tensor([2, 4]), 5)
    assert [sorted(i[c].tolist()) for i, c in zip(index, counts, strict=True)] == [[7], [2, 7]]


def test_bank_rows_are_unit_length_averages_of_finite_writes():
    bank = o.Bank(4, 3).double()
    first, second = normalize(randn(2, 3)), normalize(randn(2, 3, seed=1))
    images = torch.tensor([3, 1])
    bank.write(images, first, rho=0.7)
    torch.testing.assert_close(bank.rows[images], first)
    bank.write(images, second, rho=0.7)
    torch.testing.assert_close(bank.rows[images], normalize(0.3 * second + 0.7 * first))
    assert bank.written.tolist() == [False, True, False, True]
    assert not bank.rows[[0, 2]].any()
    rows_before = bank.rows.clone()
    bank.write(torch.tensor([0, 1]), torch.tensor([[math.nan, 0, 0], [math.inf, 0, 0]]).double(), rho=0.7)
    assert torch.equal(bank.rows, rows_before)
    assert not bank.written[0]


def test_warmup_uses_batch_negatives_and_forwards_the_epoch():
    choices = []
    objective = make_prepared(warmup_epochs=2, objective=o.InfoNCE(temperature=o.LinearInEpoch(0.1, 0.1)))
    for epoch in range(3):
        objective.set_epoch(epoch)
        z, inputs = batch(objective)
        objective(*z, **inputs)
        assert float(objective.statistics()["temperature"]) == pytest.approx(0.1 + 0.1 * epoch)
        choices.append(objective._chosen[1].index)
    assert [tuple(index.shape) for index in choices] == [(1, N), (1, N), (N, 4)]
    assert torch.equal(choices[0][0], INDICES)


def test_step_updates_bank_rows_and_labels_of_the_batch():
    objective = make_prepared(rho=0.25)
    before = [objective.u_bank.rows.clone(), objective.v_bank.rows.clone()]
    z, inputs = batch(objective)
    objective(*z, **inputs)
    for rows, bank, new in zip(
        before, (objective.u_bank, objective.v_bank), (inputs["features"][0], z[1]), strict=True
    ):
        expected = rows.clone()
        expected[INDICES] = normalize(0.75 * normalize(new) + 0.25 * rows[INDICES]).detach()
        torch.testing.assert_close(bank.rows, expected)
        assert bank.written.sum() == IMAGES - 1
    assert torch.equal(objective.labels[INDICES], LABELS)


def test_random_share_of_negatives_is_redrawn_and_restored_from_state():
    objective = make_prepared(negatives="random", share=0.33)
    z, inputs = batch(objective)
    draws = []
    for _ in range(5):
        objective(*z, **inputs)
        draws.append(tuple(objective._chosen[1].index[0].tolist()))
    assert {len(set(draw)) for draw in draws} == {7}  # 0.33 of 20, rounded up
    assert len(set(draws)) == 5
    again = make_prepared(negatives="random", share=0.33)
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again._draw(), objective._draw())
    again(*z, **inputs)
    assert not torch.equal(again._draw(), objective._draw())
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again._draw(), objective._draw())


def test_statistics_report_critic_gap_and_same_class_share():
    objective = make_prepared()
    objective.labels.copy_(torch.arange(IMAGES) % 3)
    assert objective.statistics() == {}
    z, inputs = batch(objective)
    c = normalized_critic(objective)
    u, v = normalize(inputs["features"][0]), normalize(z[1])
    labels = objective.labels.clone()
    labels[INDICES] = LABELS
    gaps, same_class, labelled_pairs = [], 0, 0
    for i, own in enumerate(INDICES.tolist()):
        means = []
        for bank, query in ((objective.v_bank, v), (objective.u_bank, u)):
            chosen = brute_force(bank.rows, bank.written, query[i], own, 4)
            pairs = [(u[i], x) if bank is objective.v_bank else (x, v[i]) for x in bank.rows[chosen]]
            means.append(sum(float(c(*pair)) for pair in pairs) / 4)
            labelled = [j for j in chosen if labels[j] >= 0 and LABELS[i] >= 0]
            labelled_pairs += len(labelled)
            same_class += sum(int(labels[j] == LABELS[i]) for j in labelled)
        gaps.append(float(c(u[i], v[i])) - sum(means) / 2)
    objective(*z, **inputs)
    stats = objective.statistics()
    assert float(stats["critic_gap"]) == pytest.approx(sum(gaps) / N, rel=1e-9)
    batch_gaps = [float(c(u[i], v[i]) - c(u[i], v[(i + 1) % N])) for i in range(N)]
    assert float(stats["critic_batch_gap"]) == pytest.approx(sum(batch_gaps) / N, rel=1e-9)
    assert float(stats["same_class_share"]) == pytest.approx(same_class / labelled_pairs)
    assert 0 < same_class < labelled_pairs
    inner = o.InfoNCE()
    inner(*z)
    assert all(torch.equal(stats[name], value) for name, value in inner.statistics().items())


def test_batch_gap_of_a_critic_without_comparison_is_zero():
    objective = make_prepared()
    with torch.no_grad():  # every hidden unit is positive, so the critic is linear in u and v
        objective.critic.first.bias.fill_(100)
        objective.critic.second.bias.fill_(1000)
    z, inputs = batch(objective)
    objective(*z, **inputs)
    stats = objective.statistics()
    assert abs(float(stats["critic_gap"])) > 1e-3
    assert abs(float(stats["critic_batch_gap"])) < 1e-9


def test_inner_objective_receives_its_required_inputs():
    objective = make_prepared(objective=o.SupCon(), weight=0.0)
    assert objective.required_inputs == ("features", "indices", "labels")
    z, inputs = batch(objective)
    torch.testing.assert_close(objective(*z, **inputs), o.SupCon()(*z, LABELS))


def test_inner_objective_is_prepared():
    calls = []

    class Inside(o.Objective):
        def prepare(self, **sizes):
            calls.append(sizes)

    o.RECLAIM(objective=Inside(), k=4).prepare(images=IMAGES, **DIMS)
    assert calls == [{"images": IMAGES, **DIMS}]


def test_anchor_weights_are_those_of_the_inner_objective():
    objective, inner = make_prepared(), o.InfoNCE()
    z, inputs = batch(objective)
    objective(*z, **inputs)
    inner(*z)
    assert len(inner.anchor_weights()) == 2 * N
    assert torch.equal(objective.anchor_weights(), inner.anchor_weights())


def test_loaded_state_prepares_objective_and_survives_prepare():
    torch.manual_seed(5)
    saved = o.RECLAIM(k=4)
    saved.prepare(images=IMAGES, **DIMS)
    torch.rand(9)
    loaded = torch.nn.ModuleDict({"objective": o.RECLAIM(k=4)})
    loaded.load_state_dict({f"objective.{key}": value for key, value in saved.state_dict().items()})
    loaded["objective"].prepare(images=IMAGES, **DIMS)
    for key, value in saved.state_dict().items():
        assert torch.equal(loaded["objective"].state_dict()[key], value), key
    another = o.RECLAIM(k=4)
    another.prepare(images=IMAGES, **DIMS)
    assert torch.equal(another.critic.first.bias, saved.critic.first.bias)
    with pytest.raises(ValueError, match=r"are \(20, 7, 5\), not \(30, 7, 5\)"):
        loaded["objective"].prepare(images=30, **DIMS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight": -0.1}, "weight must be at least 0, got -0.1"),
        ({"pair": "x"}, "pair must be one of 'layers', 'views', 'depths', got 'x'"),
        ({"k": 0}, "k must be at least 1"),
        ({"gamma": math.nan}, "gamma must be at least 0"),
        ({"rho": 1.0}, r"rho must be at least 0 and below 1"),
        ({"negatives": "x"}, "negatives must be one of 'nearest', 'random', 'batch'"),
        ({"share": 0.0}, r"share must be above 0 and at most 1"),
        ({"warmup_epochs": -1}, "warmup_epochs must be at least 0"),
        ({"width": 0}, "width must be at least 1"),
        ({"objective": o.RECLAIM()}, "objective must not be RECLAIM itself"),
    ],
)
def test_invalid_options_raise_value_error(options, words):
    with pytest.raises(ValueError, match=words):
        o.RECLAIM(**options)


def test_missing_requirements_raise_value_error():
    objective = o.RECLAIM(k=4)
    z = randn(N, 5), randn(N, 5)
    with pytest.raises(ValueError, match="call prepare"):
        objective(*z, indices=INDICES)
    with pytest.raises(ValueError, match="k 4 must be below the number of training images, 4"):
        objective.prepare(images=4, **DIMS)
    objective.prepare(images=IMAGES, **DIMS)
    with pytest.raises(ValueError, match="features of both views is required for pair"):
        objective(*z, indices=INDICES)


SHARES = [2, 4]  # images of each process


def train(rows, wrap, negatives):
    """Train a network and its objective for three steps on some rows of a batch, in float64."""
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 12).double()
    objective = make_prepared(negatives=negatives)
    module = wrap(torch.nn.ModuleDict({"net": net, "objective": objective}))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x = randn(2, N, 6, seed=step)[:, rows]
        optimizer.zero_grad()
        loss = module(x, INDICES.roll(step)[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), {**net.state_dict(), **objective.state_dict()}


class Step(torch.nn.Module):
    """Network and objective in one module, as in a LightningModule."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x, indices):
        features, z = self.parts["net"](x).split([7, 5], dim=2)
        return self.parts["objective"](*z, indices=indices, features=tuple(features))


def distributed_step(parts):
    return DistributedDataParallel(Step(parts), broadcast_buffers=False)


def process(rank, world):
    rows = slice(sum(SHARES[:rank]), sum(SHARES[: rank + 1]))
    for negatives in ("nearest", "random", "batch"):
        losses, state = train(rows, distributed_step, negatives)
        with mock.patch("torch.distributed.is_initialized", return_value=False):
            expected_losses, expected = train(slice(None), Step, negatives)
        torch.testing.assert_close(losses, expected_losses, rtol=1e-9, atol=0)
        for key, value in expected.items():
            torch.testing.assert_close(state[key], value, rtol=1e-8, atol=1e-10, msg=f"{negatives} {key}")
        for key in ("u_bank.rows", "v_bank.rows", "u_bank.written", "labels"):
            tensors = [torch.empty_like(state[key]) for _ in range(2)]
            dist.all_gather(tensors, state[key])
            assert torch.equal(*tensors), key


def test_two_processes_train_like_one_with_identical_banks(tmp_path):
    assert_ranks_succeed(process, 2, tmp_path)
