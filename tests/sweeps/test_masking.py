"""Tests that values of ``${envvar:NAME}`` reach the trials of a sweep but nothing that it writes."""

import sys
from pathlib import Path

import pytest

from ssl_vision.sweeps.masking import masked, masks

PROGRAM = Path(__file__).parent / "program.py"
SECRET = "s3cr3t/pass'word\\x"


@pytest.fixture
def command(monkeypatch):
    """Return a command that prints the value of a variable and fails."""
    monkeypatch.setenv("TOKEN", SECRET)
    return [sys.executable, str(PROGRAM), "--fails=no access with ${envvar:TOKEN}", "${args}"]


def test_values_are_masked_in_every_form_and_the_longest_first():
    environment = {
        "KEY": "abcd",
        "LONG": "abcdef",
        "FLAG": "1",
        "LINES": "first\nlast",
        "QUOTED": "it's\ttab",
    }
    replacements = masks(environment, environment)
    line = b"1 abcdef abcd last first it's\ttab " + repr("it's\ttab").encode()
    assert masked(line, replacements).decode() == (
        '1 ${envvar:LONG} ${envvar:KEY} ${envvar:LINES} ${envvar:LINES} ${envvar:QUOTED} "${envvar:QUOTED}"'
    )


def test_dry_run_shows_variable_names_instead_of_values(command, sweep, sweep_path, tmp_path, capsys):
    path = sweep_path({"x": {"values": [1, 2]}}, command=command)
    assert sweep(path, f"--runs_dir={tmp_path}/runs", "--dry_run") == 0
    printed = "".join(capsys.readouterr())
    assert SECRET not in printed
    assert printed.count("${envvar:TOKEN}") == 2


def test_sweep_files_and_messages_contain_no_values(command, sweep, sweep_path, tmp_path, capfd):
    path = sweep_path({"x": {"values": [1, 2]}}, command=command)
    folder = tmp_path / "runs" / "trial"
    assert sweep(path, f"--runs_dir={tmp_path}/runs", "--attempts=1") == 1
    trials = [folder / "x=1", folder / "x=2"]
    for trial in trials:  # the trial itself receives the value
        assert f"--fails=no access with {SECRET}" in (trial / "starts").read_text()
        log = (folder / "logs" / f"{trial.name}.log").read_text()
        assert log.splitlines()[-1] == "no access with ${envvar:TOKEN}"
    assert "no access with ${envvar:TOKEN}" in (folder / "sweep.csv").read_text()
    written = [file for file in folder.rglob("*") if file.is_file() and file.parent not in trials]
    assert {"sweep.yaml", "sweep.csv", "sweep.md", "sweep.db", "x=1.log"} <= {file.name for file in written}
    assert [file for file in written if b"s3cr3t" in file.read_bytes()] == []
    assert "s3cr3t" not in "".join(capfd.readouterr())


def test_unstartable_program_is_reported_by_variable_name(sweep, sweep_path, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOKEN", "/s3cr3t/program")
    path = sweep_path({"x": {"values": [1]}}, command=["${envvar:TOKEN}", "${args}"])
    assert sweep(path, f"--runs_dir={tmp_path}/runs") == 2
    error = capsys.readouterr().err
    assert "${envvar:TOKEN} cannot be started" in error
    assert "s3cr3t" not in error
