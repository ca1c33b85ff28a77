"""Result rows hold what their runs logged, and the table has means over seeds."""

import importlib.util
import json
import subprocess
from pathlib import Path
from statistics import fmean, stdev

import pytest

from ssl_vision.runs.registry import Run

FILE = Path(__file__).parent.parent / "benchmarks" / "results.py"


@pytest.fixture
def results(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("results", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_a_row_has_settings_and_the_last_validation(results, tiny_run):
    run = Run(tiny_run)
    row = results.row(run, "abc1234")
    assert (row["objective"], row["seed"], row["commit"]) == ("MACL", 0, "abc1234")
    assert row["validation"]["knn_top1"] == run.last("val/knn_top1")
    json.dumps(row)


def test_finished_runs_are_collected_once(results, tiny_run, tmp_path, capsys):
    folder = tmp_path / "sweep"
    (folder / "one").mkdir(parents=True)
    for name in ("config.yaml", "metrics.csv"):
        (folder / "one" / name).write_bytes((tiny_run / name).read_bytes())
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(
        ["git", "-C", str(folder), *author, "commit", "-q", "--allow-empty", "-m", "x"], check=True
    )
    for _ in range(2):
        results.collect(folder)
        assert "1 finished runs, 1 rows in" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "sweep.json").read_text())
    assert len(row["commit"]) >= 7


def test_the_table_has_means_over_seeds(results):
    def row(objective, seed, knn):
        values = dict.fromkeys(results.METRICS, 1.0) | {"knn_top1": knn, "rankme": None}
        same = {"method": "SimCLR", "temperature": 0.1, "test": {"test/knn_top1": knn - 0.1}}
        return same | {"objective": objective, "seed": seed, "validation": values}

    accuracies = [0.5, 0.52, 0.57]
    rows = [row("MACL", seed, knn) for seed, knn in enumerate(accuracies)] + [row("DCL", 0, 0.4)]
    head, _, dcl, macl = results.table(rows).splitlines()
    columns = ["method", "objective", "τ", "seeds", "test kNN %", "test linear %", "validation kNN %"]
    assert head.split(" | ")[:7] == ["| method", *columns[1:]]
    assert dcl.startswith("| SimCLR | DCL | 0.1 | 1 (of 3) | 30.00 |  | 40.00 | 1.000 |")
    mean, deviation = 100 * fmean(accuracies), 100 * stdev(accuracies)
    of_test, of_validation = (f"{value:.2f} ± {deviation:.2f}" for value in (mean - 10, mean))
    assert macl.startswith(f"| SimCLR | MACL | 0.1 | 3 | {of_test} |  | {of_validation} | 1.000 ± 0.000 |")
    assert macl.endswith("|  |")
