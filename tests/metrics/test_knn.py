"""Tests of the vote of neighbours, of the accuracies at several k, and of the accuracy of batches."""

import math
import warnings
from functools import partial

import knn_oracle
import numpy as np
import pytest
import torch
from knn_oracle import BACKENDS, by_loops
from lightly.utils.benchmarking import knn_predict
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from ssl_vision.metrics import KNNAccuracy, Neighbours, knn, knn_table, nearest, vote

CLASSES, SEVEN, KS, TEMPERATURES = 5, 7, (50, 1, 7), (0.05, 0.5, None)


clusters = partial(knn_oracle.clusters, classes=CLASSES, spread=1.0)
some_unlabelled = partial(knn_oracle.clusters, classes=SEVEN, spread=1.5, lowest=-1)


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
    ],
)
def test_vote_with_invalid_arguments_raises_value_error(labels, options, message):
    neighbours = nearest(torch.eye(2), torch.eye(2), 2)
    with pytest.raises(ValueError, match=message):
        vote(neighbours, labels, 2, **options)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.1), (20, 0.5), (60, 0.02)])
def test_accuracy_equals_loops_and_ignores_unlabelled_rows(k, temperature):
    (bank, labels), (queries, truth) = clusters(0, 100, spread=2.0), clusters(1, 40, spread=2.0)
    (expected,) = by_loops(queries, truth, bank, labels, k, temperature, classes=CLASSES, tops=(1,))
    metric = KNNAccuracy(num_classes=CLASSES, k=k, temperature=temperature)
    # unlabelled copies of the queries, which would be the nearest neighbours if they counted
    metric.update(queries, torch.full_like(truth, -1), "bank")
    for rows, targets in zip(bank.split(33), labels.split(33), strict=True):
        metric.update(rows, targets, "bank")
    metric.update(queries, truth, "query")
    metric.update(bank, torch.full_like(labels, -1), "query")
    assert 0.2 < expected < 1.0
    assert metric.compute().item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_leave_one_out_matches_loops_without_each_query_but_with_its_duplicates(backend, metric):
    rows, labels = some_unlabelled(0, 60)
    rows[40:45], rows[-3:] = rows[:5], rows[0]  # of different classes
    options = {"num_classes": SEVEN, "temperatures": TEMPERATURES, "metric": metric, "backend": backend}
    ks = (1, 3, 20)
    table = knn_table(rows, labels, rows, labels, ks=ks, **options, leave_one_out=True)
    labelled = (labels >= 0).nonzero().flatten().tolist()
    for score, (temperature, k) in zip(table, [(t, k) for t in TEMPERATURES for k in ks], strict=True):
        correct = []
        for row in labelled:
            other = torch.arange(60) != row
            query = rows[row, None], labels[row, None], rows[other], labels[other]
            correct += by_loops(*query, k, temperature, metric, classes=SEVEN, tops=(1,))
        assert score.correct.tolist() == [bool(each) for each in correct]


@pytest.mark.parametrize(("k", "temperature"), [(1, None), (9, None), (9, 0.2)])
def test_leave_one_out_accuracy_equals_scikit_learn(k, temperature):
    rows, labels = clusters(0, 120, spread=2.0)
    metric = KNNAccuracy(num_classes=CLASSES, k=k, temperature=temperature, leave_one_out=True)
    for part, classes in zip(rows.split(50), labels.split(50), strict=True):
        metric.update(part, classes, "query")
    weights = (lambda distances: np.exp(-distances / temperature)) if temperature else "uniform"
    classifier = KNeighborsClassifier(k, weights=weights, metric="cosine")
    expected = cross_val_score(classifier, rows.double(), labels, cv=LeaveOneOut()).mean()
    assert 0.2 < expected < 1.0
    assert metric.compute().item() == pytest.approx(expected, abs=1e-12)


def test_leave_one_out_votes_of_at_most_all_other_rows():
    with pytest.warns(UserWarning, match="k = 200, but the bank has 3 rows"):
        (score,) = knn_table(
            torch.ones(4, 2), torch.tensor([0, 0, 0, 1]), torch.ones(4, 2), torch.tensor([0, 0, 0, 1]),
            num_classes=2, temperatures=(None,), leave_one_out=True,
        )  # fmt: skip
    assert (score.k, score.correct.tolist()) == (3, [True, True, True, False])


def test_equal_votes_go_to_the_lower_class():
    metric = KNNAccuracy(num_classes=3, k=2, temperature=None)
    metric.update(torch.tensor([[1.0, 0.1], [1.0, -0.1]]), torch.tensor([2, 1]), "bank")
    metric.update(torch.tensor([[1.0, 0.0]]).repeat(3, 1), torch.tensor([0, 1, 2]), "query")
    assert metric.compute().item() == pytest.approx(1 / 3)


def test_unlabelled_queries_raise_value_error():
    metric = KNNAccuracy(num_classes=2)
    metric.update(torch.eye(2), torch.tensor([0, 1]), "bank")
    metric.update(torch.eye(2), torch.tensor([-1, -1]), "query")
    with pytest.raises(ValueError, match="labels of the queries: no labelled row among 2"):
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
    for option in ({"num_classes": 0}, {"k": 0}, {"temperature": -0.1}):
        with pytest.raises(ValueError, match=next(iter(option))):
            KNNAccuracy(**{"num_classes": 2, **option})


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_knn_table_matches_loops_for_every_k_temperature_and_vote(backend, metric):
    (bank, labels), (queries, truth) = some_unlabelled(0, 90), some_unlabelled(1, 30)
    assert (labels == -1).any()
    assert (truth == -1).any()
    table = knn_table(
        queries, truth, bank, labels, num_classes=SEVEN, ks=KS, temperatures=TEMPERATURES, metric=metric,
        backend=backend,
    )  # fmt: skip
    assert [(score.k, score.temperature) for score in table] == [(k, t) for t in TEMPERATURES for k in KS]
    for score in table:
        place = score.k, score.temperature
        (top1,) = by_loops(queries, truth, bank, labels, *place, metric, classes=SEVEN, tops=(1,))
        assert score.top1 == pytest.approx(top1, abs=1e-12)
        each = [
            (query[None], target[None]) for query, target in zip(queries, truth, strict=True) if target >= 0
        ]
        own = [by_loops(*one, bank, labels, *place, metric, classes=SEVEN)[0] for one in each]
        assert score.correct.tolist() == own
    assert len({score.top1 for score in table}) > 2


