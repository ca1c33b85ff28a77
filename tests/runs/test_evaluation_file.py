"""Tests of merging, reading and selecting the rows of evaluation.json."""

import json

import pytest

from ssl_vision.runs.evaluation_file import merged, preferred, read_rows

CONFIG = {"data": {"class_path": "ssl_vision.data.ImageFolder", "init_args": {"root": "~/a", "test": "test"}}}


def row(value=0.5, **fields):
    """A row in the current format."""
    measurement = {"features": "trained", "layer": "backbone", "metric": "knn_top1", "split": "test", "k": 20}
    data = {"data": "ImageFolder", "root": "~/a", "folder": "test", "weights": "w"}
    return measurement | data | {"value": value, "protocol": "macl", "epoch": 2, "seed": 0} | fields


@pytest.mark.parametrize(
    "change",
    [
        {"root": "~/b"}, {"folder": "other"}, {"data": "Digits"}, {"split": "train"}, {"protocol": "solo"},
        {"layer": "hidden"}, {"k": 5}, {"temperature": 0.1}, {"metric": "linear_top1"}, {"labels": "1%"},
        {"settings": "views.size 8"}, {"features": "untrained"}, {"epoch": 1}, {"seed": 1},
    ],
)  # fmt: skip
def test_merged_keeps_row_of_another_measurement(change):
    other = row(0.25, **change)
    assert merged([other], [row()]) == [other, row()]


def test_merged_replaces_row_of_same_measurement():
    assert merged([row(0.25)], [row()]) == [row()]
    grid, new_grid = (row(metric="grid_top1", lr=lr, options="lrs (1, 2)") for lr in (1.0, 2.0))
    assert merged([grid], [new_grid]) == [new_grid]
    linear, other_lr = (row(metric="linear_top1", lr=lr, options="epochs 1") for lr in (1.0, 2.0))
    assert merged([linear], [other_lr]) == [linear, other_lr]
    more_epochs = other_lr | {"options": "epochs 9"}
    assert merged([other_lr], [more_epochs]) == [other_lr, more_epochs]


def test_merged_drops_rows_of_other_weights_at_same_epoch():
    old = [
        row(weights="old", protocol="check"),
        row(weights="old", epoch=1),
        row(features="pixels", weights=None),
    ]
    assert merged(old, [row()]) == [*old[1:], row()]


def test_rows_are_read_from_file_and_none_without_one(tmp_path):
    file = tmp_path / "evaluation.json"
    file.write_text(json.dumps([row()]))
    assert read_rows(file) == [row()]
    assert read_rows(tmp_path / "absent.json") == []


def test_preferred_selects_own_data_and_test_split_in_any_order():
    own, other_root, digits = row(), row(root="~/b"), row(data="Digits", root=None)
    train, resized = row(split="train"), row(settings="views.size 8")
    others = [digits, other_root, train, resized]
    for rows in ([*others, own], [own, *others], [own, *reversed(others)]):
        assert preferred(rows, CONFIG) == [own]
    assert preferred([digits, other_root], CONFIG) == [other_root]
    assert preferred([digits], CONFIG) == [digits]
    assert preferred([], CONFIG) == []
