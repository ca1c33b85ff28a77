"""Tests of sweep workers by the command line: killed processes and early termination.

``SSL_VISION_KILLS=20`` sets the number of kills to 20; the default is 5.
"""

import csv
import os
import random
import signal
import time
from types import SimpleNamespace

import pytest
from sweeping import started, table, until

from ssl_vision.experiments.sweeps.sweep import run
from ssl_vision.experiments.sweeps.worker import Worker

KILLS = int(os.environ.get("SSL_VISION_KILLS", "5"))


def rows(trial):
    with (trial / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row["score"])) for row in csv.DictReader(file)]


def test_eight_workers_on_one_database_run_each_trial_once(sweep_path, tmp_path):
    file = sweep_path({"x": {"values": list(range(24))}})
    args = [file, f"--runs_dir={tmp_path}", "--workers=1"]
    workers = [started(*args, log=tmp_path / f"log{i}") for i in range(8)]
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0, (tmp_path / f"log{workers.index(worker)}").read_text()
    records = table(tmp_path / "trial")
    assert sorted(int(row["x"]) for row in records) == list(range(24))
    assert {row["state"] for row in records} == {"finished"}
    for i in range(24):
        assert len((tmp_path / "trial" / f"x={i}" / "starts").read_text().splitlines()) == 1


def test_kills_at_random_moments_neither_lose_nor_repeat_steps(sweep_path, tmp_path):
    """Two sweeps in one directory run two trials at a time each; one of the sweeps is killed repeatedly."""
    trials, steps = 3 + 3 * KILLS // 2, 6
    file = sweep_path(
        {"x": {"values": list(range(trials))}, "steps": {"value": steps}, "pause": {"value": 0.04}}
    )
    args = [file, f"--runs_dir={tmp_path}", "--workers=2"]
    rng, folder, log = random.Random(0), tmp_path / "trial", tmp_path / "log"
    alive = [started(*args, log=log) for _ in range(2)]
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.05, 0.6))
        victim = alive.pop(rng.randrange(2))
        victim.kill()
        victim.join()
        alive.append(started(*args, log=log))
    for process in alive:
        process.join(120)
        assert process.exitcode == 0, log.read_text()
    records = table(folder)
    assert sorted((int(row["x"]), row["state"], float(row["score"])) for row in records) == [
        (x, "finished", float(x)) for x in range(trials)
    ]
    for x in range(trials):
        trial = folder / f"x={x}"
        assert rows(trial) == [(step, float(x)) for step in range(steps)]
        assert (trial / "ends").read_text() == "end\n"
        assert not (trial / "double").exists()


def test_killed_trial_fails_and_resumes_at_next_start(sweep, sweep_path, tmp_path):
    file = sweep_path({"x": {"values": [1]}, "steps": {"value": 100}, "pause": {"value": 0.02}})
    args = [file, f"--runs_dir={tmp_path}"]
    process, trial = started(*args, log=tmp_path / "log"), tmp_path / "trial" / "cell"
    until(lambda: (trial / "place").exists())
    children = [
        int(name)
        for name in os.listdir("/proc")
        if name.isdigit() and f"SSL_VISION_TRIAL={trial}\0".encode() in environment(name)
    ]
    os.kill(max(children), signal.SIGKILL)
    process.join(60)
    assert process.exitcode == 1
    assert "failed: killed by SIGKILL" in (tmp_path / "log").read_text()
    assert "1 of 1 trials failed" in (tmp_path / "log").read_text()
    assert sweep(*args) == 0
    assert len(rows(trial)) == 100
    assert len((trial / "starts").read_text().splitlines()) == 2


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_sweep_and_same_command_resumes_it(sweep, number, sweep_path, tmp_path):
    file = sweep_path({"x": {"values": [1, 2]}, "steps": {"value": 40}, "pause": {"value": 0.02}})
    args = [file, f"--runs_dir={tmp_path}"]
    process, trial = started(*args, log=tmp_path / "log"), tmp_path / "trial" / "x=1"
    until(lambda: (trial / "place").exists())
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 128 + number
    log = (tmp_path / "log").read_text()
    assert f"{number.name}: repeat the command to continue" in log
    assert {row["x"]: row["state"] for row in table(tmp_path / "trial")} == {
        "1": "interrupted",
        "2": "waiting",
    }
    assert sweep(*args) == 0
    assert [len(rows(tmp_path / "trial" / f"x={x}")) for x in (1, 2)] == [40, 40]


