"""Tests that the figures of results show the values of the committed rows."""

import importlib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from scripts import import_script

pytestmark = pytest.mark.docs

FILE = Path(__file__).parent.parent / "benchmarks" / "figures.py"


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    return import_script(FILE)


def test_curves_keep_only_steps_common_to_all_seeds(figures):
    rows = [
        {"objective": "DCL", "curves": {"val/knn_top1": [[10, 0.5], [20, 0.25]]}},
        {"objective": "DCL", "curves": {"val/knn_top1": [[10, 0.75], [30, 0.1]]}},
        {"objective": "MPT", "curves": {}},
    ]
    assert figures.curves(rows, "val/knn_top1", 100) == {"DCL": {10: [50, 75]}}


def test_term_values_match_unified_gradient_table(figures):
    head, *lines = importlib.import_module("paper_tables").unified_gradient("ratio")
    for line in lines:
        mean = dict(zip(head, line, strict=True))["kNN %"].split()[0]
        values = figures.terms("ratio")[figures.ACCURACY][float(line[0])]
        assert f"{sum(values) / len(values):.2f}" == mean


@pytest.mark.parametrize("name", ["gradient_dissipation", "unified_gradient"])
def test_committed_figure_matches_committed_rows(figures, name):
    root = ElementTree.parse(figures.DOCS / f"{name}.svg").getroot()
    texts = {element.text for element in root.iter() if element.text}
    assert figures.digest(name) in texts
    panels = figures.panels_of(name)
    assert texts >= panels.keys() | {line for lines in panels.values() for line in lines}
