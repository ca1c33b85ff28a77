"""Tests of benchmarks/tables.py: tables are computed over seeds, and committed rows have three seeds."""

import importlib
import itertools
import json
import math
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest
from scipy import stats
from scripts import import_script

pytestmark = pytest.mark.docs

FILE = Path(__file__).parent.parent / "benchmarks" / "tables.py"


@pytest.fixture
def committed(monkeypatch):
    """The module with the committed rows."""
    monkeypatch.syspath_prepend(FILE.parent)
    return import_script(FILE)


@pytest.fixture
def tables(committed, monkeypatch, tmp_path):
    """The module with the rows that a test writes."""
    monkeypatch.setattr(importlib.import_module("rows"), "RESULTS", tmp_path)
    return committed


def paper_tables():
    """The module with the tables of three papers, which can be imported where `committed` is used."""
    return importlib.import_module("paper_tables")


@pytest.fixture
def rows(tables, tmp_path):
    def write(**accuracies):
        all_rows = [
            {"method": "SimCLR", "objective": objective, "seed": seed, "test": {"test/knn_top1": value}}
            for objective, values in accuracies.items()
            for seed, value in enumerate(values)
        ]
        (tmp_path / "rows.json").write_text(json.dumps(all_rows))

    return write


def test_means_are_over_seeds(tables, rows):
    macl = [0.5, 0.52, 0.57]
    rows(MACL=macl, DCL=[0.4])
    mean, deviation = 100 * fmean(macl), 100 * stdev(macl)
    assert tables.means(["rows"], ["knn_top1", "rankme"]).splitlines() == [
        "| method | objective | kNN % | RankMe | seeds |",
        "|---|---|---|---|---|",
        "| SimCLR | DCL | 40.00 |  | 1 |",
        f"| SimCLR | MACL | {mean:.2f} ± {deviation:.2f} |  | 3 |",
    ]


def test_differences_are_paired_by_seed(tables, rows):
    dcl, macl = [0.40, 0.44, 0.41, 0.30], [0.39, 0.42, 0.38]
    rows(MACL=macl, DCL=dcl)
    test = stats.ttest_rel([100 * value for value in dcl[:3]], [100 * value for value in macl])
    low, high = test.confidence_interval()
    pairs = [(("SimCLR", "DCL"), ("SimCLR", "MACL")), (("SimCLR", "MACL"), ("SimCLR", "DCL"))]
    *_, first, second = tables.differences("rows", pairs, "knn_top1").splitlines()
    assert first.startswith(
        f"| SimCLR, DCL | SimCLR, MACL | +2.00 | −{-low:.2f} to +{high:.2f} | {2 * test.pvalue:.2g} |"
    )
    assert second.startswith("| SimCLR, MACL | SimCLR, DCL | −2.00 |")
    with_another = [*pairs, (("SimCLR", "MACL"), ("SimCLR", "InfoNCE"))]
    assert tables.differences("rows", with_another, "knn_top1") == tables.differences(
        "rows", pairs, "knn_top1"
    )


