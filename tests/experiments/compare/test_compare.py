"""Tests of the paired comparison of hand-made runs: numbers, summaries and refused input."""

import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from comparable_runs import compare_error, compare_runs, make_run, row
from scipy import stats

from ssl_vision.main import main

SCORES = {
    "MACL": [0.841, 0.837, 0.849, 0.852, 0.844],
    "DCL": [0.839, 0.838, 0.848, 0.850, 0.846],
    "InfoNCE": [0.830, 0.831, 0.842, 0.836, 0.839],
}


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def runs():
    """Five seeds of three objectives, in the folder ``runs``."""
    for objective, scores in SCORES.items():
        for seed, score in enumerate(scores):
            make_run(f"runs/{objective}-{seed}", objective, seed, score)
    return Path("runs")


def percent(name):
    return 100 * np.array(SCORES[name])


def test_evaluation_on_own_data_is_default_and_row_selects_other_data(runs, capsys):
    for path in runs.iterdir():
        file = path / "evaluation.json"
        own_rows = json.loads(file.read_text())
        file.write_text(json.dumps([row(0.1, data="STL10", root="~/data"), *own_rows]))
    assert compare_runs()["groups"][0]["mean"] == pytest.approx(percent("MACL").mean())
    assert compare_runs("--row=data=STL10")["groups"][0]["mean"] == pytest.approx(10)
    capsys.readouterr()
    assert compare_runs("--metric=val/knn_top1")
    assert "val/knn_top1 (validation on held-out train images)" in capsys.readouterr().out


def test_differences_are_paired_by_seed_and_holm_corrected(runs):
    comparison = compare_runs()
    assert [group["name"] for group in comparison["groups"]] == ["MACL", "DCL", "InfoNCE"]
    assert [(pair["first"], pair["second"]) for pair in comparison["pairs"]] == [
        ("MACL", "DCL"),
        ("MACL", "InfoNCE"),
        ("DCL", "InfoNCE"),
    ]
    p = []
    for pair in comparison["pairs"]:
        expected = stats.ttest_rel(percent(pair["first"]), percent(pair["second"]))
        assert pair["t_p"] == pytest.approx(expected.pvalue)
        assert pair["interval"] == pytest.approx([*expected.confidence_interval()])
        assert pair["differences"] == pytest.approx(list(percent(pair["first"]) - percent(pair["second"])))
        p.append(expected.pvalue)
    ranked = np.sort(p) * [3, 2, 1]
    corrected = dict(zip(np.sort(p), np.minimum(1, np.maximum.accumulate(ranked)), strict=True))
    assert [pair["holm_p"] for pair in comparison["pairs"]] == pytest.approx([corrected[each] for each in p])


def test_output_file_lists_runs_values_and_conditions(runs):
    comparison = compare_runs()
    members = comparison["groups"][0]["runs"]
    assert [member["folder"] for member in members] == [f"runs/MACL-{seed}" for seed in range(5)]
    assert [member["value"] for member in members] == pytest.approx(list(percent("MACL")))
    assert (comparison["conditions"]["k"], comparison["conditions"]["split"], comparison["seeds"]) == (
        200,
        "test",
        [0, 1, 2, 3, 4],
    )


def test_baselines_are_shown_as_measured_under_same_conditions(runs, capsys):
    for path in runs.glob("MACL-[01]"):
        file = path / "evaluation.json"
        untrained = [row(value, features="untrained", epoch=0, k=k) for value, k in ((0.4, 200), (0.3, 20))]
        rows = [row(0.84), *untrained, row(0.25, features="pixels", layer="raw", epoch=0)]
        file.write_text(json.dumps(rows))
    for path in runs.glob("*-[234]"):
        file = path / "evaluation.json"
        file.write_text(json.dumps(json.loads(file.read_text())[:1]))
    for path in (*runs.glob("DCL-[01]"), *runs.glob("InfoNCE-[01]")):
        file = path / "evaluation.json"
        file.write_text(
            json.dumps([json.loads(file.read_text())[0], row(0.5, features="untrained", epoch=0)])
        )
    assert compare_runs()["baselines"] == pytest.approx({"untrained network": 140 / 3, "raw pixels": 25})
    table = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [line.split()[:3] for line in table[-2:]] == [
        ["untrained", "network", "46.67"],
        ["raw", "pixels", "25.00"],
    ]
    assert compare_runs("--metric=val/knn_top1")["baselines"] == {}


