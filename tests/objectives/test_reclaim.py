"""RECLAIM against loops in float64, its critic against singular values, its banks against brute force."""

import importlib
import math
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import assert_ranks_succeed
from torch.nn.functional import leaky_relu, normalize
from torch.nn.parallel import DistributedDataParallel

from ssl_vision import objectives as o

bank_module = importlib.import_module("ssl_vision.objectives.bank")
critic_module = importlib.import_module("ssl_vision.objectives.critic")

IMAGES, N = 20, 6
DIMS = {"embeddings": 5, "features": 7, "shallow": 4}
OF = {"layers": ("features", "embeddings"), "views": ("embeddings",) * 2, "depths": ("shallow", "features")}
OWN = torch.tensor([3, 0, 17, 9, 12, 5])
LABELS = torch.tensor([1, 0, 1, -1, 2, 0])


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def prepared(**options):
    """With critic and banks in float64; all rows are written but those of images 1 and 9."""
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
        for layer in objective.critic.children():  # the power iteration stands still
            left, _, right = torch.linalg.svd(layer.parametrizations.weight.original)
            layer.parametrizations.weight[0]._u.copy_(left[:, 0])
            layer.parametrizations.weight[0]._v.copy_(right[0])
    return objective


def batch(objective):
    """Everything that it could be called with; all but the integers is a leaf."""
    views = {
        name: tuple(randn(N, dim, seed=10 * dim + view).requires_grad_() for view in (0, 1))
        for name, dim in DIMS.items()
    }
    given = {name: views[name] for name in ("features", "shallow") if name in objective.required_inputs}
    return views["embeddings"], {"indices": OWN, "labels": LABELS, **given}


def constrained(objective):
    """c(u, v) with every matrix divided by its largest singular value."""
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


def loop(objective, z, given, draw=None):
    """λ · −L_ANS of the corrected Eq. 6, one anchor after the other."""
    c, views = constrained(objective), {"embeddings": z, **given}
    u, v = (normalize(views[name][view]) for view, name in enumerate(OF[objective.pair]))
    losses = []
    for i, own in enumerate(OWN.tolist()):
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
def test_value_and_gradients_are_those_of_the_corrected_equation(monkeypatch, pair, gamma, negatives, pairs):
    monkeypatch.setattr(critic_module, "PAIRS", pairs)
    objective = prepared(pair=pair, gamma=gamma, negatives=negatives, weight=0.3, share=0.5)
    z, given = batch(objective)
    want = loop(objective, z, given, objective._draw().tolist()) + o.InfoNCE()(*z)
    leaves = [*z, *given.get("features", ()), *given.get("shallow", ()), *objective.critic.parameters()]
    exact = torch.autograd.grad(want, leaves, allow_unused=True)
    loss = objective(*z, **given)
    torch.testing.assert_close(loss, want, rtol=1e-9, atol=0)
    ours = torch.autograd.grad(loss, leaves, allow_unused=True)
    assert [g is None for g in ours] == [g is None for g in exact]
    for got, expected in zip(ours, exact, strict=True):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("negatives", ["nearest", "random", "batch"])
@pytest.mark.parametrize(("gamma", "level"), [(None, 1 + 4), (1.0, 2)])
def test_at_chance_it_is_one_plus_gamma_times_log_2(negatives, gamma, level):
    objective = prepared(negatives=negatives, gamma=gamma, weight=1.0)
    objective.critic.third = torch.nn.Linear(3, 1).double()
    torch.nn.init.zeros_(objective.critic.third.weight)
    torch.nn.init.zeros_(objective.critic.third.bias)
    z, given = batch(objective)
    objective(*z, **given)
    assert float(objective.statistics()["contrast"]) == pytest.approx(level * math.log(2), rel=1e-12)


def test_the_critic_is_1_lipschitz_and_its_range_is_bounded():
    torch.manual_seed(0)  # for some weights the largest of the sampled slopes is below 0.05
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


