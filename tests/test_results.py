"""Tests of benchmarks/results.py: rows match their runs, and the tables on the pages are current."""

import json
import subprocess
from pathlib import Path

import pytest
from scripts import import_script

from ssl_vision.runs.registry import Run

pytestmark = pytest.mark.docs

FILE = Path(__file__).parent.parent / "benchmarks" / "results.py"


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)


@pytest.fixture
def results(monkeypatch, tmp_path):
    module = import_script(FILE)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_a_row_has_settings_and_the_last_validation(results, tiny_run):
    run = Run(tiny_run)
    row = results.row(run, {"commit": "abc1234"})
    assert (row["objective"], row["seed"], row["commit"]) == ("MACL", 0, "abc1234")
    assert row["images_per_second"] > 0
    assert row["validation"]["knn_top1"] == run.last("val/knn_top1")
    json.dumps(row)


def test_finished_runs_are_collected_once(results, tiny_run, tmp_path, capsys):
    folder = tmp_path / "sweep"
    (folder / "one").mkdir(parents=True)
    for name in ("config.yaml", "metrics.csv", "times.csv"):
        (folder / "one" / name).write_bytes((tiny_run / name).read_bytes())
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(
        ["git", "-C", str(folder), *author, "commit", "-q", "--allow-empty", "-m", "x"], check=True
    )
    for command in ("ssl-vision fit", None):
        results.collect(folder, command)
        assert "1 finished runs, 1 rows in" in capsys.readouterr().out
        (row,) = json.loads((tmp_path / "sweep.json").read_text())
        assert len(row["commit"]) >= 7
        assert row["command"] == (command or "ssl-vision sweep configs/sweep/sweep.yaml")


def test_rows_of_a_gpu_job_have_the_provenance_of_its_record(results, tiny_run, tmp_path):
    record = tmp_path / "paper.json"
    record.write_text(json.dumps({"job": "paper", "commit": "abc1234", "device": "H100", "seconds": 9.0}))
    results.collect(tiny_run, record=record)
    (row,) = json.loads((tmp_path / f"{tiny_run.name}.json").read_text())
    assert (row["commit"], row["device"]) == ("abc1234", "H100")
    assert row["seconds"] == Run(tiny_run).seconds


def test_shortened_curves_keep_first_and_last_points(results, tiny_run, monkeypatch):
    run = Run(tiny_run)
    points = [(step, value) for step, _, value in run.curve("train/loss")]
    assert len(points) > 3
    assert results.curve(run, "train/loss") == points[:10]
    monkeypatch.setattr(results, "_POINTS", 2)
    assert results.curve(run, "train/loss") == [points[0], points[-1]]


def test_pages_have_the_tables_of_the_committed_rows(results):
    for page in results.PAGES:
        text = page.read_text()
        assert "<!-- results: " in text
        assert results.rendered(text) == text
