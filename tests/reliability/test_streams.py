"""Standard streams that are closed, broken, full or ASCII: a code and a line, never a traceback."""

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
    """A good run in a directory whose name is not ASCII, and one that is a line on stderr."""
    shutil.copytree(tiny_run, tmp_path / "图" / "good")
    (tmp_path / "图" / "bad").mkdir()
    (tmp_path / "图" / "bad" / "config.yaml").touch()
    return tmp_path / "图"


def listed(runs, redirection, **variables):
    """Exit code, stdout and stderr of a shell's command, without the lines of the damaged run."""
    command = f"{shlex.quote(sys.executable)} -m ssl_vision runs {shlex.quote(str(runs))} {redirection}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path)), **variables}
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=environment, check=False)
    error = [line for line in done.stderr.decode().splitlines(keepends=True) if "bad/config.yaml" not in line]
    return done.returncode, done.stdout.decode(), "".join(error)


@pytest.mark.parametrize("name", CASES)
def test_a_stream_that_takes_nothing(name, runs):
    redirection, code, line = CASES[name]
    assert (listed(runs, redirection)[0], listed(runs, redirection)[2]) == (code, line)


@pytest.mark.parametrize(("to", "code"), [("| true; exit ${PIPESTATUS[0]}", 141), ("2> >(true)", 0)])
def test_a_reader_that_has_gone(to, code, runs):
    found, _, error = listed(runs, to)
    assert (found, error) == (code, "")


@pytest.mark.parametrize(
    "variables",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
    ids=["PYTHONIOENCODING", "LC_ALL"],
)
def test_ascii_only(variables, runs):
    code, output, error = listed(runs, "", **variables)
    assert (code, error) == (0, "")
    assert "good  finished" in output


def test_an_output_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced, target = [], tmp_path / "config.yaml"
    monkeypatch.setattr(
        "ssl_vision.runs.atomic_files.sync", lambda path: synced.append((path, target.exists()))
    )
    with atomic_write(target) as partial:
        partial.write_text("content")
    assert synced == [(partial, False), (tmp_path, True)]
    assert target.read_text() == "content"
