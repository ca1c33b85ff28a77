import math
import warnings
from functools import partial

import knn_oracle
import pytest
import torch
from knn_oracle import BACKENDS, by_loops
from lightly.utils.benchmarking import knn_predict

from ssl_vision.metrics import KNNAccuracy, Neighbours, nearest, vote

CLASSES = 5


clusters = partial(knn_oracle.clusters, classes=CLASSES, spread=1.0)


@pytest.mark.parametrize("temperature", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("k", [1, 7, 50])
@pytest.mark.parametrize("backend", BACKENDS)
def test_vote_matches_lightly_for_every_k_and_temperature(backend, k, temperature):
    (bank, labels), (queries, _) = clusters(0, 200), clusters(1, 60)
    scores = vote(nearest(queries, bank, 50, backend=backend), labels, CLASSES, k=k, temperature=temperature)
    normal = torch.nn.functional.normalize
    expected = knn_predict(normal(queries), normal(bank).T, labels, CLASSES, knn_k=k, knn_t=temperature)
    assert torch.equal(scores.argmax(dim=1), expected[:, 0])


def test_vote_is_the_weighted_sum():
    neighbours = Neighbours(torch.tensor([[0.9, 0.8, 0.1, 0.0]]), torch.tensor([[3, 0, 1, 2]]))
    labels = torch.tensor([1, 1, 0, 2])
    scores = vote(neighbours, labels, 4, k=3, temperature=0.2)
    expected = torch.tensor([[0.0, math.exp(-0.5) + math.exp(-4.0), 1.0, 0.0]])
    torch.testing.assert_close(scores, expected)
    assert vote(neighbours, labels, 4, k=4, temperature=None).tolist() == [[1, 2, 1, 0]]


@pytest.mark.parametrize("level", [1.0, 0.0, -1.0])
def test_small_temperature_neither_overflows_nor_underflows(level):
    neighbours = Neighbours(torch.tensor([[level, level - 1e-3]]), torch.tensor([[0, 1]]))
    scores = vote(neighbours, torch.tensor([1, 0]), 2, k=2, temperature=1e-3)
    torch.testing.assert_close(scores, torch.tensor([[math.exp(-1), 1.0]]), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.tensor([0, 1]), {"k": 3}, "1 to 2.*got 3"),
        (torch.tensor([0, 1]), {"k": 0}, "got 0"),
        (torch.tensor([0, 1]), {"k": 1, "temperature": 0.0}, "temperature.*0.0"),
        (torch.tensor([0, 1]), {"k": 1, "temperature": float("nan")}, "temperature.*nan"),
        (torch.tensor([0, 2]), {"k": 1}, "0 to 1.*got 0 to 2"),
        (torch.tensor([-1, 1]), {"k": 1}, "got -1 to 1"),
        (torch.tensor([0.0, 1.0]), {"k": 1}, "integers"),
        (torch.tensor([0]), {"k": 1}, "labels: 1, but the bank has at least 2"),
    ],
)
def test_vote_with_invalid_arguments_raises_value_error(labels, options, message):
    neighbours = nearest(torch.eye(2), torch.eye(2), 2)
    with pytest.raises(ValueError, match=message):
        vote(neighbours, labels, 2, **options)


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.1), (20, 0.5), (60, 0.02)])
def test_accuracy_equals_loops_and_ignores_unlabelled_rows(k, temperature, top):
    (bank, labels), (queries, truth) = clusters(0, 100, spread=2.0), clusters(1, 40, spread=2.0)
    (expected,) = by_loops(queries, truth, bank, labels, k, temperature, classes=CLASSES, tops=(top,))
    metric = KNNAccuracy(num_classes=CLASSES, k=k, temperature=temperature, top=top)
    # unlabelled copies of the queries, which would be the nearest neighbours if they counted
    metric.update(queries, torch.full_like(truth, -1), "bank")
    for rows, targets in zip(bank.split(33), labels.split(33), strict=True):
        metric.update(rows, targets, "bank")
    metric.update(queries, truth, "query")
    metric.update(bank, torch.full_like(labels, -1), "query")
    assert 0.2 < expected < 1.0
    assert metric.compute().item() == pytest.approx(expected, abs=1e-12)


def test_equal_votes_go_to_the_lower_class():
    metric = KNNAccuracy(num_classes=3, k=2, temperature=None)
    metric.update(torch.tensor([[1.0, 0.1], [1.0, -0.1]]), torch.tensor([2, 1]), "bank")
    metric.update(torch.tensor([[1.0, 0.0]]).repeat(3, 1), torch.tensor([0, 1, 2]), "query")
    assert metric.compute().item() == pytest.approx(1 / 3)
    metric.top = 2
    metric._computed = None
    assert metric.compute().item() == pytest.approx(2 / 3)


def test_k_is_clamped_with_one_warning():
    metric = KNNAccuracy(num_classes=CLASSES, k=200)
    (bank, labels), (queries, truth) = clusters(0, 50), clusters(1, 20)
    expected, _ = by_loops(queries, truth, bank, labels, 50, 0.1, classes=CLASSES)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            metric.update(bank, labels, "bank")
            metric.update(queries, truth, "query")
            assert metric.compute().item() == pytest.approx(expected)
            metric.reset()
    assert [str(w.message) for w in caught if "k=200" in str(w.message)] == [
        "KNNAccuracy: k=200, but the bank has 50 rows; k=50 is used"
    ]


def test_unlabelled_queries_raise_value_error():
    metric = KNNAccuracy(num_classes=2)
    metric.update(torch.eye(2), torch.tensor([0, 1]), "bank")
    metric.update(torch.eye(2), torch.tensor([-1, -1]), "query")
    with pytest.raises(ValueError, match="split='query'"):
        metric.compute()


def test_invalid_updates_and_options_raise_value_error():
    metric = KNNAccuracy(num_classes=2, k=1)
    with pytest.raises(ValueError, match="train"):
        metric.update(torch.ones(4, 2), torch.zeros(4, dtype=torch.long), "train")
    metric.update(torch.ones(1, 2), torch.tensor([0]), "bank")
    metric.update(torch.ones(1, 2), torch.tensor([2]), "query")
    with pytest.raises(ValueError, match=r"queries: expected 0 to 1.*2"):
        metric.compute()
    metric.update(torch.ones(1, 3), torch.tensor([0]), "bank")
    with pytest.raises(ValueError, match=r"one width.*\[2, 3\]"):
        metric.compute()
    for option in ({"num_classes": 0}, {"k": 0}, {"top": 0}, {"temperature": -0.1}):
        with pytest.raises(ValueError, match=next(iter(option))):
            KNNAccuracy(**{"num_classes": 2, **option})