def test_baselines_measured_differently_do_not_count(runs):
    for path in runs.iterdir():
        rows = json.loads((path / "evaluation.json").read_text())[:1]
        rows += [row(0.1, layer="projector"), row(0.4, features="untrained", epoch=0)]
        rows += [row(0.2, features="untrained", epoch=0, settings="views.size 48", root="y")]
        rows += [row(0.3, features="pixels", layer="raw", epoch=0)]
        (path / "evaluation.json").write_text(json.dumps(rows))
    expected = pytest.approx({"untrained network": 40, "raw pixels": 30})
    assert compare_runs()["baselines"] == expected
    assert compare_runs("--layer=projector")["baselines"] == expected


def test_row_selects_rows_without_a_field(runs, capsys):
    for path in runs.iterdir():
        rows = json.loads((path / "evaluation.json").read_text())
        (path / "evaluation.json").write_text(json.dumps([row(0.1, labels="1%"), *rows]))
    assert compare_runs("--row=labels=null")["groups"][0]["mean"] == pytest.approx(percent("MACL").mean())
    assert "has no lables 'null' in its evaluation.json" in compare_error(capsys, "--row=lables=null")


def test_runs_of_different_length_are_compared_after_their_last_epochs(capsys):
    for epochs in (2, 4):
        for seed in range(2):
            rows = [row(0.1 * epochs + 0.01 * seed, epoch=epochs)]
            changes = {"trainer.max_epochs": epochs}
            make_run(f"runs/{epochs}-{seed}", seed=seed, epochs=epochs, rows=rows, **changes)
    assert [group["name"] for group in compare_runs("--by=epochs")["groups"]] == ["4", "2"]
    assert ", last epoch, seeds 0, 1" in capsys.readouterr().out
    logged = compare_runs("--by=epochs", "--metric=val/knn_top1")
    assert [[run["epoch"] for run in group["runs"]] for group in logged["groups"]] == [[2, 2], [4, 4]]


def test_runs_that_end_within_an_epoch_are_compared_by_their_last_values():
    """As with an equal number of steps and another batch size."""
    for batch_size, epochs in ((32, 1), (64, 3)):
        folder = Path(f"runs/{batch_size}")
        make_run(
            folder, epochs=epochs + 1, **{"data.init_args.batch_size": batch_size, "trainer.max_steps": 4}
        )
        done = f"step,epoch,time/epochs\n{4 * epochs + 3},{epochs},{epochs + 0.5}\n"
        (folder / "times.csv").write_text(done)
    groups = compare_runs("--by=batch_size", "--metric=val/knn_top1")["groups"]
    assert [group["mean"] for group in groups] == [50, 50]


def test_values_of_a_metric_that_ended_earlier_are_not_compared(runs, capsys):
    for path in runs.glob("MACL-*"):
        (path / "metrics.csv").write_text("step,epoch,val/knn_top1,val/rankme\n3,0,0.5,9\n7,1,0.6,\n")
    for path in (*runs.glob("DCL-*"), *runs.glob("InfoNCE-*")):
        (path / "metrics.csv").write_text("step,epoch,val/knn_top1,val/rankme\n3,0,0.5,8\n7,1,0.6,9\n")
    error = compare_error(capsys, "runs", "--metric=val/rankme")
    assert "under different conditions: last measured epoch is null and 1" in error


