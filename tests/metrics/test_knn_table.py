import warnings
from functools import partial

import knn_oracle
import pytest
import torch
from knn_oracle import BACKENDS, by_loops

from ssl_vision.metrics import KNNScore, knn_table, nearest, vote
from ssl_vision.metrics import knn_table as public
from ssl_vision.metrics.vote import votes

CLASSES, KS, TEMPERATURES = 7, (50, 1, 7), (0.05, 0.5, None)


clusters = partial(knn_oracle.clusters, classes=CLASSES, spread=1.5, lowest=-1)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_knn_table_matches_loops_for_every_k_temperature_and_vote(backend, metric):
    (bank, labels), (queries, truth) = clusters(0, 90), clusters(1, 30)
    assert (labels == -1).any()
    assert (truth == -1).any()
    table = knn_table(
        queries, truth, bank, labels, num_classes=CLASSES, ks=KS, temperatures=TEMPERATURES, metric=metric,
        backend=backend,
    )  # fmt: skip
    expected = [
        KNNScore(k, t, *by_loops(queries, truth, bank, labels, k, t, metric, classes=CLASSES))
        for t in TEMPERATURES
        for k in KS
    ]
    assert [(score.k, score.temperature) for score in table] == [(e.k, e.temperature) for e in expected]
    for score, reference in zip(table, expected, strict=True):
        assert (score.top1, score.top5) == pytest.approx((reference.top1, reference.top5), abs=1e-12)
    assert len({score.top1 for score in table}) > 2


@pytest.mark.parametrize("temperature", [0.02, 0.1, None])
def test_votes_for_several_k_match_votes_for_each_k(temperature):
    (bank, _), (queries, _) = clusters(0, 90), clusters(1, 30)
    labels = torch.arange(90) % CLASSES
    neighbours = nearest(queries, bank, 60)
    all_scores = votes(neighbours, labels, CLASSES, ks=(1, 5, 5, 60), temperature=temperature)
    for k, scores in zip((1, 5, 5, 60), all_scores, strict=True):
        torch.testing.assert_close(scores, vote(neighbours, labels, CLASSES, k=k, temperature=temperature))
    with pytest.raises(ValueError, match=r"increasing.*\[5, 1\]"):
        next(votes(neighbours, labels, CLASSES, ks=(5, 1)))


def test_knn_table_searches_once_with_largest_k(monkeypatch):
    searched_ks = []
    module = __import__("sys").modules[public.__module__]
    monkeypatch.setattr(
        module, "nearest", lambda *args, **o: searched_ks.append(o["k"]) or nearest(*args, **o)
    )
    bank, labels = clusters(0, 90)
    knn_table(bank, labels, bank, labels, num_classes=CLASSES, ks=KS, temperatures=TEMPERATURES)
    assert searched_ks == [50]


def test_k_is_clamped_to_small_bank_with_one_warning():
    (bank, labels), (queries, truth) = clusters(0, 30), clusters(1, 20)
    options = {"num_classes": CLASSES, "temperatures": (0.1,)}
    labelled = int((labels >= 0).sum())
    with pytest.warns(UserWarning, match=f"k=500, but the bank has {labelled} rows") as caught:
        table = knn_table(queries, truth, bank, labels, ks=(200, 3, 500), **options)
    assert len(caught) == 1
    assert [score.k for score in table] == [labelled, 3, labelled]
    assert table[0] == table[2] == knn_table(queries, truth, bank, labels, ks=(labelled,), **options)[0]


@pytest.mark.parametrize(("classes", "known"), [(2, False), (4, False), (5, True), (12, True)])
def test_top5_needs_five_classes(classes, known):
    rows, labels = torch.eye(4), torch.tensor([0, 1, 0, 1])
    for score in knn_table(rows, labels, rows, labels, num_classes=classes, ks=(1,)):
        assert score.top1 == 1.0
        assert score.top5 == (1.0 if known else None)


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


def test_half_precision_accuracy_is_close_to_exact():
    (bank, labels), (queries, truth) = clusters(0, 400), clusters(1, 200)
    exact = knn_table(queries, truth, bank, labels, num_classes=CLASSES, ks=(20,))
    for dtype, tolerance in ((torch.float16, 0.01), (torch.bfloat16, 0.03)):
        half = knn_table(queries, truth, bank, labels, num_classes=CLASSES, ks=(20,), dtype=dtype)
        for exact_score, half_score in zip(exact, half, strict=True):
            assert exact_score.top1 == pytest.approx(half_score.top1, abs=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ks": ()}, r"ks: .*\[\]"),
        ({"ks": (3, 0)}, r"ks: .*\[3, 0\]"),
        ({"temperatures": (0.0,)}, r"temperature must .*0\.0"),
        ({"num_classes": 2}, "labels of the queries: expected 0 to 1.*2"),
        ({"truth": torch.tensor([-1, -1, -1])}, "labels of the queries: none of the 3"),
        ({"labels": torch.tensor([-1, -1, -1])}, "labels of the bank: none of the 3"),
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