def test_reclaim_runs_are_grouped_by_negatives_and_weight(tables, tmp_path):
    seeds = itertools.count()

    def row(negatives, nearest, weight, *values):
        test = {"test/knn_top1": values[0], "test/label_shares/1% labels/logistic_top1": values[-1]}
        curves = {metric: [[1, 0.0], [2, values[0] / 2]] for metric in tables.CRITIC}
        row = {"negatives": negatives, "nearest": nearest, "weight": weight, "seed": next(seeds)}
        return row | {"test": test, "curves": curves}

    rows = [row("nearest", 100, 0.1, 0.5), row("nearest", 100, 0.1, 0.6), row("nearest", 10, 0.1, 0.4)]
    (tmp_path / "reclaim_k.json").write_text(json.dumps(rows))
    rows = [row("random", 100, 0.1, 0.3), row("nearest", 100, 0.0, 0.2, 0.1)]
    (tmp_path / "reclaim_weight.json").write_text(json.dumps(rows))
    assert tables.reclaim(["knn_top1", next(iter(tables.LABEL_SHARES))]) == [
        ["negatives of RECLAIM", "λ", "kNN %", "1 % of the labels", "seeds"],
        ["none", "0", "20.00", "10.00", "1"],
        ["10 nearest", "0.1", "40.00", "40.00", "1"],
        ["100 nearest", "0.1", "55.00 ± 7.07", "55.00 ± 7.07", "2"],
        ["random", "0.1", "30.00", "30.00", "1"],
    ]
    head, _, _, nearest, _ = tables.reclaim(["knn_top1"], tables.CRITIC)
    assert head == ["negatives of RECLAIM", "λ", "kNN %", "critic gap", "same class", "seeds"]
    assert nearest == ["100 nearest", "0.1", "55.00 ± 7.07", "0.275", "0.275", "2"]


def test_reclaim_differences_from_infonce_are_paired_by_seed(tables, tmp_path):
    def row(nearest, weight, seed, value):
        return {"negatives": "nearest", "nearest": nearest, "weight": weight, "seed": seed} | {
            "test": {"test/knn_top1": value}
        }

    baseline = [0.48, 0.52, 0.5]
    accuracies = {(10, 0.1): [0.5, 0.53, 0.51], (100, 0.1): [0.4, 0.42, 0.43], (100, 0.5): [0.3, 0.38, 0.33]}
    rows = [
        row(*setting, seed, value) for setting in accuracies for seed, value in enumerate(accuracies[setting])
    ]
    rows += [row(100, 0.0, seed, value) for seed, value in reversed(list(enumerate(baseline)))]
    (tmp_path / "reclaim_k.json").write_text(json.dumps(rows))

    def cell(*setting):
        points = [[100 * value for value in values] for values in (accuracies[setting], baseline)]
        low, high = stats.ttest_rel(*points).confidence_interval()
        return f"{fmean(points[0]) - 50:+.2f} ({low:+.2f} to {high:+.2f})".replace("-", "−")

    assert tables.reclaim_differences(["knn_top1"], "negatives") == [
        ["difference from InfoNCE", "10 nearest", "100 nearest"],
        ["kNN", cell(10, 0.1), cell(100, 0.1)],
    ]
    assert tables.reclaim_differences(["knn_top1"], "weight") == [
        ["difference from InfoNCE", "λ = 0.1", "λ = 0.5"],
        ["kNN", cell(100, 0.1), cell(100, 0.5)],
    ]


def test_temperature_differences_are_paired_by_seed(tables, tmp_path):
    accuracies = {tables.LOW_TEMPERATURE: [0.58, 0.61, 0.6], tables.OBJECTIVES: [0.57, 0.58, 0.6]}
    for name, values in accuracies.items():
        rows = [
            {"method": "SimCLR", "objective": "DCL", "seed": seed, "test": {"test/knn_top1": value}}
            for seed, value in enumerate(values)
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows[::-1]))
    low, high = stats.ttest_rel(
        *([100 * value for value in values] for values in accuracies.values())
    ).confidence_interval()
    cell = f"+1.33 ({low:+.2f} to {high:+.2f})".replace("-", "−")
    assert tables.temperature_differences(["knn_top1"]) == [["objective", "kNN"], ["DCL", cell]]


def test_dissipation_is_drop_after_best_validation_accuracy(tables, tmp_path):
    rows = [
        {"objective": "DCL", "curves": {"val/knn_top1": [[1, 0.3], [2, best], [3, 0.4]]}}
        for best in (0.5, 0.46)
    ]
    rows[0]["curves"]["gradient/alignment_norm"] = [[1, 1.0], [2, 3.0], [3, 2.0]]
    (tmp_path / "gradient_dissipation.json").write_text(json.dumps(rows[:1]))
    (_, line) = tables.dissipation()
    assert line == ["DCL", "50.00", "40.00", "10.00", "", "1.000 to 2.000", "", "1"]
    (tmp_path / "gradient_dissipation.json").write_text(json.dumps(rows))
    assert tables.dissipation()[1][3:7] == [f"8.00 ± {stdev([10, 6]):.2f}", "", "", ""]


