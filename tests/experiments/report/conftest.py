"""Fixtures of an evaluated run and its page."""

import shutil
from pathlib import Path

import pytest
from pages import Page

from ssl_vision.main import main


@pytest.fixture(scope="session")
def evaluated_run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluated copy of the tiny run, with its page; tests must not change it."""
    run = shutil.copytree(tiny_run, tmp_path_factory.mktemp("evaluated") / "tiny")
    assert main(["evaluate", str(run), "--baselines=false"]) == 0
    return run


@pytest.fixture(scope="session")
def page(evaluated_run: Path) -> Page:
    """Page of the evaluated run, written by ``evaluate``."""
    return Page((evaluated_run / "report.html").read_text(encoding="utf-8"))