def test_output_ends_with_means_of_all_accuracies(runs, capsys):
    assert main(["compare", "runs", "--output=out.md"]) == 0
    _, table = capsys.readouterr().out.split(
        "Means of all accuracies of the same runs, in percent, without tests:\n\n"
    )
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["objective", "val/knn_top1", "test/knn_top1", "test/knn_top1_projector"]
    means = {name: 100 * np.mean(scores) for name, scores in SCORES.items()}
    assert {line[0]: [float(value) for value in line[1:]] for line in lines[1:4]} == {
        name: pytest.approx([mean, mean, mean / 2], abs=0.006) for name, mean in means.items()
    }
    text = Path("out.md").read_text()
    assert "| objective | val/knn_top1 | test/knn_top1 |" in " ".join(text.split())
    assert main(["compare", "runs", "--metric=test/knn_top1"]) == 2
    expected = "has no test/knn_top1 in its metrics.csv; give --metric knn_top1, --protocol and --layer"
    assert expected in capsys.readouterr().err


def test_accuracies_with_different_k_are_not_averaged(runs, capsys):
    file = next(runs.glob("DCL-1")) / "evaluation.json"
    rows = json.loads(file.read_text())
    file.write_text(json.dumps([*rows, row(0.9, k=20)]))
    assert main(["compare", "runs", "--row=k=200"]) == 0
    heads = capsys.readouterr().out.split("without tests:\n\n")[1].splitlines()[0].split()
    assert heads == ["objective", "val/knn_top1", "test/knn_top1_projector"]


def test_summaries_state_better_and_undecided_pairs(runs, capsys):
    comparison = compare_runs()
    same, better, _ = (pair["summary"] for pair in comparison["pairs"])
    assert better.startswith(
        "MACL is better than InfoNCE by 0.90 points (95 % interval 0.34 to 1.46, 5 seeds"
    )
    assert "Holm-corrected p = 0.0" in better
    assert same.startswith("MACL and DCL cannot be told apart with 5 seeds: the difference is 0.04 points (")
    assert same.endswith(" points or more would be found 4 times in 5 if differences spread as these do.")
    out = capsys.readouterr().out
    assert same in out
    assert "With 5 seeds Wilcoxon's test cannot fall below p = 0.0625" in out
    assert "below 0.05 it takes 6 seeds" in out


@pytest.mark.parametrize(
    ("margin", "verdict"), [(0.02, "cannot be told apart"), (0.003, "is better than start")]
)
def test_difference_from_the_start_must_exceed_what_test_images_change(capsys, margin, verdict):
    gains = [0.015, 0.010, 0.015]
    for seed, gain in enumerate(gains):
        of_run = {"gain": gain, "gain_low": gain - margin, "gain_high": gain + margin}
        make_run(f"runs/{seed}", seed=seed, rows=[row(0.4 + gain, **of_run)])
    (pair,) = compare_runs()["pairs"]
    assert verdict in pair["summary"]
    assert verdict in capsys.readouterr().out
    for level in (0.95, 0.99):
        (pair,) = compare_runs(f"--alpha={1 - level}")["pairs"]
        seeds = stats.t.interval(level, 2, scale=100 * stats.sem(gains))[1]
        half = np.hypot(seeds, 100 * margin * stats.norm.interval(level)[1] / stats.norm.interval(0.95)[1])
        assert pair["interval"] == pytest.approx([pair["mean"] - half, pair["mean"] + half])


def test_difference_of_one_seed_from_the_start_is_printed_without_remark_on_intervals(capsys):
    make_run("runs/0", rows=[row(0.5, gain=0.1, gain_low=0.05, gain_high=0.15)])
    compare_runs()
    assert "With one seed" in (printed := capsys.readouterr().out)
    assert "covers seeds" not in printed


