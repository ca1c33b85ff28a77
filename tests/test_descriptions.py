"""Tests of the metric descriptions: attributes of classes, readable without torch, and equal in the docs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ssl_vision.catalogue import catalogue
from ssl_vision.descriptions import (
    CATALOGUE,
    LAYERS,
    DescribedMetric,
    MetricDescription,
    _built_in,
    described,
    description_of,
    stored_description,
)
from ssl_vision.methods import Layers
from ssl_vision.metrics import Uniformity
from ssl_vision.metrics.collection import Representation

DOCS = Path(__file__).parent.parent / "docs"


def names(section):
    return [metric.name for metric in described(section) if metric.name in _built_in()]


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


def test_catalogue_is_current():
    """Of the trainer's options, which each version of Lightning describes, only names are compared."""
    stored, current = json.loads(CATALOGUE.read_text()), json.loads(json.dumps(catalogue()))
    for contents in (stored, current):
        contents["options"] = [
            option[0] if option[0].startswith("trainer.") else option for option in contents["options"]
        ]
    assert stored == current, "run `make catalogue`, or python -m ssl_vision.catalogue"
    assert len({each.order for each in _built_in().values()}) == len(_built_in())


def test_every_representation_metric_is_described():
    representation = Representation(extended=True)
    representation.update(torch.randn(20, 4), torch.arange(20) % 2)
    assert representation.compute().keys() <= _built_in().keys()


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


def metric(cls="Own", **attributes):
    return type(cls, (DescribedMetric,), attributes)


def test_class_attributes_describe_metric():
    class Own(Uniformity):
        metric_name = "test_own"
        title = "own"
        unit = "%"

    own = description_of("val/test_own_projector")
    assert own == MetricDescription(
        "test_own", "own", "%", "lower", Uniformity.sections, note=Uniformity.note, order=Uniformity.order
    )
    assert stored_description("test_own") == {"title": "own", "unit": "%", "direction": "lower"}
    assert stored_description("uniformity") == {}


def test_conflicting_descriptions_raise_value_error():
    for _ in range(2):  # as in a module that is imported again
        metric(metric_name="test_described_once", title="kept", unit="%")
    with pytest.raises(ValueError, match="'test_described_once' of Other is already described"):
        metric("Other", metric_name="test_described_once", title="another")
    with pytest.raises(ValueError, match="'uniformity' of Own is already described"):
        metric(metric_name="uniformity", title="another")


def test_class_that_is_defined_again_replaces_its_description():
    """As in a cell of a notebook that is edited and run again."""
    for title in ("first", "second"):
        metric(metric_name="test_described_again", title=title)
    assert description_of("test_described_again").title == "second"


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, "expected a name, a title and a unit"),
        ({"title": "x", "higher_is_better": "up"}, "direction: expected one of"),
        ({"title": "x", "sections": ("cellar",)}, "sections: expected some of"),
    ],
)
def test_invalid_descriptions_raise_value_error(attributes, words):
    with pytest.raises(ValueError, match=words):
        metric(metric_name="test_invalid", **attributes)


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
        if each.name in _built_in()
        for needs in (", ".join(each.needs),)
    ]
    assert table[2:] == expected
