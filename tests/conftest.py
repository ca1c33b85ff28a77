"""Fixtures that several test directories share."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from settings import TINY

from ssl_vision.main import main

gc.disable()  # until all modules are imported
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime sends usage data to its makers


def pytest_collection_finish() -> None:
    """Leave out the imported modules and the tests from garbage collections, which they would slow down."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def no_pages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Disable the report of a run, except in the tests of reports."""
    with pytest.MonkeyPatch.context() as patch:
        if "report" not in request.path.parts:
            patch.setitem(sys.modules, "no_report", SimpleNamespace(write=lambda **page: None))
            patch.setattr("ssl_vision.main._REPORT", "no_report")
        yield


@pytest.fixture(autouse=True)
def fast_polls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the processes of sweeps and papers more often, except in tests that kill them at random."""
    if {"sweeps", "reproduce"} & set(request.path.parts) and "kills" not in request.node.name:
        monkeypatch.setattr("ssl_vision.experiments.sweeps.worker._POLL", 0.01)
        monkeypatch.setattr("ssl_vision.experiments.sweeps.worker._IDLE", 0.1)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the official data sets; tests marked realdata are skipped without it."""
    if "SSL_VISION_DATA" not in os.environ:
        pytest.skip("SSL_VISION_DATA names no folder of real data")
    return Path(os.environ["SSL_VISION_DATA"])


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of MACL on Digits, trained through the command line; tests must not change it."""
    runs = tmp_path_factory.mktemp("runs")
    args = ["--model.objective=MACL", "--model.objective.alpha=3", f"--runs_dir={runs}", "--name=tiny"]
    assert main(["fit", *args, *TINY]) == 0
    return runs / "tiny"
