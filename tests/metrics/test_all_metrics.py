"""Tests of the behaviour that all metrics share; the values of each are tested in its own file."""

from functools import partial

import metric_tester as tester
import pytest
import torch
from metric_tester import SHARDS, Case, N

from ssl_vision import metrics as m

G = torch.Generator().manual_seed(5)
LABELS = torch.randint(-1, 4, (N,), generator=G)
FEATURES = torch.randn(5, 6, generator=G)[LABELS] + torch.randn(N, 6, generator=G)
OTHER = FEATURES + torch.randn(N, 6, generator=G)
LEVELS = torch.stack([torch.where(LABELS < 0, -1, LABELS // 2), LABELS], dim=1)
TRUTH = LABELS.clone()
TRUTH[SHARDS[0]] = -1  # the first process has no labelled query
KS, TEMPERATURES = (1, 7), (0.5, None)


def plain(features, labels):
    return {**m.pair_statistics(features, labels, t=1.5)._asdict(), "rankme": m.rankme(features)}


def extended(features, labels):
    return {
        **plain(features, labels),
        "effective_rank": m.effective_rank(features),
        "feature_std": m.feature_std(features),
    }


def table(bank, labels, queries, truth):
    scores = m.knn_table(queries, truth, bank, labels, num_classes=5, ks=KS, temperatures=TEMPERATURES)
    return [score.top1 for score in scores]


def add_both_splits(metric, bank, labels, queries, truth):
    metric.update(bank, labels, "bank")
    metric.update(queries, truth, "query")


def knn():
    return m.KNNAccuracy(num_classes=5, k=7, temperature=0.5)


EMPTY = {"empty": "no features"}
SPLITS = {"update": add_both_splits, "empty": "split='query'", "below": "labels.*got -2"}
ONE, LABELLED, VIEWS, GRADED = (FEATURES,), (FEATURES, LABELS), (FEATURES, OTHER), (FEATURES, LEVELS)
SEARCH = (FEATURES, LABELS, OTHER, TRUTH)
CASES = {
    "Alignment": Case(VIEWS, metric=m.Alignment, empty="no pairs"),
    "KNNAccuracy": Case(SEARCH, lambda *rows: table(*rows)[1], knn, **SPLITS),
    "KNNAccuracy, leave one out": Case(
        LABELLED,
        lambda *rows: m.knn_table(*rows, *rows, num_classes=5, ks=(7,), leave_one_out=True)[0].top1,
        lambda: m.KNNAccuracy(num_classes=5, k=7, leave_one_out=True),
        update=lambda metric, *rows: metric.update(*rows, "query"),
        **{key: SPLITS[key] for key in ("empty", "below")},
    ),
    "LiDAR": Case(
        VIEWS, lambda *x: m.lidar(torch.stack(x, 1), delta=0.01), lambda: m.LiDAR(0.01), empty="no images"
    ),
    "rankme": Case(ONE, m.rankme),
    "RankMe, rankme": Case(ONE, m.rankme, m.RankMe, **EMPTY),
    "Ranking": Case(GRADED, m.rank_correlation, m.Ranking, below=None, **EMPTY),
    "Representation": Case(LABELLED, plain, lambda: m.Representation(t=1.5), **EMPTY),
    "Representation, extended": Case(
        LABELLED, extended, partial(m.Representation, 1.5, extended=True), **EMPTY
    ),
    "SemanticSensitivity": Case(
        LABELLED, lambda *rows: m.pair_statistics(*rows).sensitivity, m.SemanticSensitivity, **EMPTY
    ),
    "Tolerance": Case(LABELLED, lambda *rows: m.pair_statistics(*rows).tolerance, m.Tolerance, **EMPTY),
    "Uniformity": Case(ONE, lambda rows: m.pair_statistics(rows).uniformity, m.Uniformity, **EMPTY),
    "effective_rank": Case(ONE, m.effective_rank),
    "feature_std": Case(ONE, m.feature_std),
    "knn_table": Case(SEARCH, table, empty="no labelled row among 0"),
    "lidar": Case((torch.stack(VIEWS, dim=1),), m.lidar),
    "pair_statistics": Case(LABELLED, m.pair_statistics, empty="2 rows"),
    "rank_correlation": Case(GRADED, m.rank_correlation, below=None),
}
METRICS = {name: case for name, case in CASES.items() if case.metric}
WITHOUT_CASE = {
    "KNNScore",
    "faiss_kind",
    "gradient_statistics",
    "gradient_terms",
    "nearest",
    "pair_coefficients",
    "vote",
}
"""Functions that do not take rows of features and are tested elsewhere."""


def test_every_public_metric_has_a_case():
    results = {cls.__name__ for cls in vars(m).values() if isinstance(cls, type) and issubclass(cls, tuple)}
    assert set(m.__all__) - results - WITHOUT_CASE <= {name for key in CASES for name in key.split(", ")}


@pytest.mark.parametrize("name", METRICS)
def test_metric_updates_match_function(name):
    tester.assert_equals_function(CASES[name])


@pytest.mark.parametrize("name", METRICS)
def test_metric_copies_rows_that_the_caller_reuses(name):
    tester.assert_keeps_no_reference(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_low_precision_rows_match_same_rows_in_float64(name):
    tester.assert_takes_any_float(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_labels_may_be_unsigned(name):
    case = CASES[name]
    rows = [each if each.is_floating_point() else each.clamp(min=0) for each in case.rows]
    unsigned = [each if each.is_floating_point() else each.to(torch.uint8) for each in rows]
    tester.assert_equal(case.measure(unsigned), case.measure(rows))


@pytest.mark.parametrize("name", CASES)
def test_bad_rows_raise_value_error(name):
    tester.assert_refuses_bad_rows(CASES[name])


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("name", CASES)
def test_empty_rows_give_nan_or_raise_value_error(name):
    tester.assert_without_rows(CASES[name])


def test_two_processes_equal_one(tmp_path):
    results = tester.of_processes(METRICS, tmp_path)
    for name, case in METRICS.items():
        expected = case.measure(case.rows)
        for result in results:
            tester.assert_equal(result[name], expected, 1e-6)
        second_shard = case.measure([each[SHARDS[1]] for each in case.rows])
        assert not torch.allclose(second_shard, expected, rtol=0, atol=1e-4)