@pytest.mark.parametrize("seeds", [9, 10])
def test_bootstrap_interval_requires_ten_seeds(capsys, seeds):
    for seed in range(seeds):
        make_run(f"runs/a{seed}", "MACL", seed, 0.5 + seed**2 / 100)
        make_run(f"runs/b{seed}", "DCL", seed, 0.5 + seed / 20)
    (pair,) = compare_runs()["pairs"]
    assert ("bootstrap" in capsys.readouterr().out) == (seeds == 10)
    assert (pair["bootstrap"] is None) == (seeds == 9)
    low, high = pair["interval"]
    assert low < pair["mean"] < high


def test_baseline_reduces_pairs_of_holm_correction(runs):
    comparison = compare_runs("--baseline=InfoNCE")
    assert [(pair["first"], pair["second"]) for pair in comparison["pairs"]] == [
        ("MACL", "InfoNCE"),
        ("DCL", "InfoNCE"),
    ]
    worst = max(comparison["pairs"], key=lambda pair: pair["t_p"])
    best = min(comparison["pairs"], key=lambda pair: pair["t_p"])
    assert best["holm_p"] == pytest.approx(2 * best["t_p"])
    assert worst["holm_p"] == pytest.approx(max(worst["t_p"], best["holm_p"]))


def test_equal_values_of_each_objective_are_not_called_better(capsys):
    for objective, score in {"DCL": 0.75, "MACL": 0.8}.items():
        for seed in (0, 1):
            make_run(f"runs/{objective}{seed}", objective, seed, score)
    comparison = compare_runs()
    assert comparison["pairs"][0]["summary"] == (
        "MACL is 5.00 points above DCL with each of 2 seeds: no spread, so no test."
    )
    assert [group["interval"] for group in comparison["groups"]] == [None, None]


def test_single_seed_prints_values_without_tests(capsys):
    for index, temperature in enumerate((0.1, 0.2, 0.5)):
        make_run(f"runs/t{index}", score=0.8 - index / 10, temperature=temperature)
    assert len(compare_runs("--by=temperature")["pairs"]) == 3
    title, table, sentence, means = capsys.readouterr().out.split("\n\n", 3)
    assert title.endswith("epoch 2, seed 0")
    assert [line.split() for line in table.splitlines()] == [
        ["model.objective.temperature", "knn_top1"],
        ["0.1", "80.00"],
        ["0.2", "70.00"],
        ["0.5", "60.00"],
        ["untrained", "network", "70.00"],
    ]
    assert sentence.splitlines()[0].startswith("With one seed, a difference cannot be told from chance.")
    assert "chance" not in means
    assert main(["compare", "runs", "--by=temperature", "--output=out.md"]) == 0
    text = Path("out.md").read_text()
    assert text.count("chance") == 1
    assert not any(column in text for column in ("Wilcoxon", "interval |", "d_z", "seeds |"))


def test_group_below_baseline_has_negative_difference(runs):
    result = compare_runs("runs/MACL-0", "runs/MACL-1", "runs/InfoNCE-0", "runs/InfoNCE-1", "--baseline=MACL")
    (pair,) = result["pairs"]
    assert (pair["mean"], pair["holm_p"]) == pytest.approx((-0.85, pair["t_p"]))
    (single,) = compare_runs("runs/MACL-0", "runs/InfoNCE-0", "--baseline=MACL")["pairs"]
    assert (single["mean"], single["summary"]) == (pytest.approx(-1.1), None)


def test_logged_metric_is_compared_by_its_last_value(runs):
    comparison = compare_runs("--metric=val/knn_top1")
    assert comparison["groups"][0]["mean"] == pytest.approx(percent("MACL").mean())
    assert comparison["conditions"] == {"images": "held-out train images"}
    assert {run["epoch"] for group in comparison["groups"] for run in group["runs"]} == {2}


def test_layer_and_by_options_select_values_and_groups(runs):
    comparison = compare_runs("--layer=projector", "--by=model.objective")
    assert comparison["groups"][0]["mean"] == pytest.approx(percent("MACL").mean() / 2)


