"""Test that a newcomer's first commands print our own output and nothing from other libraries."""

import os
import re
import subprocess
import sys

import pytest
from settings import TINY

PROGRESS_LINE = re.compile(
    r"(epoch|training|validation|embed|linear probe|loading|kNN|geometry|nearest neighbours)\b[^:]*: "
)
"""Beginning of the progress lines that a long job writes without a terminal."""


def run(*args):
    """Run a command as a user would, without the environment variables of pytest and CI."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONWARNINGS"))}
    result = subprocess.run(
        [sys.executable, "-m", "ssl_vision", *args],
        capture_output=True, text=True, timeout=240, check=False, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.long
def test_demo_prints_results_without_library_warnings(tmp_path):
    args = [option for option in TINY if "progress" not in option]
    fit = run("fit", *args, f"--runs_dir={tmp_path}", "--name=demo", "--trainer.max_epochs=1")
    assert [line for line in fit.stderr.splitlines() if not PROGRESS_LINE.match(line)] == []
    assert fit.stdout.startswith("demo: 1 epoch in ")
    evaluate = run("evaluate", str(tmp_path / "demo"), "--protocol=solo")
    assert [line for line in evaluate.stderr.splitlines() if not PROGRESS_LINE.match(line)] == []
    assert evaluate.stdout.startswith("Digits: test split (360 images)")
    assert evaluate.stdout.endswith(f"report: {tmp_path / 'demo' / 'report.html'}\n")
