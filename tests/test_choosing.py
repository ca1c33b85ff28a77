"""Tests of the benchmarks of docs/choosing.md: correlations, regret, temperatures and sensitivity."""

import importlib
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from ssl_vision.experiments.compare import choose
from ssl_vision.metrics import pair_statistics

pytestmark = pytest.mark.docs

ACCURACY = "test/choosing/linear_top1"
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def choosing():
    return importlib.import_module("choosing")


@pytest.fixture
def recorded(choosing, monkeypatch, tmp_path):
    """Accuracies of twelve runs; they rise with RankMe, except for the run with the highest RankMe."""
    monkeypatch.setattr(choosing, "RESULTS", tmp_path)
    accuracies = [0.30, 0.31, 0.33, 0.34, 0.36, 0.37, 0.39, 0.42, 0.43, 0.45, 0.48, 0.44]
    rows = [
        {
            "data": "CIFAR10",
            "objective": "InfoNCE" if number % 2 else "DCL",
            "temperature": 0.1 if number < 6 else 0.5,
            "jitter": 0.0 if number == 11 else 0.8,
            "validation": {"rankme": 10 + number, "alignment": number, "lidar": None, "knn_top1": 1.0},
            "test": {ACCURACY: accuracy, "test/choosing/knn_top1": accuracy},
        }
        for number, accuracy in enumerate(accuracies)
    ]
    (tmp_path / "choosing_cifar10.json").write_text(json.dumps(rows))
    rows = [
        row | {"data": "STL10", "test": {"test/choosing/knn_top1": row["test"][ACCURACY] / 2}} for row in rows
    ]
    (tmp_path / "choosing_stl10.json").write_text(json.dumps(rows))
    return accuracies


def test_correlation_and_regret_match_recorded_rows(choosing, recorded):
    by_metric = {each.metric: each for each in choosing.measured("linear_top1")}
    assert set(by_metric) == {"rankme", "alignment"}  # the others are missing or equal in all runs
    high, low = by_metric["rankme"], by_metric["alignment"]
    assert high.spearman == pytest.approx(stats.spearmanr(range(12), recorded).statistic, abs=1e-6)
    # The runs have two temperatures, of which a sample has one or both
    first, second = (stats.spearmanr(range(6), recorded[start : start + 6]).statistic for start in (0, 6))
    assert (high.low, high.high) == pytest.approx(sorted((second, first)), abs=1e-6)
    gains = [recorded[i + 5] - sum(recorded[i : i + 6]) / 6 for i in (0, 6)]
    gains += [recorded[11] - sum(recorded) / 12]
    assert (high.gain_low, high.gain_high) == pytest.approx((min(gains), max(gains)), abs=1e-6)
    # RankMe chooses the last run, and alignment the first one.
    assert (high.regret, low.regret) == pytest.approx((0.04, 0.18))
    assert high.random_regret == pytest.approx(0.48 - sum(recorded) / 12, abs=1e-6)
    assert low.spearman == pytest.approx(-high.spearman)
    assert high.runs == 12
    by_metric = {each.metric: each for each in choosing.measured("linear_top1", "same")}
    assert (by_metric["rankme"].runs, by_metric["rankme"].spearman, by_metric["rankme"].regret) == (11, 1, 0)


def test_regret_of_tied_runs_is_their_mean(choosing):
    rows = [
        {"validation": {"knn_top1": min(number, 10)}, "test": {ACCURACY: number / 100}, "temperature": number}
        for number in range(12)
    ]
    assert choosing.evidence("knn_top1", "linear_top1", "STL10", rows).regret == pytest.approx(0.005)


def test_tables_have_a_line_for_each_metric_and_temperature(choosing, recorded):
    table = {line[0]: line[1:] for line in choosing.evidence_table("linear_top1")}
    assert table["chosen by"] == ["CIFAR10: Spearman", "CIFAR10: regret"]
    assert table["RankMe"][1] == "**4.00**"  # clearly below chance
    assert table["LiDAR"] == ["", ""]
    assert table["chance"][1] == f"{100 * (0.48 - math.fsum(recorded) / 12):.2f}"
    other = {line[0]: line[1:] for line in choosing.evidence_table("knn_top1")}
    assert other["chosen by"] == ["CIFAR10: Spearman", "CIFAR10: regret", "STL10: Spearman", "STL10: regret"]
    assert (other["RankMe"][1], other["RankMe"][3]) == ("**4.00**", "**2.00**")
    assert float(other["chance"][1]) == pytest.approx(2 * float(other["chance"][3]), abs=0.02)
    first, second = (100 * sum(recorded[start : start + 6 : 2]) / 3 for start in (1, 7))
    assert choosing.temperature_table("InfoNCE", "linear_top1") == [
        ["τ", "CIFAR10"], ["0.1", f"{first:.2f}"], ["0.5", f"**{second:.2f}**"],
    ]  # fmt: skip


