"""Tests of closed, broken, full and ASCII streams: an exit code and at most one line, never a traceback."""

import shlex
import shutil
import subprocess
import sys

import pytest

from ssl_vision.runs.atomic_files import atomic_write

CASES = {
    "stdout closed": (">&-", 0, ""),
    "stderr closed": ("2>&-", 0, ""),
    "all closed": ("<&- >&- 2>&-", 0, ""),
    "stdout full": (">/dev/full", 1, "ssl-vision: stdout cannot be written (No space left on device)\n"),
    "stderr full": ("2>/dev/full", 0, ""),
}


@pytest.fixture
def runs(tmp_path, tiny_run):
    """A directory with a non-ASCII name, a valid run, and a damaged run that causes a line on stderr."""
    shutil.copytree(tiny_run, tmp_path / "图" / "good")
    (tmp_path / "图" / "bad").mkdir()
    (tmp_path / "图" / "bad" / "config.yaml").touch()
    return tmp_path / "图"


def list_runs(runs, redirection, **variables):
    """Return exit code, stdout and stderr of ``ssl-vision runs``, without the lines about the damaged run."""
    command = f"{shlex.quote(sys.executable)} -m ssl_vision runs {shlex.quote(str(runs))} {redirection}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path)), **variables}
    result = subprocess.run(["bash", "-c", command], capture_output=True, env=environment, check=False)
    error = [
        line for line in result.stderr.decode().splitlines(keepends=True) if "bad/config.yaml" not in line
    ]
    return result.returncode, result.stdout.decode(), "".join(error)


@pytest.mark.parametrize("name", CASES)
def test_closed_or_full_stream_gives_exit_code_and_message(name, runs):
    redirection, code, line = CASES[name]
    assert (list_runs(runs, redirection)[0], list_runs(runs, redirection)[2]) == (code, line)


@pytest.mark.parametrize(("to", "code"), [("| true; exit ${PIPESTATUS[0]}", 141), ("2> >(true)", 0)])
def test_broken_pipe_gives_exit_code_without_message(to, code, runs):
    exit_code, _, error = list_runs(runs, to)
    assert (exit_code, error) == (code, "")


@pytest.mark.parametrize(
    "variables",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
    ids=["PYTHONIOENCODING", "LC_ALL"],
)
def test_runs_lists_non_ascii_folder_on_ascii_streams(variables, runs):
    code, output, error = list_runs(runs, "", **variables)
    assert (code, error) == (0, "")
    assert "good  finished" in output


def test_atomic_write_syncs_file_before_renaming_it(tmp_path, monkeypatch):
    synced, target = [], tmp_path / "config.yaml"
    monkeypatch.setattr(
        "ssl_vision.runs.atomic_files.sync", lambda path: synced.append((path, target.exists()))
    )
    with atomic_write(target) as partial:
        partial.write_text("content")
    assert synced == [(partial, False), (tmp_path, True)]
    assert target.read_text() == "content"