def test_summary_calls_non_accuracies_higher_instead_of_better():
    for seed in range(3):
        for objective, value in (("MACL", -2), ("DCL", -3)):
            rows = [row(value - 0.01 * seed * len(objective), metric="uniformity")]
            make_run(f"runs/{objective}{seed}", objective, seed, rows=rows)
    (pair,) = compare_runs("--metric=uniformity")["pairs"]
    assert pair["summary"].startswith("MACL is higher than DCL by 0.99 (95 % interval ")


def test_seeds_missing_in_other_groups_are_left_out_and_named(runs, capsys):
    make_run(runs / "MACL-9", "MACL", 9, 0.1)
    comparison = compare_runs()
    assert comparison["seeds"] == [0, 1, 2, 3, 4]
    assert comparison["left_out"] == {"MACL": [9]}
    assert "Left out, as other groups do not have them: seed 9 of MACL." in capsys.readouterr().out


def test_option_that_differs_between_objectives_is_reported(capsys):
    for seed in range(2):
        make_run(f"runs/a{seed}", "MACL", seed, 0.5 + seed / 10)
        make_run(f"runs/b{seed}", "DCL", seed, 0.6 + seed / 20, temperature=0.5)
    comparison = compare_runs()
    assert comparison["differing"] == {"model.objective.temperature": {"MACL": 0.1, "DCL": 0.5}}
    assert "Differs, too: model.objective.temperature is 0.1 in MACL, 0.5 in DCL." in capsys.readouterr().out


def test_all_values_of_allowed_options_are_reported(capsys):
    for seed, size in enumerate((64, 128, 128)):
        sized = {"data.init_args.batch_size": size}
        make_run(f"runs/a{seed}", "MACL", seed, 0.5 + seed / 10, **sized)
        clipped = {"trainer.gradient_clip_val": 0.5, **(sized if seed else {})}
        make_run(f"runs/b{seed}", "DCL", seed, 0.6, **clipped)
    comparison = compare_runs("--allow=gradient_clip_val", "--allow=batch_size")
    assert comparison["differing"] == {
        "data.batch_size": {"MACL": [64, 128], "DCL": [64, 128]},
        "trainer.gradient_clip_val": {"MACL": None, "DCL": 0.5},
    }
    printed = capsys.readouterr().out
    assert "Differs, too: data.batch_size is 64 and 128 in MACL, 64 and 128 in DCL." in printed
    assert "Differs, too: trainer.gradient_clip_val is null in MACL, 0.5 in DCL." in printed


def test_runs_may_differ_in_compared_key_and_data_root():
    for seed in range(2):
        for size in (64, 128):
            options = {"data.init_args.root": f"/data/{seed}{size}", "data.init_args.batch_size": size}
            make_run(f"runs/{size}-{seed}", "MACL", seed, 0.5 + seed / size, **options)
    comparison = compare_runs("--by=batch_size")
    assert {group["name"] for group in comparison["groups"]} == {"64", "128"}