def test_unified_gradient_tables_vary_one_term_at_a_time(tables, tmp_path):
    def row(accuracy, measured, **terms):
        curves = {metric: [[1, 0.0], [2, measured]] for metric in paper_tables().CONJECTURES}
        return {
            **paper_tables().UNIFIED_GRADIENT,
            **terms,
            "test": {"test/knn_top1": accuracy},
            "curves": curves,
        }

    rows = [row(0.4, 0.1), row(0.5, 0.2), row(0.3, 0.5, margin=2.0)]
    (tmp_path / "unified_gradient_margin.json").write_text(json.dumps(rows))
    (tmp_path / "unified_gradient_ratio.json").write_text(json.dumps([row(0.6, 1.0, ratio=4.0)]))
    head, *lines = tables.unified_gradient("ratio")
    assert head == ["ratio", "kNN %", "linear %", "angle gap", "hardest share", "lemma share", "seeds"]
    assert lines == [
        ["1", "45.00 ± 7.07", "", "0.150", "0.150", "0.150", "2"],
        ["4", "60.00", "", "1.000", "1.000", "1.000", "1"],
    ]
    assert [line[0] for line in tables.unified_gradient("margin")] == ["margin", "0.3", "2"]


def test_recipes_are_sorted_by_accuracy_with_difference_from_baseline(tables, tmp_path):
    rows = [
        {"recipe": recipe, "core_seconds": seconds, "epochs": epochs, "knn_top1": accuracy}
        for recipe, seconds, epochs, accuracy in (
            ("start", 60, 3, 0.5), ("LARS", 60, 3, 0.45), ("smaller", 60, 6, 0.52), ("LARS", 600, 30, 0.9),
        )
    ]  # fmt: skip
    (tmp_path / "cpu_recipes.json").write_text(json.dumps(rows))
    head, *lines = tables.recipes(tables.recipes_of(60), "start")
    assert head == ["recipe", "epochs", "kNN (k = 10) %", "difference from start", "seeds"]
    assert lines == [
        ["smaller", "6", "52.00", "+2.00", "1"],
        ["start", "3", "50.00", "", "1"],
        ["LARS", "3", "45.00", "−5.00", "1"],
    ]


def test_cpu_recipe_has_validation_accuracy_of_each_seed(tables, tmp_path):
    rows = [
        {"epochs": 125, "validation": {"knn_top1": validation}, "test": {"test/knn10/knn_top1": 0.1}}
        for validation in (0.7, 0.8)
    ]
    (tmp_path / "cifar10_cpu.json").write_text(json.dumps(rows))
    assert tables.recipes(tables.cpu_recipe_validations(), "SGD, smaller")[1:] == [
        ["SGD, smaller", "125", "75.00 ± 7.07", "", "2"]
    ]


def test_cpu_recipe_table_shows_the_shortest_and_the_longest_time(tables, tmp_path):
    def row(seed, accuracy, **time):
        test = {"test/knn10/knn_top1": accuracy, "test/knn_top1": 0.5}
        return {"seed": seed, "epochs": 9, "test": test} | time

    rows = [row(1, 0.8, seconds=180.0), row(0, 0.7, seconds=60.0)]
    (tmp_path / "ours.json").write_text(json.dumps(rows))
    (tmp_path / "lightly.json").write_text(json.dumps([row(0, 0.6, cpu_seconds=240.0)]))
    head, *lines = tables.cpu_recipe({"ours": "SimCLR", "missing": "MoCo", "lightly": "lightly's loop"})
    assert head == ["recipe", "epochs", "minutes", "kNN (k = 10) %", "kNN %", "linear %", "seeds"]
    assert lines == [
        ["SimCLR", "9", "1 to 3", "75.00 ± 7.07", "50.00 ± 0.00", "", "2"],
        ["lightly's loop", "9", "4", "60.00", "50.00", "", "1"],
    ]