def test_early_termination_prunes_worse_trials(sweep, sweep_path, tmp_path):
    """One trial at a time: of 9 and 1, and of 9, 1 and 10, the best passes values 2 and 6."""
    file = sweep_path(
        {"x": {"values": [9, 1, 10]}, "steps": {"value": 60}, "pause": {"value": 0.05}},
        early_terminate={"type": "hyperband", "min_iter": 2, "eta": 3},
    )
    assert sweep(file, f"--runs_dir={tmp_path}") == 0
    outcomes = {row["x"]: (row["state"], row["note"]) for row in table(tmp_path / "trial")}
    assert outcomes == {"9": ("finished", ""), "1": ("pruned", "at value 2"), "10": ("finished", "")}
    assert len(rows(tmp_path / "trial" / "x=1")) < 60
    assert sweep(file, f"--runs_dir={tmp_path}") == 0
    assert (tmp_path / "trial" / "x=1" / "starts").read_text().count("\n") == 1


def test_same_failure_of_first_three_trials_ends_sweep(sweep, sweep_path, tmp_path, capsys):
    parameters = {"x": {"values": list(range(9))}, "fails": {"value": "no such option"}, "code": {"value": 2}}
    args = [sweep_path(parameters), f"--runs_dir={tmp_path}"]
    assert sweep(*args) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the first 3 trials failed in the same way; the last line: exit code 2: no such option" in error
    assert len(list((tmp_path / "trial").glob("x=*"))) == 3


def test_three_trials_without_the_metric_end_sweep(sweep, sweep_path, tmp_path, capsys):
    metric = {"name": "val/score", "goal": "maximize"}
    assert sweep(sweep_path({"x": {"values": list(range(9))}}, metric=metric), f"--runs_dir={tmp_path}") == 2
    assert "metrics.csv has no 'val/score'" in capsys.readouterr().err
    assert len(list((tmp_path / "trial").glob("x=*"))) == 3


def test_trial_without_metric_fails_with_suggestion(sweep, sweep_path, tmp_path):
    file = sweep_path({"x": {"value": 1}}, metric={"name": "scoer", "goal": "maximize"})
    assert sweep(file, f"--runs_dir={tmp_path}") == 1
    (row,) = table(tmp_path / "trial")
    assert (row["state"], row["note"]) == ("failed", "metrics.csv has no 'scoer', did you mean 'score'?")


def test_missing_program_is_reported_in_one_line(sweep, sweep_path, tmp_path, capsys):
    file = sweep_path({"x": {"value": 1}}, command=["/no/such/program", "${args}"])
    assert sweep(file, f"--runs_dir={tmp_path}") == 2
    assert capsys.readouterr().err == "ssl-vision sweep: /no/such/program: No such file or directory\n"


def test_trials_see_the_gpu_of_their_slot(sweep_path, tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: a (UUID: x)'\necho 'GPU 1: b (UUID: y)'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = sweep_path({"x": {"values": list(range(8))}, "pause": {"value": 0.2}})
    run([file, f"--runs_dir={tmp_path}", "--workers=4"])
    devices = [(tmp_path / "trial" / f"x={x}" / "starts").read_text().split()[0] for x in range(4)]
    assert sorted(devices) == ["0", "0", "1", "1"]


def test_validation_of_initial_weights_is_no_value_of_early_termination(tmp_path):
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "metrics.csv").write_text("step,epoch,val/knn_top1\n-1,-1,0.4\n9,0,0.5\n19,1,0.6\n")
    seen = []
    file = SimpleNamespace(early_terminate={}, metric=SimpleNamespace(name="val/knn_top1"))
    study = SimpleNamespace(file=file, ends_early=lambda claim, values: seen.extend(values) or "")
    claim = SimpleNamespace(trial=SimpleNamespace(name="trial"))
    process = SimpleNamespace(claim=claim, protocols=(), pruned="", metrics_size=0)
    Worker._watch(SimpleNamespace(plan=SimpleNamespace(folder=tmp_path), study=study), process)
    assert seen == [0.5, 0.6]
