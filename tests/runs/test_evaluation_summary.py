"""Tests of the names and values of an evaluation in tables and in the W&B summary."""

import pytest

from ssl_vision.runs.config import DATA_OF_ROOT, differences
from ssl_vision.runs.evaluation_file import evaluation_summary

OWN = {"data": {"class_path": "ssl_vision.data.CIFAR10", "init_args": {"root": "data"}}}
BASE = {
    "features": "trained", "layer": "backbone", "metric": "knn_top1", "value": 0.5, "split": "test",
    "epoch": 3, "protocol": "macl", "data": "CIFAR10", "root": "data", "augmentation": "none",
}  # fmt: skip


def summary(*changes):
    return evaluation_summary([BASE | change for change in changes], OWN, epoch=3)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "test/knn_top1"),
        ({"layer": "projector", "metric": "linear_top1"}, "test/linear_top1_projector"),
        ({"protocol": "lightly", "k": 200}, "test/lightly/knn_top1"),
        ({"split": "val"}, "evaluation/knn_top1"),
    ],
)
def test_summary_gives_rows_short_names(change, name):
    assert summary(change) == {name: 0.5}


@pytest.mark.parametrize(
    "change",
    [
        {"features": "untrained"},
        {"epoch": 2},
        {"data": "CIFAR100"},
        {"settings": "views.size 64"},
        {"metric": "feature_std"},  # in no table
    ],
)
def test_summary_omits_other_networks_epochs_images_and_metrics(change):
    assert summary(change) == {}


def test_summary_names_contain_only_distinguishing_fields():
    rows = [{"protocol": "dinov2", "k": k, "temperature": 0.07, "value": k} for k in (10, 20)]
    assert summary(*rows) == {"test/dinov2/k=10/knn_top1": 10, "test/dinov2/k=20/knn_top1": 20}
    linear = {"metric": "linear_top1", "protocol": "dkobak"}
    plain, augmented = (linear | {"augmentation": augmentation} for augmentation in ("none", "crop"))
    assert list(summary(plain, augmented)) == ["test/dkobak/linear_top1", "test/dkobak/crop/linear_top1"]


def test_summary_states_training_options_only_where_nothing_else_differs():
    linear = {"metric": "linear_top1", "protocol": "mine", "weight_decay": 0.0}
    slow = linear | {"lr": 0.001, "options": "epochs 9, momentum 0.9", "value": 0.1}
    fast = linear | {"lr": 0.5, "options": "epochs 2, momentum 0.9", "value": 0.2}
    assert summary(slow) == {"test/mine/linear_top1": 0.1}
    assert summary(slow, fast) == {
        "test/mine/lr=0.001/epochs=9/linear_top1": 0.1, "test/mine/lr=0.5/epochs=2/linear_top1": 0.2,
    }  # fmt: skip
    few = fast | {"labels": "1%"}
    assert summary(slow, few) == {"test/mine/linear_top1": 0.1, "test/mine/1% labels/linear_top1": 0.2}
    grid, other_grid = (
        row | {"metric": "grid_top1", "options": "lrs (1, 2), epochs 2"} for row in (slow, fast)
    )
    assert summary(grid, other_grid) == {"test/mine/grid_top1": 0.2}
    assert list(summary(grid, other_grid | {"options": "lrs (1, 3), epochs 2"})) == [
        "test/mine/lrs=(1, 2)/grid_top1", "test/mine/lrs=(1, 3)/grid_top1",
    ]  # fmt: skip


def test_summary_keeps_last_of_two_rows_with_same_name():
    first, second = ({"metric": "linear_top1", "lr": lr, "value": lr} for lr in (0.1, 0.2))
    assert summary(first, second) == {"test/linear_top1": 0.2}
    assert summary({"k": 200}, {"k": 20, "value": 0.7}) == {"test/knn_top1": 0.7}


def test_summary_ignores_root_of_built_in_dataset():
    assert summary({"root": "~/elsewhere"}) == {"test/knn_top1": 0.5}


@pytest.mark.parametrize("name", DATA_OF_ROOT)
def test_root_identifies_dataset_of_user_files(name):
    own = {"data": {"class_path": f"ssl_vision.data.{name}", "init_args": {"root": "a"}}}
    rows = [BASE | {"data": name, "root": root, "value": value} for root, value in (("a", 0.9), ("b", 0.2))]
    assert evaluation_summary(rows, own, epoch=3) == {"test/knn_top1": 0.9}
    other_root = {"data": own["data"] | {"init_args": {"root": "b"}}}
    assert len(differences(own, other_root)) == 1
    assert not differences(own, other_root, moved=True)


def test_summary_accepts_validation_split_but_no_other_test_folder():
    config = {
        "data": {"class_path": "ssl_vision.data.ImageFolder", "init_args": {"root": "x", "test": "test"}}
    }
    row = BASE | {"data": "ImageFolder", "root": "x", "split": "val", "folder": "val"}
    assert evaluation_summary([row], config, epoch=3) == {"evaluation/knn_top1": 0.5}
    assert evaluation_summary([row | {"split": "test", "folder": "other"}], config, epoch=3) == {}
