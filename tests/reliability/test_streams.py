"""Tests of stdout: a reader that ends early, and terminals that cannot show every character."""

import shlex
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def runs(tmp_path, tiny_run):
    """A directory with a non-ASCII name that contains a run."""
    shutil.copytree(tiny_run, tmp_path / "图" / "good")
    return tmp_path / "图"


def list_runs(runs, redirection="", **variables):
    """Return exit code, stdout and stderr of ``ssl-vision runs``."""
    command = f"{shlex.quote(sys.executable)} -m ssl_vision runs {shlex.quote(str(runs))} {redirection}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path)), **variables}
    result = subprocess.run(["bash", "-c", command], capture_output=True, env=environment, check=False)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def test_broken_pipe_gives_exit_code_without_message(runs):
    assert list_runs(runs, "| true; exit ${PIPESTATUS[0]}") == (141, "", "")


def test_runs_lists_non_ascii_folder_on_ascii_terminal(runs):
    code, output, error = list_runs(runs, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert (code, error) == (0, "")
    assert "good  finished" in output