@pytest.mark.parametrize(
    ("objective", "changes", "complaint"),
    [
        (
            "FlatNCE",
            {"data.init_args.batch_size": 128},
            "runs/DCL-0 and runs/x differ in data.batch_size (64, 128): compare --by data.batch_size, "
            "or permit it with --allow data.batch_size",
        ),
        ("FlatNCE", {"trainer.max_epochs": 1}, "runs/DCL-0 and runs/x differ in trainer.max_epochs (2, 1): "),
        (
            "FlatNCE",
            {"data.class_path": "ssl_vision.data.CIFAR10"},
            "runs/DCL-0 and runs/x differ in data (ssl_vision.data.Digits, ssl_vision.data.CIFAR10): ",
        ),
        (
            "FlatNCE",
            {"model.init_args.encoder.init_args.width": 32},
            "runs/DCL-0 and runs/x differ in model.encoder.width (64, 32): compare --by model.encoder.width,",
        ),
        (
            "MACL",
            {"seed": 9, "temperature": 0.5},
            "runs/MACL-0 and runs/x differ in model.objective.temperature (0.1, 0.5): "
            "compare --by model.objective.temperature, or permit it",
        ),
        ("MACL", {}, "runs/MACL-0 and runs/x: both are MACL with seed 0: name only one of the two runs"),
        (
            "MACL",
            {"temperature": 0.5},
            "runs/MACL-0 and runs/x: both are MACL with seed 0: compare --within ",
        ),
        (
            "FlatNCE",
            {"epochs": 1},
            "runs/x is not finished (epoch 1): continue it with ssl-vision fit runs/x",
        ),
    ],
)
def test_run_that_does_not_fit_the_others_is_refused(runs, capsys, objective, changes, complaint):
    make_run(runs / "x", objective, **changes)
    assert compare_error(capsys).startswith(complaint)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "runs/x is not evaluated under the protocol macl: ssl-vision evaluate runs/x --protocol macl"),
        ([row(1, protocol="solo")], "runs/x is not evaluated under the protocol macl: "),
        ([row(1, epoch=1)], "runs/x was evaluated at epoch 1 and has 2 now: ssl-vision evaluate runs/x"),
        (
            [row(1, k=5), row(1, k=20)],
            "runs/x has 2 rows of knn_top1, which differ in k (5, 20): choose one with --row KEY=VALUE",
        ),
        (
            [row(1, options="a 1, b 2"), row(1, options="a 2")],
            "which differ in options (a 1, b 2, a 2): choose",
        ),
        (
            [row(1, lr=0.02), row(1, lr=0.5)],
            "which differ in lr (0.02, 0.5): choose",
        ),
        ([row(1, lr=0.5)], "were evaluated under different conditions: lr is null and 0.5. Evaluate"),
        ([row(1, weight_decay=0.5)], "conditions: weight_decay is null and 0.5. Evaluate"),
        ([row(1, k=5)], "were evaluated under different conditions: k is 200 and 5. Evaluate"),
        (
            [row(1, layer="hidden")],
            "runs/x has no layer 'backbone' in its evaluation.json; available: hidden",
        ),
        ([row(1, metric="knn_top5")], "runs/x has no metric 'knn_top1' in its evaluation.json, did you mean"),
        ([row(float("nan"))], "runs/x: knn_top1 is nan, which cannot be compared"),
    ],
)
def test_an_evaluation_that_cannot_be_compared_is_refused(runs, capsys, rows, complaint):
    make_run(runs / "x", "FlatNCE", 0, rows=rows)
    assert complaint in compare_error(capsys)


def test_hint_for_runs_of_one_objective_and_seed_can_be_followed(runs, capsys):
    make_run(runs / "x", "MACL", 0, temperature=0.5)
    assert main(["compare", "runs/MACL-0", "runs/x"]) == 2
    key = "model.objective.temperature"
    assert f": compare --by {key}, or name only one" in capsys.readouterr().err
    assert main(["compare", "runs/MACL-0", "runs/x", f"--by={key}"]) == 0


def test_runs_may_differ_in_what_a_grid_search_selects(runs):
    for number, objective in enumerate(("A", "B")):
        rows = [row(0.5, metric="grid_top1", lr=0.1 + number, weight_decay=number)]
        make_run(runs.parent / "own" / objective, objective, 0, rows=rows)
    assert main(["compare", "own", "--by=objective", "--metric=grid_top1"]) == 0


def test_equal_rows_are_one():
    for objective in ("A", "B"):
        make_run(f"runs/{objective}", objective, 0, rows=[row(0.5)] * 2)
    assert compare_runs()["groups"][0]["mean"] == pytest.approx(50)


