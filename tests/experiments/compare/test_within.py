"""Tests of comparisons within each value of a setting, and of the value that is chosen for each group."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from comparable_runs import compare_error, compare_runs, make_run, row
from scipy import stats

from ssl_vision.experiments.compare.statistics import holm
from ssl_vision.main import main

TEMPERATURES = (0.1, 0.2, 0.4)
MEANS = {"InfoNCE": (0.80, 0.83, 0.81), "MACL": (0.84, 0.82, 0.78)}
VALIDATION = {"InfoNCE": (0.70, 0.71, 0.75), "MACL": (0.74, 0.73, 0.72)}


def accuracy(objective, place, seed):
    return MEANS[objective][place] + 0.002 * np.sin(7 * seed + 3 * place + len(objective))


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def runs():
    """Four seeds of two objectives at three temperatures; the best in validation is not the best in test."""
    for objective in MEANS:
        for place, tau in enumerate(TEMPERATURES):
            for seed in range(4):
                path = Path(f"runs/{objective}-{tau}-{seed}")
                rows = [row(accuracy(objective, place, seed)), row(0.3, features="untrained")]
                make_run(path, objective, seed, VALIDATION[objective][place], rows=rows, temperature=tau)
                used = 1.5 * tau if objective == "MACL" else tau
                logged = (path / "metrics.csv").read_text().splitlines()
                lines = [f"{line},{used}" for line in logged[1:]]
                (path / "metrics.csv").write_text(
                    "\n".join([f"{logged[0]},train/temperature", *lines]) + "\n"
                )
    return Path("runs")


def test_pairs_of_all_values_share_one_holm_correction(runs, capsys):
    record = compare_runs("--within=temperature")
    assert record["within"] == "model.objective.temperature"
    differences, p = [], []
    for place in range(3):
        macl, infonce = (
            np.array([100 * accuracy(name, place, seed) for seed in range(4)]) for name in ("MACL", "InfoNCE")
        )
        differences.append((macl - infonce).mean())
        p.append(stats.ttest_rel(macl, infonce).pvalue)
    for tau, difference, corrected in zip(TEMPERATURES, differences, holm(p), strict=True):
        (pair,) = record["comparisons"][str(tau)]["pairs"]
        sign = 1 if pair["first"] == "MACL" else -1
        assert pair["mean"] == pytest.approx(sign * difference)
        assert pair["holm_p"] == pytest.approx(corrected)
    out = capsys.readouterr().out
    assert "Holm-corrected" in out
    assert "temperature 0.4: InfoNCE is better than MACL by" in out


def test_values_chosen_in_validation_are_compared_on_test_images(runs, capsys):
    record = compare_runs("--within=temperature")
    assert record["chosen"] == {"InfoNCE": "0.4", "MACL": "0.1"}
    best = {group["name"]: group["mean"] for group in record["best"]["groups"]}
    for name, place in (("InfoNCE", 2), ("MACL", 0)):
        expected = 100 * np.mean([accuracy(name, place, seed) for seed in range(4)])
        assert best[name] == pytest.approx(expected)
    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines()]
    assert ["MACL,", "last", "τ", "in", "training", "0.15", "0.3", "0.6"] in table
    (line,) = [line for line in table if line[:1] == ["InfoNCE"] and len(line) == 5]
    assert line[-1] == "*"
    assert "* The temperature with the highest mean val/knn_top1, on held-out train images." in out
    assert "Differs, too: model.objective.temperature is 0.4 in InfoNCE, 0.1 in MACL." in out
    assert ["untrained", "network", "30.00", "30.00", "30.00"] in table


def test_nothing_is_chosen_on_test_images(runs, capsys):
    for path in runs.iterdir():
        text = (path / "config.yaml").read_text()
        (path / "config.yaml").write_text(text.replace("root: x", "root: x\n    val: test"))
    assert compare_runs("--within=temperature").keys() == {"within", "comparisons"}
    assert "*" not in capsys.readouterr().out


def test_where_selects_runs(runs, capsys):
    record = compare_runs("--where=temperature=0.2", "--where=status=finished")
    assert [group["name"] for group in record["groups"]] == ["InfoNCE", "MACL"]
    assert compare_error(capsys, "--where=temperature=3") == "none of 24 runs has temperature=3"
    assert "did you mean" in compare_error(capsys, "--where=temprature=3")
    assert "compare --within model.objective.temperature" in compare_error(capsys)
    assert "no value has runs that differ" in compare_error(capsys, "--within=objective", "--by=objective")


def test_tables_and_figures_have_every_value(runs):
    for suffix in ("md", "csv", "svg", "pdf"):
        assert main(["compare", "--within=temperature", f"--output=out.{suffix}"]) == 0
    lines = Path("out.csv").read_text().splitlines()
    assert [line["temperature"] for line in csv.DictReader(lines)] == ["0.1", "0.2", "0.4"]
    text = Path("out.md").read_text()
    assert "| objective " in text
    assert text.count("**") == 4
    figure = Path("out.svg").read_text()
    assert all(word in figure for word in ("0.4", "MACL", "kNN"))
    assert main(["compare", "--where=temperature=0.1", "--output=plain.svg"]) == 0
    assert Path("out.pdf").read_bytes().startswith(b"%PDF")


def test_comparison_at_one_value_equals_that_of_its_runs(runs):
    within = compare_runs("--within=temperature")["comparisons"]["0.2"]
    alone = compare_runs("--where=temperature=0.2")
    for record in (within, alone):
        for pair in record["pairs"]:
            for key in ("holm_p", "resolvable", "summary"):
                del pair[key]
    assert json.dumps(within) == json.dumps(alone)
