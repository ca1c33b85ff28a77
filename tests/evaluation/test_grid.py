import dataclasses

import pytest
import torch
from torch import Tensor

from ssl_vision.evaluation.probe import Grid, ProbeRule, grid_probe, linear_probe, train_heads
from ssl_vision.evaluation.splits import stratified


def blobs(seed, n=300, spread=2.0, classes=4, width=6) -> tuple[Tensor, Tensor]:
    centres = torch.eye(classes, width) * 3
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    return centres[labels] + spread * torch.randn(n, width, generator=g), labels


RULE = Grid(lrs=(0.001, 0.03, 0.3), weight_decays=(0.0, 0.05), epochs=4, batch_size=32)
TRAIN, TEST = blobs(0), blobs(1)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("decays", [(0.0,), (0.0, 0.05)])
def test_each_member_matches_probe_trained_alone(schedule, decays):
    rule = dataclasses.replace(RULE, schedule=schedule, weight_decays=decays)
    weight, bias = train_heads([TRAIN[0]], TRAIN[1], 4, rule, seed=3)
    assert weight.shape == (len(rule.members), 4, 6)
    for member, (lr, decay) in enumerate(rule.members):
        member_rule = ProbeRule(epochs=4, lr=lr, weight_decay=decay, batch_size=32, schedule=schedule)
        expected = linear_probe(*TRAIN, *TEST, num_classes=4, rule=member_rule, seed=3)
        torch.testing.assert_close(weight[member], expected.weight, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(bias[member], expected.bias, atol=2e-6, rtol=1e-5)


def test_grid_reports_test_accuracy_of_best_held_out_member():
    grid = grid_probe(*TRAIN, *TEST, num_classes=4, rule=RULE, seed=3)
    (x, y), mask = TRAIN, stratified(TRAIN[1], RULE.held_out, seed=3)
    results = []
    for lr, decay in RULE.members:
        member_rule = ProbeRule(epochs=4, lr=lr, weight_decay=decay, batch_size=32, schedule="cosine")
        held_out_probe = linear_probe(
            x[~mask], y[~mask], x[mask], y[mask], num_classes=4, rule=member_rule, seed=3
        )
        test_probe = linear_probe(x[~mask], y[~mask], *TEST, num_classes=4, rule=member_rule, seed=3)
        results.append((held_out_probe.test_top1, test_probe.test_top1, lr, decay))
    best = max(range(len(results)), key=lambda member: results[member][0])
    assert grid.held_out_top1.tolist() == pytest.approx([result[0] for result in results])
    assert (grid.test_top1, *grid[1:3]) == pytest.approx(results[best][1:])
    assert len({result[0] for result in results}) > 1


def test_choice_does_not_depend_on_test_split():
    original = grid_probe(*TRAIN, *TEST, num_classes=4, rule=RULE)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    shuffled = grid_probe(*TRAIN, TEST[0], TEST[1][order], num_classes=4, rule=RULE)
    other = grid_probe(*TRAIN, *blobs(7, spread=9.0), num_classes=4, rule=RULE)
    assert original[1:3] == shuffled[1:3] == other[1:3]
    assert torch.equal(original.held_out_top1, shuffled.held_out_top1)
    assert original.test_top1 > shuffled.test_top1 + 0.2


def test_same_seed_gives_same_result():
    first = grid_probe(*TRAIN, *TEST, num_classes=4, rule=RULE, seed=1)
    torch.rand(5)  # the global generator must have no effect
    again = grid_probe(*TRAIN, *TEST, num_classes=4, rule=RULE, seed=1)
    assert torch.equal(first.correct, again.correct)
    assert torch.equal(first.held_out_top1, again.held_out_top1)


def test_a_member_that_diverges_is_not_chosen():
    x, y = TRAIN[0] * 1e15, TRAIN[1]
    rule = Grid(lrs=(1e30, 1e-31), epochs=2)
    grid = grid_probe(x, y, x, y, num_classes=4, rule=rule)
    assert grid.lr == 1e-31
    assert grid.held_out_top1[0] == -1
    with pytest.raises(ValueError, match="lrs: training diverged"):
        grid_probe(x, y, x, y, num_classes=4, rule=Grid(lrs=(1e30,), epochs=2))


def test_unlabelled_rows_are_ignored():
    plain = grid_probe(*TRAIN, *TEST, num_classes=4, rule=RULE)
    junk, unlabelled = torch.full((50, 6), torch.nan), torch.full((50,), -1)
    with_unlabelled = grid_probe(
        torch.cat((junk, TRAIN[0])), torch.cat((unlabelled, TRAIN[1])), *TEST, num_classes=4, rule=RULE
    )
    assert torch.equal(plain.correct, with_unlabelled.correct)


def test_the_only_image_of_a_class_is_trained_on(monkeypatch):
    trained = []

    def record(x, y, *args, **options):
        trained.extend(y.tolist())
        return train_heads(x, y, *args, **options)

    monkeypatch.setattr("ssl_vision.evaluation.probe.train_heads", record)
    labels = TRAIN[1].clone()
    labels[7] = 4
    grid_probe(TRAIN[0], labels, *TEST, num_classes=5, rule=RULE)
    assert trained.count(4) == 1


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_stratified_takes_its_share_of_every_class(share):
    labels = torch.tensor([0] * 100 + [1] * 50 + [-1] * 30 + [2] * 2 + [3])
    taken = stratified(labels, share, seed=0)
    assert not taken[labels == -1].any()
    for label, count in ((0, 100), (1, 50)):
        assert int(taken[labels == label].sum()) == max(1, round(share * count))
    assert int(taken[labels == 2].sum()) == int(taken[labels == 3].sum()) == 1
    assert torch.equal(taken, stratified(labels, share, seed=0))
    assert not torch.equal(taken, stratified(labels, share, seed=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": TRAIN[1] + 4}, "train_labels"),
        ({"train_features": TRAIN[0][:1], "train_labels": TRAIN[1][:1]}, "too few to hold some out"),
    ],
)
def test_invalid_data_raises_value_error(change, message):
    names = ("train_features", "train_labels", "test_features", "test_labels")
    data = dict(zip(names, (*TRAIN, *TEST), strict=True))
    with pytest.raises(ValueError, match=message):
        grid_probe(**{**data, **change}, num_classes=4)