@pytest.mark.parametrize("temperature", [0.02, 0.1, None])
def test_votes_for_several_k_match_votes_for_each_k(temperature):
    (bank, _), (queries, _) = some_unlabelled(0, 90), some_unlabelled(1, 30)
    labels = torch.arange(90) % SEVEN
    neighbours = nearest(queries, bank, 60)
    all_scores = knn.votes(neighbours, labels, SEVEN, ks=(1, 5, 5, 60), temperature=temperature)
    for k, scores in zip((1, 5, 5, 60), all_scores, strict=True):
        torch.testing.assert_close(scores, vote(neighbours, labels, SEVEN, k=k, temperature=temperature))


def test_knn_table_searches_once_with_largest_k(monkeypatch):
    searched_ks = []
    monkeypatch.setattr(knn, "nearest", lambda *args, **o: searched_ks.append(o["k"]) or nearest(*args, **o))
    bank, labels = some_unlabelled(0, 90)
    knn_table(bank, labels, bank, labels, num_classes=SEVEN, ks=KS, temperatures=TEMPERATURES)
    assert searched_ks == [50]


def test_k_is_clamped_to_small_bank_with_one_warning():
    (bank, labels), (queries, truth) = some_unlabelled(0, 30), some_unlabelled(1, 20)
    options = {"num_classes": SEVEN, "temperatures": (0.1,)}
    labelled = int((labels >= 0).sum())
    with pytest.warns(UserWarning, match=f"k = 500, but the bank has {labelled} rows") as caught:
        table = knn_table(queries, truth, bank, labels, ks=(200, 3, 500), **options)
    assert len(caught) == 1
    assert [score.k for score in table] == [labelled, 3, labelled]
    assert table[0] == table[2] == knn_table(queries, truth, bank, labels, ks=(labelled,), **options)[0]


def test_ties_prefer_first_neighbour_and_lowest_class():
    """Among equal neighbours the first wins, and among equal classes the lowest."""
    bank, labels = torch.tensor([[1.0, 0.0]] * 3), torch.tensor([2, 1, 0])
    queries, truth = torch.tensor([[2.0, 0.0]] * 3), torch.tensor([0, 1, 2])
    for metric in ("cosine", "euclidean"):
        table = knn_table(
            queries, truth, bank, labels, num_classes=3, ks=(1, 2, 3), temperatures=(None, 0.1), metric=metric
        )
        # k = 1: only class 2 votes; k = 2: classes 1 and 2 tie; k = 3: all tie. Each class has one query.
        assert [score.top1 for score in table] == [pytest.approx(1 / 3)] * 6
        for k, winner in ((1, 2), (2, 1), (3, 0)):
            own = truth == winner
            options = {"num_classes": 3, "ks": (k,), "metric": metric}
            assert {s.top1 for s in knn_table(queries[own], truth[own], bank, labels, **options)} == {1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ks": ()}, r"ks: .*\[\]"),
        ({"ks": (3, 0)}, r"ks: .*\[3, 0\]"),
        ({"temperatures": (0.0,)}, r"temperature must .*0\.0"),
        ({"num_classes": 2}, "labels of the queries: expected 0 to 1.*2"),
        ({"truth": torch.tensor([-1, -1, -1])}, "labels of the queries: no labelled row among 3"),
        ({"labels": torch.tensor([-1, -1, -1])}, "labels of the bank: no labelled row among 3"),
        ({"labels": torch.tensor([0, 5, 1])}, "labels: expected 0 to 2.*5"),
        ({"metric": "manhattan"}, "metric must .*manhattan"),
    ],
)
def test_invalid_arguments_raise_value_error(change, message):
    arguments = {
        "queries": torch.eye(3), "truth": torch.arange(3), "bank": torch.eye(3), "labels": torch.arange(3),
        "num_classes": 3, "ks": (1,),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        knn_table(**(arguments | change))


def test_k_above_smallest_class_size_warns():
    features, labels = torch.randn(30, 3), torch.tensor([0] * 20 + [1] * 10)
    options = {"num_classes": 2, "temperatures": (0.1,)}
    with pytest.warns(UserWarning, match="k = 11, but the smallest class has 10 images"):
        knn_table(features, labels, features, labels, ks=(5, 11), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        knn_table(features, labels, features, labels, ks=(10,), **options)


def test_k_above_number_of_others_in_smallest_class_warns_when_each_image_is_left_out():
    features, labels = torch.randn(30, 3), torch.tensor([0] * 20 + [1] * 10)
    options = {"num_classes": 2, "temperatures": (0.1,), "leave_one_out": True}
    with pytest.warns(UserWarning, match="k = 10, but the smallest class has 9 other images"):
        knn_table(features, labels, features, labels, ks=(10,), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        knn_table(features, labels, features, labels, ks=(9,), **options)
