"""Names and values of an evaluation in tables and in W&B's summary."""

import pytest

from ssl_vision.runs.evaluation_summary import evaluation_summary
from ssl_vision.runs.folder import DATA_OF_ROOT, differences

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
def test_a_row_has_a_short_name(change, name):
    assert summary(change) == {name: 0.5}


@pytest.mark.parametrize(
    "change",
    [
        {"features": "untrained"},
        {"epoch": 2},
        {"data": "CIFAR100"},
        {"settings": "views.size 64"},
        {"metric": "nc1"},  # in no table
    ],
)
def test_other_networks_epochs_and_images_have_none(change):
    assert summary(change) == {}


def test_what_tells_rows_apart_is_in_the_name_and_nothing_else():
    rows = [{"protocol": "dinov2", "k": k, "temperature": 0.07, "value": k} for k in (10, 20)]
    assert summary(*rows) == {"test/dinov2/k=10/knn_top1": 10, "test/dinov2/k=20/knn_top1": 20}
    linear = {"metric": "linear_top1", "protocol": "dkobak"}
    plain, augmented = (linear | {"augmentation": each} for each in ("none", "crop"))
    assert list(summary(plain, augmented)) == ["test/dkobak/linear_top1", "test/dkobak/crop/linear_top1"]


def test_the_last_of_two_measurements_of_one_name_counts():
    first, second = ({"metric": "linear_top1", "lr": lr, "value": lr} for lr in (0.1, 0.2))
    assert summary(first, second) == {"test/linear_top1": 0.2}
    assert summary({"k": 200}, {"k": 20, "value": 0.7}) == {"test/knn_top1": 0.7}


def test_the_root_of_a_data_set_is_a_place():
    assert summary({"root": "~/elsewhere"}) == {"test/knn_top1": 0.5}


@pytest.mark.parametrize("name", DATA_OF_ROOT)
def test_the_root_of_files_is_the_data_set(name):
    own = {"data": {"class_path": f"ssl_vision.data.{name}", "init_args": {"root": "a"}}}
    rows = [BASE | {"data": name, "root": root, "value": value} for root, value in (("a", 0.9), ("b", 0.2))]
    assert evaluation_summary(rows, own, epoch=3) == {"test/knn_top1": 0.9}
    other = {"data": own["data"] | {"init_args": {"root": "b"}}}
    assert len(differences(own, other)) == 1
    assert not differences(own, other, moved=True)


def test_a_row_with_an_invalid_description_is_in_no_table():
    assert summary({"metric": "mine", "title": "mine", "direction": "sideways"}) == {}


def test_corruptions_are_one_mean_without_the_clean_images():
    rows = [
        {
            "metric": "corrupted_knn_top1",
            "protocol": "robustness",
            "corruption": each,
            "severity": s,
            "value": v,
        }
        for each, s, v in (("none", 0, 0.9), ("noise", 1, 0.5), ("noise", 2, 0.3), ("blur", 1, 0.7))
    ]
    assert summary(*rows) == {"test/robustness/corrupted_knn_top1": pytest.approx(0.5)}


def test_a_folder_without_a_test_split_is_measured_on_its_validation_images():
    config = {
        "data": {"class_path": "ssl_vision.data.ImageFolder", "init_args": {"root": "x", "test": "test"}}
    }
    row = BASE | {"data": "ImageFolder", "root": "x", "split": "val", "folder": "val"}
    assert evaluation_summary([row], config, epoch=3) == {"evaluation/knn_top1": 0.5}
    assert evaluation_summary([row | {"split": "test", "folder": "other"}], config, epoch=3) == {}
