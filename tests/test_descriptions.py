"""Tests of the metric descriptions: declared once, readable without torch, and equal in the docs."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ssl_vision
from ssl_vision.descriptions import LAYERS, _declarations, _declared, describe, described, description_of
from ssl_vision.methods import Layers
from ssl_vision.metrics import (
    Alignment,
    KNNAccuracy,
    LiDAR,
    RankMe,
    SemanticSensitivity,
    Tolerance,
    Uniformity,
)
from ssl_vision.metrics.representation import Representation

DOCS = Path(__file__).parent.parent / "docs"


def names(section):
    return [metric.name for metric in described(section) if metric.name in _declared()]


def test_sections_have_their_metrics_in_order():
    geometry = ["alignment", "uniformity", "tolerance"]
    assert names("table") == [
        "knn_top1", "linear_top1", "grid_top1", "logistic_top1", "finetune_top1", "online_top1",
        *geometry, "same_cosine", "different_cosine", "sensitivity", "rankme", "spearman", "kendall",
    ]  # fmt: skip
    assert names("curves") == [
        "train/loss", "knn_top1", "online_top1", "train/temperature", "train/alignment",
        *geometry, "sensitivity", "rankme",
    ]  # fmt: skip
    assert names("summary") == ["knn_top1", "online_top1", *geometry, "rankme"]
    assert names("headline") == ["knn_top1", "linear_top1"]
    assert names("progress") == ["train/loss", "knn_top1"]


def test_imported_modules_register_metrics_declared_in_source():
    """A call whose arguments differ from those read from the source would describe its metric twice."""
    package = Path(ssl_vision.__file__).parent
    calls = {file: file.read_text().count("\ndescribe(") for file in package.rglob("*.py")}
    for file in (file for file, count in calls.items() if count):
        importlib.import_module(".".join(["ssl_vision", *file.relative_to(package).with_suffix("").parts]))
    assert sum(calls.values()) == len(_declared()) == len({each.order for each in _declared().values()})


def test_every_representation_metric_is_described():
    representation = Representation(extended=True)
    representation.update(torch.randn(20, 4), torch.arange(20) % 2)
    assert representation.compute().keys() <= _declared().keys()


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (Alignment, "alignment"),
        (KNNAccuracy, "knn_top1"),
        (LiDAR, "lidar"),
        (RankMe, "rankme"),
        (SemanticSensitivity, "sensitivity"),
        (Tolerance, "tolerance"),
        (Uniformity, "uniformity"),
    ],
)
def test_described_direction_matches_metric_class(metric, name):
    directions = {True: "higher", False: "lower", None: "none"}
    assert description_of(name).direction == directions[metric.higher_is_better]


@pytest.mark.parametrize(
    ("logged", "name"),
    [
        ("val/uniformity_projector", "uniformity"),
        ("val/uniformity_hidden", "uniformity"),
        ("val/uniformity", "uniformity"),
        ("train/online_top1", "online_top1"),
        ("train/alignment", "train/alignment"),
        ("val/alignment", "alignment"),
    ],
)
def test_logged_names_resolve_to_their_description(logged, name):
    assert description_of(logged).name == name


def test_described_layers_match_network_layers():
    assert tuple(LAYERS) == Layers._fields


def test_conflicting_or_computed_descriptions_raise_value_error(tmp_path):
    description = {"title": "kept", "unit": "%"}
    assert describe("test_described_once", **description) == describe("test_described_once", **description)
    with pytest.raises(ValueError, match="'test_described_once' is described twice"):
        describe("test_described_once", title="another")
    with pytest.raises(ValueError, match="'uniformity' is described twice"):
        describe("uniformity", title="another")
    (tmp_path / "computed.py").write_text('\nNAME = "x"\ndescribe(NAME, title="x")\n')
    with pytest.raises(ValueError, match="malformed node"):
        list(_declarations(tmp_path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"title": ""}, "expected a name, a title and a unit"),
        ({"title": "x", "direction": "up"}, "direction: expected one of"),
        ({"title": "x", "sections": ("cellar",)}, "sections: expected some of"),
    ],
)
def test_invalid_descriptions_raise_value_error(options, words):
    with pytest.raises(ValueError, match=words):
        describe("test_invalid", **options)


def test_descriptions_are_read_without_torch():
    code = "import sys; from ssl_vision.descriptions import description_of as d; print(d('val/rankme').title)"
    code += "; assert 'torch' not in sys.modules and 'ssl_vision.metrics' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "RankMe\n"


def test_documented_metric_table_matches_descriptions():
    page = (DOCS / "evaluation.md").read_text()
    table = re.search(r"\| metric \| title .*?\n\n", page, flags=re.DOTALL).group().strip().splitlines()
    better = {"higher": "higher", "lower": "lower", "none": ""}
    expected = [
        f"| `{each.name}` | {each.heading} | {better[each.direction]} | {needs} | {each.note} |"
        for each in described()
        if each.name in _declared()
        for needs in (", ".join(each.needs),)
    ]
    assert table[2:] == expected
