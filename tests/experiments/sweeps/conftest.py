"""Fixtures for sweeps of a program that trains nothing."""

import sys
from pathlib import Path

import pytest
import yaml

from ssl_vision.main import main

PROGRAM = Path(__file__).parent / "program.py"


@pytest.fixture
def sweep_text():
    """Return a function that makes the text of a sweep file for that program."""

    def text(parameters, *, method="grid", **others):
        content = {
            "method": method,
            "metric": {"name": "score", "goal": "maximize"},
            "parameters": parameters,
            "command": [sys.executable, str(PROGRAM), "${args}"],
        }
        return yaml.safe_dump(content | others, sort_keys=False)

    return text


@pytest.fixture
def sweep_path(sweep_text, tmp_path):
    """Return a function that writes such a text to ``trial.yaml`` and returns the path."""

    def path(*args, **options):
        file = tmp_path / "trial.yaml"
        file.write_text(sweep_text(*args, **options))
        return str(file)

    return path


@pytest.fixture
def sweep():
    """Return a function that runs ``ssl-vision sweep`` with its arguments and returns the exit code."""

    def exit_code(*args):
        try:
            return main(["sweep", *map(str, args)])
        except SystemExit as error:
            return error.code

    return exit_code