def test_tables_are_empty_without_rows(choosing, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "RESULTS", tmp_path)
    assert choosing.evidence_table("knn_top1") == choosing.temperature_table("InfoNCE", "knn_top1") == []
    assert choosing.sensitivity_table() == []


def test_committed_correlations_match_committed_rows(choosing, monkeypatch, tmp_path):
    committed = choose.FILE.read_text()
    monkeypatch.setattr(choosing, "FILE", tmp_path / "evidence.json")
    choosing.save()
    assert (tmp_path / "evidence.json").read_text() == committed


def test_each_data_set_has_24_runs(choosing):
    assert {len(rows) for rows in choosing.rows_by_data().values()} == {24}


def test_sensitivity_is_the_mean_over_the_named_pairs():
    script = importlib.import_module("sensitivity")
    g = torch.Generator().manual_seed(0)
    f, other = torch.randn(2, 12, 5, generator=g)
    labels = torch.arange(12) % 3
    values = script.sensitivities(f, other, labels)

    def term(x, y):
        cosine = torch.nn.functional.cosine_similarity(f[x], other[y], dim=0)
        return math.exp(-(((1 if labels[x] == labels[y] else -1) - float(cosine)) ** 2))

    pairs = [(x, y) for x in range(12) for y in range(12)]
    distinct = [term(x, y) for x, y in pairs if x != y]
    same, different = (
        [term(x, y) for x, y in pairs if x != y and (labels[x] == labels[y]) == equal]
        for equal in (True, False)
    )
    assert values == pytest.approx(
        {
            "x ≠ y": sum(distinct) / 132,
            "with x = y": sum(term(x, y) for x, y in pairs) / 144,
            "classes balanced": (sum(same) / len(same) + sum(different) / len(different)) / 2,
        },
        rel=1e-5,
    )
    plain = script.sensitivities(f, f, labels)["x ≠ y"]
    assert plain == pytest.approx(float(pair_statistics(f, labels).sensitivity), rel=1e-5)


def test_agreement_compares_temperature_order_with_paper():
    script = importlib.import_module("sensitivity")
    assert script.paper_order() == {0.07: 0.274, 0.1: 0.297, 0.15: 0.316, 0.2: 0.320, 0.3: 0.316, 0.5: 0.308}
    assert script.agreement({0.02: 9.0, 0.07: 1.0, 0.1: 2.0, 0.5: 3.0, 0.2: 4.0}) == pytest.approx(1)
    assert script.agreement({0.07: 4.0, 0.1: 3.0, 0.5: 2.0, 0.2: 1.0}) == pytest.approx(-1)
    assert script.agreement({0.07: 1.0, 0.1: 2.0}) is None


def test_spearman_and_its_interval_match_scipy(choosing):
    draw = np.random.default_rng(1)
    first = draw.normal(size=24)
    second = np.round(first + draw.normal(size=24), 1)  # with ties
    result = choosing.spearman(first, second, range(24))
    assert result is not None
    correlation, interval = result
    assert correlation == pytest.approx(stats.spearmanr(first, second).statistic)
    expected = stats.bootstrap(
        (first, second), lambda x, y: stats.spearmanr(x, y).statistic, paired=True, vectorized=False,
        method="percentile", n_resamples=2000, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert interval == pytest.approx((expected.low, expected.high), abs=0.04)


def test_spearman_requires_ten_pairs_with_differing_values(choosing):
    ten = list(range(10))
    for other, expected in ((ten, 1), (ten[::-1], -1)):
        result = choosing.spearman(ten, other, ten)
        assert result is not None
        assert (result[0], *result[1]) == pytest.approx((expected,) * 3)
    assert choosing.spearman(ten[:9], ten[:9], ten[:9]) is None
    assert choosing.spearman(ten, [1] * 10, ten) is None
    with pytest.raises(ValueError, match="expected pairs"):
        choosing.spearman(ten, ten[:9], ten)
    with pytest.raises(ValueError, match="finite"):
        choosing.spearman(ten, [math.nan] * 10, ten)


def test_cluster_bootstrap_samples_whole_clusters(choosing):
    """Clusters of the values 0, 3 and 9 give 27 samples, of which each is drawn about as often."""
    values = np.array([0.0, 0, 3, 3, 9, 9])
    means = [sum(sample) / 3 for sample in itertools.product((0, 3, 9), repeat=3)]
    interval = choosing.cluster_bootstrap(
        lambda rows: float(values[rows].mean()), [1, 1, 2, 2, 3, 3], alpha=0.2
    )
    assert interval == pytest.approx(tuple(np.quantile(means, [0.1, 0.9])))


def test_repeated_runs_of_a_cluster_do_not_narrow_the_interval(choosing):
    draw = np.random.default_rng(5)
    first, second, clusters = draw.normal(size=12), draw.normal(size=12), np.arange(12)
    single = choosing.spearman(first, second, clusters)
    repeated = choosing.spearman(np.tile(first, 4), np.tile(second, 4), np.tile(clusters, 4))
    assert repeated[1] == pytest.approx(single[1])