def test_held_weights_are_those_of_one_turn_of_the_power_iteration():
    critic = o.Critic(4, 3, width=5)
    before = critic.first.parametrizations.weight[0]._u.clone()
    weights = critic.weights(torch.zeros(1))
    turned = critic.first.parametrizations.weight[0]._u.clone()
    assert not torch.equal(turned, before)
    u, v = torch.randn(6, 4), torch.randn(2, 1, 3)
    c = weights.joined(weights.left(u), weights.right(v))
    assert torch.equal(critic.first.parametrizations.weight[0]._u, turned)
    torch.testing.assert_close(critic.eval()(u, v), c)
    assert c.shape == (2, 6)


@pytest.mark.parametrize("tile", [1, 100, 2**24])
@pytest.mark.parametrize("k", [1, 5, 30])
def test_nearest_are_those_of_brute_force_without_oneself_and_rows_never_written(monkeypatch, tile, k):
    monkeypatch.setattr(bank_module, "TILE", tile)
    bank = o.Bank(40, 6)
    written = torch.arange(4, 37)
    bank.write(written, normalize(randn(33, 6)).float(), rho=0.5)
    queries, own = normalize(randn(9, 6, seed=3)).float(), torch.arange(0, 36, 4)
    index, counts = bank.nearest(queries, own, k)
    assert counts.shape == index.shape == (9, k)
    for i in range(9):
        expected = brute_force(bank.rows, bank.written, queries[i], int(own[i]), k)
        assert index[i][counts[i]].tolist() == expected


def test_fewer_rows_than_k_are_all_there_is():
    bank = o.Bank(10, 3)
    bank.write(torch.tensor([2, 7]), normalize(randn(2, 3)).float(), rho=0.5)
    index, counts = bank.nearest(normalize(randn(2, 3, seed=1)).float(), torch.tensor([2, 4]), 5)
    assert [sorted(i[c].tolist()) for i, c in zip(index, counts, strict=True)] == [[7], [2, 7]]


def test_a_row_is_first_the_image_itself_and_then_a_moving_average_of_unit_length():
    bank = o.Bank(4, 3).double()
    first, second = normalize(randn(2, 3)), normalize(randn(2, 3, seed=1))
    at = torch.tensor([3, 1])
    bank.write(at, first, rho=0.7)
    torch.testing.assert_close(bank.rows[at], first)
    bank.write(at, second, rho=0.7)
    torch.testing.assert_close(bank.rows[at], normalize(0.3 * second + 0.7 * first))
    assert bank.written.tolist() == [False, True, False, True]
    assert not bank.rows[[0, 2]].any()
    kept = bank.rows.clone()
    bank.write(torch.tensor([0, 1]), torch.tensor([[math.nan, 0, 0], [math.inf, 0, 0]]).double(), rho=0.7)
    assert torch.equal(bank.rows, kept)
    assert not bank.written[0]


def test_the_approximate_search_takes_the_least_hamming_distances_and_finds_most_neighbours():
    classes = randn(10, 32)[torch.arange(400) % 10]
    rows = normalize(classes + 0.7 * randn(400, 32, seed=1)).float()
    exact, approximate = o.Bank(400, 32), o.Bank(400, 32, search="approximate")
    for bank in (exact, approximate):
        bank.write(torch.arange(399), rows[:399], rho=0.5)
    own = torch.arange(0, 398, 7)
    index, counts = approximate.nearest(rows[own], own, 20)
    assert counts.all()
    assert not (index == own[:, None]).any()
    assert (index < 399).all()
    signs = (rows @ approximate.directions > 0).int()
    distance = (signs[own][:, None] != signs[None, :399]).sum(dim=2)
    distance[torch.arange(len(own)), own] = 10**6
    got = distance.gather(1, index).sort(dim=1).values
    torch.testing.assert_close(got, distance.sort(dim=1).values[:, :20])
    true = exact.nearest(rows[own], own, 20).index
    found = (index[:, :, None] == true[:, None]).any(dim=2).double().mean()
    assert found > 0.7


