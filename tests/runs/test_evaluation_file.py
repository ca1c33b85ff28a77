"""Rows of evaluation.json: which are kept, which are replaced, and which one stands for a run."""

import json

import pytest

from ssl_vision.runs.evaluation_file import merged, preferred, read_rows

CONFIG = {"data": {"class_path": "ssl_vision.data.ImageFolder", "init_args": {"root": "~/a", "test": "test"}}}


def row(value=0.5, **fields):
    """A row as it is written now."""
    same = {"features": "trained", "layer": "backbone", "metric": "knn_top1", "split": "test", "k": 20}
    place = {"data": "ImageFolder", "root": "~/a", "folder": "test", "weights": "w"}
    return same | place | {"value": value, "protocol": "macl", "epoch": 2, "seed": 0} | fields


def before(**fields):
    """A row as version 0.1 wrote it."""
    return {k: v for k, v in row(**fields).items() if k not in ("root", "folder", "weights")}


@pytest.mark.parametrize(
    "change",
    [
        {"root": "~/b"}, {"folder": "other"}, {"data": "Digits"}, {"split": "train"}, {"protocol": "solo"},
        {"layer": "hidden"}, {"k": 5}, {"temperature": 0.1}, {"metric": "linear_top1"}, {"labels": "1%"},
        {"settings": "views.size 8"}, {"features": "untrained"}, {"epoch": 1}, {"seed": 1},
    ],
)  # fmt: skip
def test_a_row_of_another_measurement_stays(change):
    other = row(0.25, **change)
    assert merged([other], [row()]) == [other, row()]


def test_the_same_measurement_is_replaced():
    assert merged([row(0.25)], [row()]) == [row()]
    chosen, again = (row(metric="grid_top1", lr=lr, options="lrs (1, 2)") for lr in (1.0, 2.0))
    assert merged([chosen], [again]) == [again]
    fixed, other = (row(metric="linear_top1", lr=lr, options="epochs 1") for lr in (1.0, 2.0))
    assert merged([fixed], [other]) == [fixed, other]
    longer = other | {"options": "epochs 9"}
    assert merged([other], [longer]) == [other, longer]


def test_rows_of_other_weights_at_the_same_epoch_are_not_mixed_with_new_ones():
    old = [
        row(weights="old", protocol="check"),
        row(weights="old", epoch=1),
        row(features="pixels", weights=None),
    ]
    assert merged(old, [row()]) == [*old[1:], row()]


def test_rows_of_the_first_version_are_read_and_replaced(tmp_path):
    file = tmp_path / "evaluation.json"
    old = [before(), before(metric="linear_top1", lr=0.1), before(protocol="check")]
    del old[2]["data"]
    file.write_text(json.dumps(old))
    read = read_rows(file, CONFIG)
    assert [(each["data"], each["root"], each["folder"]) for each in read] == [
        ("ImageFolder", "~/a", "test")
    ] * 3
    new = [row(0.75), row(0.75, metric="linear_top1", lr=0.1, options="epochs 100")]
    assert merged(read, new) == [read[2], *new]
    assert read_rows(tmp_path / "absent.json", CONFIG) == []


def test_a_row_of_other_data_is_not_taken_for_the_runs_own(tmp_path):
    (tmp_path / "evaluation.json").write_text(json.dumps([before(data="Digits")]))
    (found,) = read_rows(tmp_path / "evaluation.json", CONFIG)
    assert "root" not in found


def test_the_runs_own_data_and_test_split_come_first_wherever_they_stand():
    own, elsewhere, digits = row(), row(root="~/b"), row(data="Digits", root=None)
    train, resized = row(split="train"), row(settings="views.size 8")
    others = [digits, elsewhere, train, resized]
    for rows in ([*others, own], [own, *others], [own, *reversed(others)]):
        assert preferred(rows, CONFIG) == [own]
    assert preferred([digits, elsewhere], CONFIG) == [elsewhere]
    assert preferred([digits], CONFIG) == [digits]
    assert preferred([], CONFIG) == []
