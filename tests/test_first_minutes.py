"""What a newcomer's first commands print: of ours all, of the libraries' own nothing."""

import os
import re
import subprocess
import sys

import pytest
from settings import TINY

OURS = re.compile(
    r"(epoch|training|validation|embed|linear probe|loading|kNN|geometry|nearest neighbours)\b[^:]*: "
)
"""How the lines begin that a long job writes where there is no terminal."""


def run(*args):
    """A command as a person starts it, without what pytest and continuous integration set."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONWARNINGS"))}
    result = subprocess.run(
        [sys.executable, "-m", "ssl_vision", *args],
        capture_output=True, text=True, timeout=240, check=False, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.long
def test_the_demo_prints_results_and_no_warning_of_another(tmp_path):
    args = [option for option in TINY if "progress" not in option]
    fit = run("fit", *args, f"--runs_dir={tmp_path}", "--name=demo", "--trainer.max_epochs=1")
    assert [line for line in fit.stderr.splitlines() if not OURS.match(line)] == []
    assert fit.stdout.startswith("demo: 1 epoch in ")
    evaluate = run("evaluate", str(tmp_path / "demo"), "--probe.epochs=2")
    assert [line for line in evaluate.stderr.splitlines() if not OURS.match(line)] == []
    assert evaluate.stdout.startswith("Digits: test split (360 images)")
    assert evaluate.stdout.endswith(f"report: {tmp_path / 'demo' / 'report.html'}\n")
