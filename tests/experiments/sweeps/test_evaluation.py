"""Tests of sweeps that evaluate every trial once, even if processes are killed."""

import csv
import json
import os
import signal
import sys

import pytest
import yaml
from settings import TINY
from sweeping import started, table, until

from ssl_vision.experiments.sweeps.trials import Plan
from ssl_vision.main import main

FIT = """
import os, sys
from pathlib import Path
options = dict(arg.removeprefix("--").split("=", 1) for arg in sys.argv[2:])
run = Path(os.environ["SSL_VISION_TRIAL"])
run.mkdir(exist_ok=True)
config = "seed_everything: 0\\ndata: {class_path: ssl_vision.data.Digits}\\nwandb: false\\n"
(run / "config.yaml").write_text(config)
(run / "metrics.csv").write_text(f"step,epoch,score\\n0,0,{options['x']}\\n")
(run / "times.csv").write_text("step,epoch,time/train_seconds,time/val_seconds,time/epochs\\n0,0,1,0,1\\n")
"""

EVALUATE = """
import fcntl, json, sys, time
from pathlib import Path
run, seconds, protocols = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
alive = (run / "alive").open("a")
try:
    fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (run / "double").touch()
with (run / "evaluations").open("a") as file:
    file.write("begin\\n")
time.sleep(seconds)
if (run / "fails").exists():
    sys.exit("no such images")
baselines = protocols[-1] == "baselines"
protocols = protocols[: len(protocols) - baselines]
row = {"features": "trained", "split": "test", "epoch": 1, "data": "Digits", "test_images": 300}
rows = [
    {**row, "protocol": protocol, "metric": metric, "layer": layer, "value": 0.5 + 0.1 * (layer == "hidden"),
     "low": 0.45, "high": 0.55, "chance": 0.11}
    for protocol in protocols for metric in ("knn_top1", "linear_top1") for layer in ("backbone", "hidden")
]
if baselines:
    rows += [
        {**row, "features": features, "epoch": 0, "protocol": protocol, "metric": "knn_top1",
         "layer": layer, "value": value}
        for protocol in protocols
        for features, layer, value in (("untrained", "backbone", 0.55), ("pixels", "raw", 0.25))
    ]
file = run / "evaluation.json"
(run / "new").write_text(json.dumps([*(json.loads(file.read_text()) if file.exists() else []), *rows]))
(run / "new").replace(file)
with (run / "evaluations").open("a") as file:
    file.write("end\\n")
"""


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    """Return a function that makes a sweep of stubs of ``fit`` and ``evaluate`` and returns its arguments."""

    def make(*, count=2, seconds=0.0):
        program, evaluate = tmp_path / "ssl-vision", tmp_path / "evaluate.py"
        program.write_text(FIT)
        evaluate.write_text(EVALUATE)
        content = {
            "method": "grid",
            "metric": {"name": "score", "goal": "maximize"},
            "parameters": {"x": {"values": list(range(count))}},
            "command": [sys.executable, str(program), "fit", "${args}"],
        }
        (tmp_path / "trial.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

        def command(plan, trial, protocols, *, baselines):
            words = [sys.executable, str(evaluate), str(plan.folder / trial.name), str(seconds), *protocols]
            return words + ["baselines"] * baselines

        monkeypatch.setattr(Plan, "evaluate_command", command)
        monkeypatch.setattr(
            "ssl_vision.experiments.sweeps.sweep._check_trials", lambda plan: None
        )  # fit has no option x
        return [str(tmp_path / "trial.yaml"), f"--runs_dir={tmp_path}", "--workers=1", "--evaluate=macl"]

    return make


def evaluations(folder, count=2):
    return [(folder / f"x={i}" / "evaluations").read_text().split() for i in range(count)]


def test_finished_trials_are_evaluated_once_and_shown_beside_metric(stubs, sweep, tmp_path, capsys):
    args = stubs()
    assert sweep(*args) == 0
    out = capsys.readouterr().out
    assert "2/2 x=1: test/knn_top1 50.00 %, test/linear_top1 50.00 %\n" in out
    assert "best: x=1, score 1" in out
    rows = table(tmp_path / "trial")
    assert [(row["x"], row["score"], row["test/knn_top1"]) for row in rows[:2]] == [
        ("1", "1.0", "0.5"),
        ("0", "0.0", "0.5"),
    ]
    assert rows[0]["test/linear_top1_hidden"] == "0.6"
    head, _, best, *_ = (
        [c.strip() for c in line.split("|")[1:-1]] for line in out.splitlines() if "|" in line
    )
    assert head[5:7] == ["test/knn_top1, %", "test/knn_top1_hidden, %"]
    assert best[5:7] == ["50.00 ± 5.00", "60.00 ± 5.00"]
    assert sweep(*args) == 0
    assert evaluations(tmp_path / "trial") == [["begin", "end"]] * 2


def test_finished_sweep_is_evaluated_later_by_missing_protocols(stubs, sweep, tmp_path):
    args = stubs()
    assert sweep(*args[:-1]) == 0
    assert not (tmp_path / "trial/x=0/evaluations").exists()
    assert sweep(*args) == 0
    assert sweep(*args, "--evaluate=lightly") == 0
    assert evaluations(tmp_path / "trial") == [["begin", "end"] * 2] * 2
    rows = json.loads((tmp_path / "trial/x=0/evaluation.json").read_text())
    assert [row["protocol"] for row in rows] == ["macl"] * 6 + ["lightly"] * 6


def test_baselines_are_measured_once_for_each_protocol_and_shown(stubs, sweep, tmp_path, capsys):
    args = [*stubs(count=3), "--evaluate=lightly"]
    assert sweep(*args) == 0
    folder = tmp_path / "trial"
    for text in (capsys.readouterr().out, (folder / "sweep.md").read_text()):
        lines = [
            [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line
        ]
        place, images = lines[0].index("test/lightly/knn_top1, %"), lines[0].index("test images")
        assert [(line[0], line[place], line[images]) for line in lines[-3:]] == [
            ("untrained network", "55.00", "300"),
            ("raw pixels", "25.00", "300"),
            ("chance", "11.00", ""),
        ]
    rows = table(folder)
    assert [row["state"] for row in rows[:-3]] == ["finished"] * 3
    assert [(row["name"], row["state"], row["test/knn_top1"]) for row in rows[-3:]] == [
        ("untrained network", "baseline", "0.55"),
        ("raw pixels", "baseline", "0.25"),
        ("chance", "baseline", "0.11"),
    ]
    page = (folder / "sweep.html").read_text()
    assert page.count('">untrained network</th>') == page.count('">raw pixels</th>') == 1
    features = [
        {row["features"] for row in json.loads((folder / f"x={i}/evaluation.json").read_text())}
        for i in range(3)
    ]
    assert sorted(map(len, features)) == [1, 1, 3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_evaluation_is_repeated_by_next_sweep(number, stubs, sweep, tmp_path):
    args = stubs(seconds=1.0)
    process = started(*args, log=tmp_path / "log")
    first = tmp_path / "trial/x=0/evaluations"
    until(lambda: first.exists() and first.stat().st_size > 0)  # the file exists before it is written
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == (128 + number if number == signal.SIGTERM else -number)
    assert sweep(*args) == 0
    assert evaluations(tmp_path / "trial") == [["begin", "begin", "end"], ["begin", "end"]]
    assert not list((tmp_path / "trial").glob("*/double"))


def test_concurrent_sweeps_evaluate_each_trial_once(stubs, tmp_path):
    args = stubs(count=4, seconds=0.3)
    workers = [started(*args, log=tmp_path / f"log{i}") for i in range(2)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0, (tmp_path / f"log{workers.index(worker)}").read_text()
    assert evaluations(tmp_path / "trial", 4) == [["begin", "end"]] * 4
    assert not list((tmp_path / "trial").glob("*/double"))
    with (tmp_path / "trial/sweep.csv").open(newline="") as file:
        trials = [row for row in csv.DictReader(file) if row["state"] == "finished"]
    assert [row["test/knn_top1"] for row in trials] == ["0.5"] * 4


def test_failed_evaluation_is_reported_and_retried_at_next_start(stubs, sweep, tmp_path, capsys):
    args = stubs()
    assert sweep(*args[:-1]) == 0
    (tmp_path / "trial/x=1/fails").touch()
    assert sweep(*args) == 1
    captured = capsys.readouterr()
    assert "x=1: evaluation failed: exit code 1: no such images\n" in captured.out
    assert "x=1 is not evaluated: exit code 1: no such images; the same command retries it" in captured.err
    (tmp_path / "trial/x=1/fails").unlink()
    assert sweep(*args) == 0
    assert evaluations(tmp_path / "trial") == [["begin", "end"], ["begin", "begin", "end"]]


def test_evaluation_on_other_data_is_not_reused(stubs, sweep, tmp_path):
    args = stubs()
    assert sweep(*args[:-1]) == 0
    row = {"features": "trained", "split": "test", "epoch": 1, "data": "CIFAR10", "protocol": "macl"}
    rows = [row | {"metric": "knn_top1", "layer": "backbone", "value": 0.1}]
    (tmp_path / "trial/x=0/evaluation.json").write_text(json.dumps(rows))
    assert sweep(*args) == 0
    assert evaluations(tmp_path / "trial") == [["begin", "end"]] * 2


def test_damaged_evaluation_is_reported_without_losing_summary(stubs, sweep, tmp_path, capsys):
    args = stubs()
    assert sweep(*args) == 0
    (tmp_path / "trial/x=0/evaluation.json").write_text('[{"metric": "knn_top1"}]')
    assert sweep(*args) == 1
    captured = capsys.readouterr()
    assert "x=0 is not evaluated:" in captured.err
    assert "is not a list of rows" in captured.err
    assert "best: x=1, score 1" in captured.out


def test_custom_metric_name_may_start_with_test(sweep_path, sweep, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib\n"
        "run = pathlib.Path(os.environ['SSL_VISION_TRIAL'])\n"
        "run.mkdir(exist_ok=True)\n"
        "(run / 'metrics.csv').write_text('step,epoch,test/score\\n0,0,0.5\\n')\n"
    )
    options = {"metric": {"name": "test/score"}, "command": [sys.executable, str(program)]}
    assert sweep(sweep_path({"x": {"values": [1]}}, **options), f"--runs_dir={tmp_path}") == 0
    assert table(tmp_path / "trial")[0]["test/score"] == "0.5"


def test_protocols_with_same_name_are_rejected(stubs, sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    args = stubs()
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.yaml").write_text("measurements: [{knn: {k: 5}}]\n")
    assert sweep(*args, "--evaluate=a/mine.yaml", "--evaluate=b/mine.yaml") == 2
    assert "a/mine.yaml, b/mine.yaml have the same name" in capsys.readouterr().err


def test_invalid_evaluation_is_rejected_before_first_trial(stubs, sweep, sweep_path, tmp_path, capsys):
    args = stubs()
    assert sweep(*args, "--evaluate=makl") == 2
    assert "protocol makl: no such file or recipe" in capsys.readouterr().err
    assert sweep(sweep_path({"x": {"values": [1]}}), f"--runs_dir={tmp_path}", "--evaluate=macl") == 2
    assert "--evaluate: the command of the sweep file is not ssl-vision fit" in capsys.readouterr().err
    assert not (tmp_path / "trial").exists()


@pytest.fixture
def digits(tmp_path):
    """Return the arguments of a sweep of one short run on the digits."""
    words = ["${interpreter}", "-m", "ssl_vision", "fit", *TINY, "--trainer.max_epochs=1", "${args}"]
    content = {
        "method": "grid",
        "metric": {"name": "val/knn_top1", "goal": "maximize"},
        "parameters": {"model.objective.temperature": {"values": [0.2]}},
        "command": words,
    }
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(content))
    return [file, f"--runs_dir={tmp_path}", "--evaluate=lightly", "--evaluate=lightly"]


def test_dry_run_shows_evaluation_command(digits, sweep, tmp_path, capsys):
    assert sweep(*digits, "--dry_run") == 0
    options = "--protocol=lightly --baselines=true --cache=false --report=false"
    assert f"-m ssl_vision evaluate {tmp_path}/digits/cell {options}\n" in capsys.readouterr().out


@pytest.mark.long
def test_real_trial_is_evaluated(digits, sweep, tmp_path, capsys):
    assert sweep(*digits) == 0
    run = tmp_path / "digits/cell"
    rows = json.loads((run / "evaluation.json").read_text())
    assert {(row["protocol"], row["features"]) for row in rows} == {
        ("lightly", features) for features in ("trained", "untrained", "pixels")
    }
    assert main(["runs", str(tmp_path / "digits"), "--columns=run,test/lightly/knn_top1"]) == 0
    assert f"{100 * rows[0]['value']:.2f}" in capsys.readouterr().out
