"""Tests of ``ssl-vision choose`` on hand-made run directories."""

import json
import math

import pytest
import yaml

from ssl_vision.experiments.compare import choose as module
from ssl_vision.experiments.compare.choose import orientation
from ssl_vision.main import main

GOOD = {
    "data": "Digits",
    "augmentation": "same",
    "metric": "rankme",
    "accuracy": "linear_top1",
    "runs": 24,
    "spearman": 0.8,
    "low": 0.5,
    "high": 0.9,
    "regret": 0.0125,
    "random_regret": 0.06,
    "gain_low": 0.02,
    "gain_high": 0.055,
}


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Function that writes the measurements that the command reads."""
    file = tmp_path / "evidence.json"
    monkeypatch.setattr(module, "FILE", file)
    monkeypatch.chdir(tmp_path)
    return lambda *rows: file.write_text(json.dumps([GOOD | row for row in rows]))


def make_run(path, *values, metric="rankme", epochs=None, data="Digits", width=4, scale=0.1, options=None):
    """Write a run with these validation values of a metric; it is unfinished if ``epochs`` is higher."""
    config = {
        "seed_everything": 0,
        "model": {"init_args": {"encoder": {"class_path": "ResNet", "init_args": {"width": width}}}},
        "data": {"class_path": data, "init_args": {"views": {"scale": [scale, 1]}, **(options or {})}},
        "trainer": {"max_epochs": epochs or len(values)},
    }
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [f"{4 * i + 3},{i},{value}" for i, value in enumerate(values)]
    (path / "metrics.csv").write_text("\n".join([f"step,epoch,val/{metric}", *lines]) + "\n")


def choose(capsys, *args):
    assert main(["choose", *args]) == 0
    return capsys.readouterr().out.splitlines()


def test_run_with_best_last_value_is_recommended_with_correlation(measured, tmp_path, capsys):
    measured({}, {"data": "CIFAR10", "spearman": -0.5, "low": -0.8})
    for name, values in {"a": (9, 5), "b": (1, 7), "c": (2, 6)}.items():
        make_run(tmp_path / "runs" / name, *values)
    lines = choose(capsys)
    assert [line.split() for line in lines[1:4]] == [
        [f"runs/{name}", "2", f"{value}.000"] for name, value in (("b", 7), ("c", 6), ("a", 5))
    ]
    assert lines[-2:] == [
        "Digits, 24 runs with the same augmentation: Spearman's correlation of RankMe with linear accuracy "
        "is 0.80 (95 % interval 0.50 to 0.90). Regret: 1.25 points (at random, 6.00; "
        "95 % interval of the gain 2.00 to 5.50).",
        "Recommended: runs/b, epoch 2.",
    ]


def test_a_better_earlier_epoch_is_stated(measured, tmp_path, capsys):
    measured({})
    make_run(tmp_path / "runs" / "a", 5, 9, 8)
    make_run(tmp_path / "runs" / "b", 1, 2, 3)
    *_, recommended, earlier = choose(capsys)
    assert recommended == "Recommended: runs/a, epoch 3."
    assert earlier.startswith("Its RankMe was better after epoch 2, but")


def test_an_earlier_value_that_is_not_finite_is_not_better(measured, tmp_path, capsys):
    measured({})
    make_run(tmp_path / "runs" / "a", math.nan, 5, 7)
    make_run(tmp_path / "runs" / "b", 1, 2, 3)
    assert choose(capsys)[-1] == "Recommended: runs/a, epoch 3."


def test_run_whose_metric_is_missing_at_last_validation_is_skipped(measured, tmp_path, capsys):
    measured({})
    make_run(tmp_path / "runs" / "a", 2, 2)
    make_run(tmp_path / "runs" / "b", 1, 1)
    make_run(tmp_path / "runs" / "c", 9, 9)
    # RankMe of features that are not finite is not logged
    (tmp_path / "runs" / "c" / "metrics.csv").write_text(
        "step,epoch,val/rankme,val/knn_top1\n3,0,9,1\n7,1,,0.1\n"
    )
    assert main(["choose"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "Recommended: runs/a, epoch 2."
    assert err == "ssl-vision choose: skipped 1 of 3 runs: without val/rankme at the last validation\n"


def test_compiled_views_are_the_same_augmentation(measured, tmp_path, capsys):
    measured({"metric": "alignment"})
    views = {"scale": [0.1, 1], "compile": True}
    make_run(tmp_path / "runs" / "a", 1, metric="alignment")
    make_run(tmp_path / "runs" / "b", 2, metric="alignment", options={"views": views})
    assert choose(capsys, "--by=alignment")[-1] == "Recommended: runs/a, epoch 1."


def test_lower_uniformity_and_alignment_are_better(measured, tmp_path, capsys):
    measured({"metric": "uniformity"})
    for name, value in (("a", -1.5), ("b", -2.5), ("c", float("nan"))):
        make_run(tmp_path / "runs" / name, value, metric="uniformity")
    assert choose(capsys, "--by=uniformity")[-1] == "Recommended: runs/b, epoch 1."
    signs = {name: orientation(name) for name in ("rankme", "effective_rank", "lidar", "sensitivity")}
    assert set(signs.values()) == {1}
    assert orientation("alignment") == -1


@pytest.mark.parametrize(
    ("rows", "end"),
    [
        ([{"low": -0.1}], "the intervals are not both above 0 on Digits."),
        ([{"gain_low": 0.0}], "the intervals are not both above 0 on Digits."),
        ([], "RankMe was not compared with test accuracy on any data set."),
        ([{"metric": "lidar"}], "RankMe was not compared with test accuracy on any data set."),
        (
            [{"data": "A"}, {"data": "B", "low": 0}, {"data": "C"}],
            "the intervals are not both above 0 on B.",
        ),
    ],
    ids=["interval", "gain", "no rows", "other metric", "other data"],
)
def test_without_a_measured_correlation_nothing_is_recommended(measured, tmp_path, capsys, rows, end):
    measured(*rows)
    for name in "ab":
        make_run(tmp_path / "runs" / name, 1)
    lines = choose(capsys)
    assert lines[-1] == f"Cannot tell: {end}"
    assert not any("Recommended" in line for line in lines)


def test_correlation_on_other_data_sets_suffices_if_all_agree(measured, tmp_path, capsys):
    measured({"data": "A"}, {"data": "B"})
    for name in "ab":
        make_run(tmp_path / "runs" / name, 1)
    *_, note, _, _, last = choose(capsys)
    assert note == "RankMe was not compared with test accuracy on Digits, but on other data sets."
    assert last == "Recommended: runs/a, epoch 1."


def test_runs_may_differ_in_batch_size_and_resizing(measured, tmp_path, capsys):
    measured({})
    make_run(tmp_path / "runs" / "a", 1, options={"progressive_resizing": {1: 8}})
    make_run(tmp_path / "runs" / "b", 2, options={"batch_size": 8})
    assert choose(capsys)[-1] == "Recommended: runs/b, epoch 1."


def test_unfinished_runs_are_skipped_and_one_run_is_not_enough(measured, tmp_path, capsys):
    measured({})
    make_run(tmp_path / "runs" / "a", 1, 2)
    make_run(tmp_path / "runs" / "b", 9, epochs=2)
    assert main(["choose"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "Cannot tell: there is only one finished run with val/rankme."
    assert err == "ssl-vision choose: skipped 1 of 2 runs: not finished\n"


def test_correlation_with_different_augmentation_is_noted(measured, tmp_path, capsys):
    measured({"metric": "alignment"}, {"metric": "alignment", "augmentation": "different", "runs": 48})
    for name, scale in (("a", 0.1), ("b", 0.5)):
        make_run(tmp_path / "runs" / name, 1, metric="alignment", scale=scale)
    correlation, note, _ = choose(capsys, "--by=alignment")[-3:]
    assert correlation.startswith("Digits, 48 runs with different augmentation: Spearman's")
    assert note.startswith("The runs differ in their augmentation")


@pytest.mark.parametrize(
    ("args", "changes", "message"),
    [
        (
            ["--by=lidar"],
            {},
            "no finished run has val/lidar in its metrics.csv: train with --metrics.extended true",
        ),
        ([], {"data": "CIFAR10"}, "the runs differ in their data, on which RankMe depends: CIFAR10, Digits"),
        (
            [],
            {"options": {"val_share": 0.5}},
            "the runs differ in their data, on which RankMe depends: Digits, Digits (val_share 0.5)",
        ),
        (
            [],
            {"width": 8},
            "the runs differ in their encoder, on which RankMe depends: ResNet (width 4), ResNet (width 8)",
        ),
    ],
    ids=["metric", "data", "images", "encoder"],
)  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(measured, tmp_path, capsys, args, changes, message):
    measured({})
    make_run(tmp_path / "runs" / "a", 1)
    make_run(tmp_path / "runs" / "b", 1, **changes)
    assert main(["choose", *args]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"ssl-vision choose: {message}"