def test_row_option_selects_evaluation_row_by_field(capsys):
    for seed in range(2):
        for objective in ("MACL", "DCL"):
            rows = [row(0.5, k=352), row(0.6 + seed / 10, k=20)]
            make_run(f"runs/{objective}{seed}", objective, seed, rows=rows)
    assert main(["compare", "runs", "--row=k=5"]) == 2
    assert "has no k '5' in its evaluation.json; available: 352, 20" in capsys.readouterr().err
    comparison = compare_runs("--row=k=20")
    assert comparison["groups"][0]["mean"] == pytest.approx(65)
    assert comparison["pairs"][0]["summary"] == "DCL and MACL are equal with each of 2 seeds."


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["absent"], "absent: no such directory"),
        (["runs/MACL-0"], "--by objective: every run has it as MACL: nothing to compare"),
        (["runs/MACL-0", "runs/MACL-1"], "--by objective: every run has it as MACL: nothing to compare"),
        (["runs/MACL-0", "runs/DCL-1"], "no seed is in all groups (DCL: 1; MACL: 0): train the same"),
        (["--by=objectiv"], "no run has 'objectiv' in its config.yaml, did you mean 'objective'?"),
        (["--allow=batchsize"], "no run has 'batchsize' in its config.yaml, did you mean 'batch_size'?"),
        (["--by=seed"], "--by seed: expected a setting; runs are paired by their seeds"),
        (["--baseline=macl"], "--baseline macl: no such group; available: DCL, InfoNCE, MACL"),
        (["--metric=val/rankme"], "runs/DCL-0 has no val/rankme in its metrics.csv"),
        (["--alpha=0"], "alpha must be at least 1e-09 and below 1, got 0"),
        (["--output=x.txt"], "--output x.txt: expected a name that ends in .json, .md, .csv"),
        (["--row=k"], "--row k: expected KEY=VALUE"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_and_write_no_file(runs, capsys, args, complaint):
    assert compare_error(capsys, *args).startswith(complaint)
    assert os.listdir() == ["runs"]


def test_markdown_and_csv_hold_the_tables(runs):
    assert main(["compare", "--output=out.md"]) == main(["compare", "--output=out.csv"]) == 0
    text = Path("out.md").read_text()
    assert "| MACL | 5 | 84.46 | 83.71 to 85.21 | 83.70 | 85.20 |" in re.sub(" +", " ", text)
    assert "- MACL is better than InfoNCE by 0.90 points" in text
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert [float(line["mean"]) for line in rows] == pytest.approx([0.04, 0.9, 0.86])
    assert [float(each) for each in rows[1]["differences"].split()] == pytest.approx(
        list(percent("MACL") - percent("InfoNCE"))
    )


def make_temperature_runs(folder, *, knn=(0.1, 0.1)):
    """Make runs of two seeds at two temperatures of the objective; ``knn`` has the kNN temperatures."""
    for temperature, k in zip((0.1, 0.5), knn, strict=True):
        for seed in (0, 1):
            name, score = f"temperature={temperature},seed_everything={seed}", 0.5 + temperature + seed / 10
            make_run(
                folder / name, "InfoNCE", seed, score, temperature=temperature, metrics={"temperature": k}
            )


def test_setting_can_be_given_by_its_name_in_a_sweep(capsys):
    make_temperature_runs(Path("runs"))
    assert compare_runs("--by=temperature") == compare_runs("--by=model.objective.temperature")
    assert compare_runs("--by=objective.temperature")["by"] == "model.objective.temperature"
    assert [group["name"] for group in compare_runs("--by=temperature")["groups"]] == ["0.5", "0.1"]
    capsys.readouterr()
    assert main(["runs", "--where=temperature=0.5", "--columns=temperature,seed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"temperature": 0.5, "seed": 0},
        {"temperature": 0.5, "seed": 1},
    ]


def test_ambiguous_setting_is_refused_with_candidates(capsys):
    make_temperature_runs(Path("runs"), knn=(0.07, 0.1))
    expected = "'temperature' is ambiguous: choose one of metrics.temperature, model.objective.temperature"
    assert compare_error(capsys, "--by=temperature") == expected
    assert main(["runs", "--columns=temperature"]) == 2
    assert expected in capsys.readouterr().err
    assert "no run has 'temparature'" in compare_error(capsys, "--by=temparature")
