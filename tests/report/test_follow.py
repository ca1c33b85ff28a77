"""Tests of ``ssl-vision report --follow``, the page of a run that is training."""

import shutil
import time

import pytest

from ssl_vision.main import main
from ssl_vision.runs.folder import RunFolder


@pytest.fixture
def training(tmp_path, tiny_run):
    """Run whose lock is held, as while it trains, and the function that ends it."""
    path = tmp_path / "run"
    shutil.copytree(tiny_run, path)
    lock = RunFolder(path).lock
    lock.take()
    yield path, lock.release
    lock.release()


def test_the_report_follows_validations_until_the_run_ends(training, monkeypatch, capsys):
    path, end = training
    pages = []

    def validate():
        rows = (path / "metrics.csv").read_text().splitlines()
        (path / "metrics.csv").write_text("\n".join([*rows, rows[-1], ""]))

    steps = iter([lambda: None, validate, end])

    def sleep(seconds):
        assert seconds > 0
        pages.append((path / "report.html").read_text(encoding="utf-8"))
        next(steps)()

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["report", str(path), "--follow", "--embed=false"]) == 0
    assert capsys.readouterr().out.count("written to") == 3
    pages.append((path / "report.html").read_text(encoding="utf-8"))
    assert ["data-reload" in page for page in pages] == [True, True, True, False]
    assert ["The run is training" in page for page in pages] == [True, True, True, False]


def test_the_report_of_a_finished_run_is_written_once(tiny_run, tmp_path, capsys):
    output = tmp_path / "report.html"
    assert main(["report", str(tiny_run), "--follow", "--embed=false", f"--output={output}"]) == 0
    assert capsys.readouterr().out.count("written to") == 1
    assert "data-reload" not in output.read_text(encoding="utf-8")


def test_only_one_run_is_followed(tiny_run, tmp_path, capsys):
    for name in "ab":
        shutil.copytree(tiny_run, tmp_path / name)
    assert main(["report", str(tmp_path), "--follow"]) == 2
    assert capsys.readouterr().err.endswith("--follow requires one run, and the paths contain 2\n")