def test_the_banks_warm_up_on_negatives_of_the_batch():
    choices = []
    objective = prepared(warmup_epochs=2, objective=o.InfoNCE(temperature=o.LinearInEpoch(0.1, 0.1)))
    for epoch in range(3):
        objective.set_epoch(epoch)
        z, given = batch(objective)
        objective(*z, **given)
        assert float(objective.statistics()["temperature"]) == pytest.approx(0.1 + 0.1 * epoch)
        choices.append(objective._chosen[1].index)
    assert [tuple(index.shape) for index in choices] == [(1, N), (1, N), (N, 4)]
    assert torch.equal(choices[0][0], OWN)


def test_a_step_moves_the_banks_after_it_has_chosen_from_them():
    objective = prepared(rho=0.25)
    before = [objective.u_bank.rows.clone(), objective.v_bank.rows.clone()]
    z, given = batch(objective)
    objective(*z, **given)
    for rows, bank, new in zip(
        before, (objective.u_bank, objective.v_bank), (given["features"][0], z[1]), strict=True
    ):
        expected = rows.clone()
        expected[OWN] = normalize(0.75 * normalize(new) + 0.25 * rows[OWN]).detach()
        torch.testing.assert_close(bank.rows, expected)
        assert bank.written.sum() == IMAGES - 1
    assert torch.equal(objective.labels[OWN], LABELS)


def test_random_negatives_are_a_share_of_the_bank_and_others_at_every_step():
    objective = prepared(negatives="random", share=0.33)
    z, given = batch(objective)
    draws = []
    for _ in range(5):
        objective(*z, **given)
        draws.append(tuple(objective._chosen[1].index[0].tolist()))
    assert {len(set(draw)) for draw in draws} == {7}  # 0.33 of 20, rounded up
    assert len(set(draws)) == 5
    again = prepared(negatives="random", share=0.33)
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again._draw(), objective._draw())
    again(*z, **given)
    assert not torch.equal(again._draw(), objective._draw())
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again._draw(), objective._draw())


def test_statistics_tell_the_gap_and_how_many_negatives_are_of_the_anchors_class():
    objective = prepared()
    objective.labels.copy_(torch.arange(IMAGES) % 3)
    assert objective.statistics() == {}
    z, given = batch(objective)
    c = constrained(objective)
    u, v = normalize(given["features"][0]), normalize(z[1])
    labels = objective.labels.clone()
    labels[OWN] = LABELS
    gaps, same, known = [], 0, 0
    for i, own in enumerate(OWN.tolist()):
        means = []
        for bank, query in ((objective.v_bank, v), (objective.u_bank, u)):
            chosen = brute_force(bank.rows, bank.written, query[i], own, 4)
            pairs = [(u[i], x) if bank is objective.v_bank else (x, v[i]) for x in bank.rows[chosen]]
            means.append(sum(float(c(*pair)) for pair in pairs) / 4)
            labelled = [j for j in chosen if labels[j] >= 0 and LABELS[i] >= 0]
            known += len(labelled)
            same += sum(int(labels[j] == LABELS[i]) for j in labelled)
        gaps.append(float(c(u[i], v[i])) - sum(means) / 2)
    objective(*z, **given)
    seen = objective.statistics()
    assert float(seen["critic_gap"]) == pytest.approx(sum(gaps) / N, rel=1e-9)
    assert float(seen["same_class_share"]) == pytest.approx(same / known)
    assert 0 < same < known
    inside = o.InfoNCE()
    inside(*z)
    assert all(torch.equal(seen[name], value) for name, value in inside.statistics().items())


def test_the_objective_inside_gets_what_it_wants():
    objective = prepared(objective=o.SupCon(), weight=0.0)
    assert objective.required_inputs == ("features", "indices", "labels")
    z, given = batch(objective)
    torch.testing.assert_close(objective(*z, **given), o.SupCon()(*z, LABELS))


def test_the_objective_inside_is_prepared():
    calls = []

    class Inside(o.Objective):
        def prepare(self, **sizes):
            calls.append(sizes)

    o.RECLAIM(objective=Inside(), k=4).prepare(images=IMAGES, **DIMS)
    assert calls == [{"images": IMAGES, **DIMS}]


