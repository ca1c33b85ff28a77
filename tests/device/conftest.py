"""Fixtures for the fake device and for the results of a test file's cases on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_device
import pytest
import torch

LAUNCHES = Path(__file__).with_name("launches.json")


@pytest.fixture(scope="session")
def libraries(request: pytest.FixtureRequest) -> Path:
    """Directory of the fake device's libraries; its tests are skipped where they cannot be built."""
    if reason := fake_device.reason_to_skip():
        pytest.skip(reason)
    return fake_device.build(request.config.cache.mkdir("fake_device"))


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, libraries: Path) -> dict[str, Any]:
    """Results of the test file, run as a program in one process, for the cases of all selected tests."""
    here = [item for item in request.session.items if item.path == request.path]
    specs = [item.callspec for item in here if hasattr(item, "callspec")]
    cases = dict.fromkeys(str(spec.params["case"]) for spec in specs if "case" in spec.params)
    return fake_device.run(libraries, request.path, cases)


@pytest.fixture
def result(results: dict[str, Any], case: str) -> Any:
    """Result of the test file for the case of one test."""
    value = results[case]
    assert "error" not in value, value["error"]
    return value


@pytest.fixture(scope="session")
def launches() -> Callable[[str, int], bool]:
    """A function that compares the launches of a case with launches.json, recorded with one torch version."""
    record = json.loads(LAUNCHES.read_text())
    same_version = torch.__version__.split("+")[0] == record["torch"]

    def within(case: str, count: int) -> bool:
        recorded = record["launches"].get(case)
        assert recorded is not None, f"add {case!r}: {count} to {LAUNCHES.name}"
        assert not same_version or count <= recorded, f"{case}: {count} launches, {recorded} recorded"
        return True

    return within