def test_the_best_temperature_of_each_objective_is_in_bold(tables, tmp_path):
    accuracies = [("MACL", 0.1, 0.5), ("MACL", 0.05, 0.6), ("DCL", 0.1, 0.4)]
    rows = [
        {"objective": objective, "temperature": temperature, "validation": {"knn_top1": accuracy}}
        for objective, temperature, accuracy in accuracies
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert tables.temperatures("rows") == [
        ["objective", "τ = 0.05", "τ = 0.1"],
        ["DCL", "", "**40.00**"],
        ["MACL", "**60.00**", "50.00"],
    ]


def test_few_labels_table_matches_demo_record(committed):
    record = json.loads((committed.RESULTS / "demo.json").read_text())
    values = [
        row["value"]
        for run in record["runs"]
        for row in run["rows"]
        if (row["features"], row["metric"], row.get("labels")) == ("pixels", "linear_top1", "1%")
    ]
    assert len(values) == 3
    mean, deviation = 100 * fmean(values), 100 * stdev(values)
    pixels = committed.few_labels().splitlines()[-1]
    assert pixels.startswith(f"| raw pixels | {mean:.2f} ± {deviation:.2f} |")


def test_committed_settings_have_three_seeds(committed):
    names = (
        *committed.NARROW,
        *committed.OBJECTIVES_AND_LIGHTLY,
        committed.LOW_TEMPERATURE,
        committed.STL10,
        "gradient_dissipation",
        "cifar10_cpu",
        "cifar10_cpu_hour",
        "lightly_cifar10_cpu",
    )
    for groups in (
        *(committed.settings([name]) for name in names),
        paper_tables().reclaim_groups(),
    ):
        for setting, seeds in groups.items():
            assert len(seeds) >= 3, setting


def test_every_committed_row_has_a_command_and_a_commit():
    files = {file.name: json.loads(file.read_text()) for file in FILE.parent.glob("results/*.json")}
    rows = [(name, row) for name, rows in files.items() if isinstance(rows, list) for row in rows]
    assert len(rows) > 200
    for name, row in rows:
        assert row["command"], name
        assert re.fullmatch("[0-9a-f]{7,}", row["commit"]), name


@pytest.mark.parametrize(
    ("term", "values"),
    [
        ("margin", ["0.1", "0.2", "0.3", "0.5", "1", "2"]),
        ("negatives_temperature", ["0.01", "0.03", "0.05", "0.1", "0.3", "1"]),
        ("ratio", ["0.25", "0.5", "1", "1.5", "2", "4"]),
    ],
)
def test_every_value_of_a_recorded_term_has_three_seeds(committed, term, values):
    lines = committed.unified_gradient(term)[1:]
    assert [line[0] for line in lines] == values
    assert {line[-1] for line in lines} == {"3"}


def test_macl_lies_between_dcl_at_same_and_at_doubled_temperature(committed):
    rows = {
        (row["objective"], row["temperature"]): row["validation"]
        for row in committed.rows_of("objectives_temperature_cifar10_narrow")
    }
    for temperature in (0.05, 0.1, 0.2):
        for metric in ("knn_top1", *committed.GEOMETRY):
            ends = rows["DCL", temperature][metric], rows["DCL", 2 * temperature][metric]
            assert min(ends) < rows["MACL", temperature][metric] < max(ends), (temperature, metric)


def accuracy_row(value, start=None, half=0.02):
    """An accuracy of a run, with the paired interval of its difference from the start."""
    gain = None if start is None else value - start
    ends = [None, None] if gain is None else [gain - half, gain + half]
    names = ("value", "start", "gain", "gain_low", "gain_high")
    return dict(zip(names, (value, start, gain, *ends), strict=True))


def adaptation_row(arm, seed, knn, linear, **settings):
    encoder = {"encoder": "ResNet", "encoder_name": None, "depth": 18, "width": 16, "size": 32}
    row = {"arm": arm, "seed": seed, "encoder_statistics": "fixed", "validations": 20, "below_start": 0}
    return encoder | row | {"knn": knn, "linear": linear} | settings


def test_continued_pretraining_is_compared_with_the_start_over_seeds(tables, tmp_path):
    values = [0.52, 0.55, 0.53]
    rows = [
        adaptation_row("random", 0, accuracy_row(0.3), accuracy_row(0.4)),
        adaptation_row("naive", 0, accuracy_row(0.45, 0.5), accuracy_row(0.6, 0.6), below_start=7),
        *(
            adaptation_row("adapt", seed, accuracy_row(value, 0.5), accuracy_row(value + 0.1, 0.6))
            for seed, value in enumerate(values)
        ),
        adaptation_row(None, 0, accuracy_row(0.9, 0.5), accuracy_row(0.9, 0.6)),
    ]
    (tmp_path / "adaptation.json").write_text(json.dumps(rows))
    low, high = stats.ttest_1samp([100 * (value - 0.5) for value in values], 0).confidence_interval()
    half = math.hypot((high - low) / 2, 2)  # over seeds and over test images
    gain = f"+3.3 ({10 / 3 - half:+.1f} to {10 / 3 + half:+.1f})".replace("-", "−")
    title, spread = "ResNet-18, width 16", f"{100 * stdev(values):.2f}"
    assert tables.continued_pretraining() == [
        ["encoder", "weights", "kNN (k = 20) %", "difference", "linear %", "difference", "alarm", "seeds"],
        [title, "start", "50.00", "", "60.00", "", "", ""],
        [title, "`adapt`", f"53.33 ± {spread}", gain, f"63.33 ± {spread}", gain, "0 of 60", "3"],
        [title, "`naive`", "45.00", "−5.0 (−7.0 to −3.0)", "60.00", "+0.0 (−2.0 to +2.0)", "7 of 20", "1"],
        [title, "`random`", "30.00", "−20.0", "40.00", "−20.0", "", "1"],
    ]


def test_statistics_of_batch_norm_are_compared_by_size(tables, tmp_path):
    encoder = {"encoder": "Timm", "encoder_name": "resnet18"}
    rows = [
        adaptation_row(
            None, 0, accuracy_row(0.4 + gain, 0.4), accuracy_row(0.5, 0.5),
            encoder_statistics=statistics, size=size, **encoder,
        )
        for size, statistics, gain in ((32, "batch", -0.1), (32, "fixed", 0.05), (64, "batch", -0.2))
    ]  # fmt: skip
    rows[0]["knn"]["reestimated"] = 0.35
    (tmp_path / "adaptation.json").write_text(json.dumps(rows))
    same = "+0.0 (−2.0 to +2.0)"
    batch, fixed = "−10.0 (−12.0 to −8.0)", "+5.0 (+3.0 to +7.0)"
    assert tables.statistics_of_batch_norm() == [
        [
            "encoder",
            "pixels",
            *("start, kNN (k = 20) %", "`batch`", "`reestimated`", "`fixed`"),
            *("start, linear %", "`batch`", "`reestimated`", "`fixed`"),
        ],
        ["`resnet18`", "32", "40.00", batch, "−5.0", fixed, "50.00", same, "", same],
        ["`resnet18`", "64", "40.00", "−20.0 (−22.0 to −18.0)", "", "", "50.00", same, "", ""],
    ]


def test_tables_of_continued_pretraining_are_empty_without_rows(tables):
    assert tables.continued_pretraining() == tables.statistics_of_batch_norm() == []
