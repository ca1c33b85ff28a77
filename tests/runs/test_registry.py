"""Tests of reading run directories: trained, hand-made and damaged ones."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from ssl_vision.errors import InputError
from ssl_vision.runs.lock import Lock
from ssl_vision.runs.registry import Run, find_runs, readable

CONFIG = {
    "seed_everything": 3,
    "model": {
        "class_path": "ssl_vision.methods.SimCLR",
        "init_args": {
            "objective": {
                "class_path": "ssl_vision.objectives.MACL",
                "init_args": {
                    "temperature": {"class_path": "my.Rule", "init_args": {"low": 0.1}},
                    "alpha": None,
                },
            }
        },
    },
    "data": {"class_path": "ssl_vision.data.Digits", "init_args": {"batch_size": 64}},
    "trainer": {"max_epochs": 3, "max_steps": -1},
}
METRICS = "step,epoch,train/loss,val/knn_top1\r\n1,0,3.5,\r\n3,0,,0.5\r\n5,1,2.5,\r\n"


def make_run(path, *, config=CONFIG, metrics=METRICS, times=None):
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    if metrics is not None:
        (path / "metrics.csv").write_text(metrics)
    if times is not None:
        (path / "times.csv").write_text(times)
    return Run(path)


def test_run_reads_settings_and_curves_of_trained_run(tiny_run):
    run = Run(tiny_run)
    assert (run.name, run.status, run.epoch) == ("tiny", "finished", 2)
    assert run.config == yaml.safe_load((tiny_run / "config.yaml").read_text())
    settings = ("objective", "data", "seed", "epochs", "batch_size", "model.objective.alpha", "metrics.k")
    assert [run.setting(key) for key in settings] == ["MACL", "Digits", 0, 2, 64, 3, 5]
    assert len(run.curve("train/loss")) == 8
    assert run.last("val/knn_top1") == run.curve("val/knn_top1")[-1][2]
    assert [point[:2] for point in run.curve("val/knn_top1")] == [(3, 0), (7, 1)]
    assert run.seconds > 0
    assert run.evaluation == []


def test_setting_accepts_full_and_short_keys(tmp_path):
    run = make_run(tmp_path / "run")
    objective = "model.init_args.objective"
    assert run.setting("objective") == run.setting(objective) == run.setting("model.objective") == "MACL"
    assert run.setting("model.objective.temperature") == "Rule"
    assert run.setting(f"{objective}.init_args.temperature.init_args.low") == 0.1
    assert run.setting("model.objective.temperature.low") == 0.1
    assert run.setting("name") == "run"
    assert run.setting("model.objective.alpha") is run.setting("model.objective.beta") is None
    assert run.setting("seed_everything.low") is None


def test_run_reads_history_curves_and_seconds_from_logs(tmp_path):
    run = make_run(
        tmp_path / "run", times="step,epoch,time/train_seconds,time/val_seconds\n3,0,2.5,1\n7,1,2,\n"
    )
    assert run.history[1] == {"step": 3, "epoch": 0, "val/knn_top1": 0.5}
    assert run.curve("train/loss") == [(1, 0, 3.5), (5, 1, 2.5)]
    assert (run.last("val/knn_top1"), run.last("val/rankme"), run.seconds) == (0.5, None, 5.5)


def test_last_value_far_from_end_of_long_log_is_found(tmp_path):
    lines = ["step,epoch,a,b", "0,0,1,7", *(f"{i},0,{i}," for i in range(1, 30_000))]
    run = make_run(tmp_path / "run", metrics="\n".join(lines) + "\n")
    assert (run.last("a"), run.last("b")) == (29_999, 7)


@pytest.mark.parametrize(
    "end",
    ["7,1,0.", "7,1", "7", "7,1,1.5,0.7", "7,1,1.5,0.7\r", "7,1,2.5,0.7,9\r\n", "x,1,2,3\r\n", "\0\0\0"],
)
def test_incomplete_or_invalid_last_row_is_ignored(tmp_path, end):
    times = "step,epoch,time/train_seconds,time/val_seconds\r\n3,0,2.5,1\r\n"
    run = make_run(tmp_path / "run", metrics=METRICS + end, times=times + end)
    assert len(run.history) == 3
    assert (run.last("train/loss"), run.last("step"), run.seconds) == (2.5, 5, 3.5)


@pytest.mark.parametrize(
    ("metrics", "times", "epoch", "status"),
    [
        (None, None, 0, "stopped"),
        ("step,epoch,train/loss\n", None, 0, "stopped"),
        ("step,epoch,train/loss\n0,0,1\n", None, 0, "stopped"),
        (METRICS, None, 1, "stopped"),
        (METRICS, "step,epoch,time/train_seconds\n3,0,1\n7,1,1\n", 2, "stopped"),
        (METRICS, "step,epoch,time/train_seconds\n3,0,1\n7,1,1\n11,2,1\n", 3, "finished"),
        (METRICS + "11,2,,0.6\n", None, 3, "finished"),
    ],
)
def test_epoch_and_status_are_derived_from_logs(tmp_path, metrics, times, epoch, status):
    run = make_run(tmp_path / "run", metrics=metrics, times=times)
    assert (run.epoch, run.status) == (epoch, status)


def test_run_is_finished_after_max_steps(tmp_path):
    config = CONFIG | {"trainer": {"max_epochs": None, "max_steps": 6}}
    assert make_run(tmp_path / "run", config=config).status == "finished"
    assert make_run(tmp_path / "other", config=config, metrics="step,epoch,a\n4,0,1\n").status == "stopped"


def test_a_run_is_running_while_its_lock_is_held(tmp_path):
    run, lock = make_run(tmp_path / "run"), Lock(tmp_path / "run" / ".lock")
    lock.take()
    lock_text = lock.path.read_text()
    assert run.status == Run(tmp_path / "run").status == "running"
    assert lock.path.read_text() == lock_text
    lock.release()
    assert run.status == "stopped"
    Lock(lock.path).take()


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    for name in ("b", "a", "sweep/cell2", "sweep/cell1", "a/checkpoints/x", "c/wandb/run/files", ".hidden"):
        make_run(tmp_path / name)
    (tmp_path / "sweep" / "loop").symlink_to(tmp_path, target_is_directory=True)
    names = [
        run.folder.path.relative_to(tmp_path).as_posix() for run in find_runs([tmp_path, tmp_path / "a"])
    ]
    assert names == ["a", "b", "sweep/cell1", "sweep/cell2"]


def test_find_runs_refuses_folder_without_runs(tmp_path):
    with pytest.raises(InputError, match=r"no run directory \(one with"):
        find_runs([tmp_path])
    with pytest.raises(InputError, match=r"absent: no such directory"):
        find_runs([tmp_path / "absent"])


@pytest.mark.parametrize("text", ["a: [1,\n", "just text\n", "a: b: c\n", "\0", b"\xff\xfe".decode("latin1")])
def test_damaged_config_is_named_in_error(tmp_path, text):
    run = make_run(tmp_path / "run")
    run.folder.config_file.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=r"run/config.yaml"):
        run.config  # noqa: B018


@pytest.mark.parametrize("text", ["[1,", "{}", "[1]"])
def test_damaged_evaluation_is_named_in_error(tmp_path, text):
    run = make_run(tmp_path / "run")
    run.folder.evaluation_file.write_text(text)
    with pytest.raises(InputError, match=r"run/evaluation.json"):
        run.evaluation  # noqa: B018


def test_no_torch_is_imported():
    code = "import sys, ssl_vision.runs.registry as r; sys.exit('torch' in sys.modules or not r.find_runs)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink(path.name, path)])
def test_readable_skips_only_run_with_unreadable_log(tmp_path, make, capsys):
    make_run(tmp_path / "good")
    make(make_run(tmp_path / "bad", metrics=None).folder.metrics_file)
    (run,) = readable(find_runs([tmp_path]), "compare")
    assert run.name == "good"
    assert capsys.readouterr().err.startswith(f"ssl-vision compare: skipped: {tmp_path}/bad/metrics.csv ")
    with pytest.raises(InputError, match="no run can be read"):
        readable(find_runs([tmp_path / "bad"]), "compare")


@pytest.mark.parametrize(
    "metrics",
    [
        "step,epoch,a\nnan,nan,1\n1,inf,2\n",
        "\xff,\0\n1,2\n",
        "step,epoch," + "x" * 300_000 + "\n1,1,1\n",
        "a,b\n1,2\n",
        "step\n1e400\n",
        "step,epoch,val/a\n1,,3\n",
    ],
)
def test_malformed_log_gives_epoch_0_and_status_stopped(tmp_path, metrics):
    run = make_run(tmp_path / "run", metrics=metrics)
    assert (run.epoch, run.status) == (0, "stopped")
    assert isinstance(run.history, list)


def test_evaluated_selects_own_data_last_epoch_and_default_protocol(tmp_path):
    run = make_run(tmp_path / "run")
    measurement = {"features": "trained", "layer": "backbone", "metric": "knn_top1", "split": "test"}
    expected = measurement | {"data": run.setting("data"), "protocol": "macl", "epoch": 2, "value": 0.5}
    changes = [
        {"data": "STL10"}, {"protocol": "solo"}, {"epoch": 1}, {"features": "untrained"}, {"layer": "hidden"},
        {"split": "train"}, {"metric": "linear_top1"}, {"labels": "10%"},
    ]  # fmt: skip
    rows = [expected | change for change in changes]
    for order in ([expected, *rows], [*rows, expected]):
        run.folder.evaluation_file.write_text(json.dumps(order))
        assert Run(run.folder.path).evaluated("knn_top1") == expected
    assert Run(run.folder.path).evaluated("grid_top1") is None
