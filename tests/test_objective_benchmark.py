"""Test of benchmarks/objectives.py: the sweep of errors covers the InfoNCE family."""

from pathlib import Path

import pytest
from scripts import import_script

pytestmark = pytest.mark.docs

FILE = Path(__file__).parent.parent / "benchmarks" / "objectives.py"


def test_errors_are_measured_for_every_contrastive_objective_without_labels(monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    names = {preset.__name__ for preset in import_script(FILE).contrastive_presets()}
    macl = {"MACL", "MACLb", "MACLc", "MACLICML"}
    other = {"InfoNCE", "DCL", "DCLW", "DCLPlus", "FlatNCE", "DualTemperature", "AdaptiveInfoNCE", "ArcCon"}
    assert names == macl | other