def test_anchor_weights_are_those_of_the_objective_inside():
    objective, inside = prepared(), o.InfoNCE()
    z, given = batch(objective)
    objective(*z, **given)
    inside(*z)
    assert len(inside.anchor_weights()) == 2 * N
    assert torch.equal(objective.anchor_weights(), inside.anchor_weights())


def test_a_state_prepares_what_loads_it_and_preparing_again_changes_nothing():
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
        ({"weight": -0.1}, "weight must be 0 or more, got -0.1"),
        ({"pair": "x"}, "pair must be one of layers, views, depths, got 'x'"),
        ({"k": 0}, "k must be 1 or more"),
        ({"gamma": math.nan}, "gamma must be 0 or more"),
        ({"rho": 1.0}, r"rho must be in \[0, 1\)"),
        ({"negatives": "x"}, "negatives must be nearest, random or batch"),
        ({"share": 0.0}, r"share must be in \(0, 1\]"),
        ({"search": "x"}, "search must be exact or approximate"),
        ({"warmup_epochs": -1}, "warmup_epochs must be 0 or more"),
        ({"width": 0}, "width must be 1 or more"),
        ({"objective": o.RECLAIM()}, "objective must not be RECLAIM itself"),
    ],
)
def test_impossible_options_are_refused_by_name(options, words):
    with pytest.raises(ValueError, match=words):
        o.RECLAIM(**options)


def test_what_is_missing_is_named(monkeypatch):
    objective = o.RECLAIM(k=4)
    z = randn(N, 5), randn(N, 5)
    with pytest.raises(ValueError, match="call prepare"):
        objective(*z, indices=OWN)
    with pytest.raises(ValueError, match="k 4 must be below the number of training images, 4"):
        objective.prepare(images=4, **DIMS)
    objective.prepare(images=IMAGES, **DIMS)
    with pytest.raises(ValueError, match="features of both views is required for pair"):
        objective(*z, indices=OWN)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match="search 'approximate' needs FAISS"):
        o.Bank(4, 3, search="approximate")


SHARES = [2, 4]  # images of each process


def trained(rows, wrap, negatives):
    """A network and its objective after three steps on some rows of a batch, in float64."""
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 12).double()
    objective = prepared(negatives=negatives)
    both = wrap(torch.nn.ModuleDict({"net": net, "objective": objective}))
    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x = randn(2, N, 6, seed=step)[:, rows]
        optimizer.zero_grad()
        loss = both(x, OWN.roll(step)[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), {**net.state_dict(), **objective.state_dict()}


class Step(torch.nn.Module):
    """Network and objective as one module, as a LightningModule is."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x, indices):
        features, z = self.parts["net"](x).split([7, 5], dim=2)
        return self.parts["objective"](*z, indices=indices, features=tuple(features))


def wrapped(parts):
    return DistributedDataParallel(Step(parts), broadcast_buffers=False)


def process(rank, world):
    mine = slice(sum(SHARES[:rank]), sum(SHARES[: rank + 1]))
    for negatives in ("nearest", "random", "batch"):
        losses, state = trained(mine, wrapped, negatives)
        with mock.patch("torch.distributed.is_initialized", return_value=False):
            expected_losses, expected = trained(slice(None), Step, negatives)
        torch.testing.assert_close(losses, expected_losses, rtol=1e-9, atol=0)
        for key, value in expected.items():
            torch.testing.assert_close(state[key], value, rtol=1e-8, atol=1e-10, msg=f"{negatives} {key}")
        for key in ("u_bank.rows", "v_bank.rows", "u_bank.written", "labels"):
            tensors = [torch.empty_like(state[key]) for _ in range(2)]
            dist.all_gather(tensors, state[key])
            assert torch.equal(*tensors), key


def test_two_processes_train_as_one_and_have_the_same_banks(tmp_path):
    assert_ranks_succeed(process, 2, tmp_path)
