"""Tests of the ``ssl-vision sweep`` command with real runs and with programs that train nothing."""

import errno
import importlib.util
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from equal import difference_of_runs
from settings import TINY

from ssl_vision.main import main

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def fit_file(tmp_path):
    """Return the path of a sweep file of short runs on the digits."""
    content = {
        "method": "grid",
        "metric": {"name": "val/knn_top1", "goal": "maximize"},
        "parameters": {"model.objective.temperature": {"values": [0.2, 0.5]}},
        "command": ["${env}", "${interpreter}", "-m", "ssl_vision", "fit", *TINY, "--wandb=true", "${args}"],
    }
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


@pytest.mark.long
def test_killed_run_resumes_bitwise_and_finished_run_is_unchanged(fit_file, tmp_path, capsys):
    longer = "--trainer.max_epochs=5"
    args = ["sweep", fit_file, f"--runs_dir={tmp_path}", "--trials=1", longer]
    trial = tmp_path / "digits" / "temperature=0.2"
    sweep = FORK.Process(target=lambda: os._exit(main(args)))
    sweep.start()
    deadline = time.monotonic() + 120
    while not (trial / "checkpoints" / "last.ckpt").exists():
        assert time.monotonic() < deadline
        assert sweep.is_alive()
        time.sleep(0.001)
    sweep.kill()
    sweep.join()
    assert main(args) == 0
    log = tmp_path / "digits" / "logs" / "temperature=0.2.log"
    assert log.read_text().count("continuing from") == 1
    uninterrupted = [
        *TINY,
        "--model.objective.temperature=0.2",
        longer,
        f"--runs_dir={tmp_path}",
        "--name=whole",
    ]
    assert main(["fit", *uninterrupted]) == 0
    assert difference_of_runs(trial, tmp_path / "whole") == ""

    shutil.copytree(trial, tmp_path / "before")  # as if the sweep was killed before it could record the end
    (tmp_path / "digits" / "sweep.journal").unlink()
    assert main(args) == 0
    assert log.read_text().count("continuing from") == 2
    assert difference_of_runs(trial, tmp_path / "before") == ""
    assert (trial / "times.csv").read_text() == (tmp_path / "before" / "times.csv").read_text()
    out = capsys.readouterr().out
    assert re.search(r"1/1 temperature=0.2: val/knn_top1 \d+\.\d\d %; 5 epochs, \d+ s", out)


def test_dry_run_prints_commands_and_writes_nothing(sweep, fit_file, tmp_path, capsys):
    assert sweep(fit_file, "--dry_run", "--name=s", f"--runs_dir={tmp_path}", "--patience", "3") == 0
    count, varied, command, *trials = capsys.readouterr().out.splitlines()
    assert count == "trials: 2"
    assert varied == "they vary: temperature (2 values)"
    words = command.split()
    assert words[1:5] == ["/usr/bin/env", sys.executable, "-m", "ssl_vision"]
    assert command.endswith(f" --patience 3 --runs_dir={tmp_path}/s --ckpt_path=last, and for each trial:")
    assert trials == [f"--model.objective.temperature={t} --name=temperature={t}" for t in (0.2, 0.5)]
    assert [file.name for file in tmp_path.iterdir()] == ["digits.yaml"]


def test_dry_run_of_bayes_prints_what_varies(sweep, sweep_path, capsys):
    file = sweep_path({"x": {"min": 0.0, "max": 1.0}, "y": {"values": [1, 2]}}, method="bayes", run_cap=4)
    assert sweep(file, "--dry_run") == 0
    assert capsys.readouterr().out == (
        "trials: 4, each chosen from the results of earlier ones\nthey vary: x, y (2 values)\n"
    )


def test_dry_run_names_trial_with_unknown_class_option(sweep, fit_file, capsys):
    file = Path(fit_file)
    file.write_text(file.read_text().replace("objective.temperature", "objective.outer_temperature"))
    assert sweep(file, "--dry_run") == 2
    assert "--model.objective.outer_temperature of InfoNCE; first choose a class" in capsys.readouterr().err


def test_options_after_file_come_last_and_identify_the_sweep(sweep, sweep_path, tmp_path, capsys):
    file = sweep_path({"x": {"values": [1, 2]}})
    args = [file, f"--runs_dir={tmp_path}", "--steps=5"]
    assert sweep(*args) == 0
    trial = tmp_path / "trial" / "x=1"
    assert (trial / "starts").read_text() == " --x=1 --steps=5\n"
    assert sweep(*args[:2]) == 2
    assert "(options: --steps=5 there, none here)" in capsys.readouterr().err
    assert sweep(*args) == 0
    assert "2 of 2 trials done" in capsys.readouterr().out
    assert (trial / "starts").read_text().count("\n") == 1


def test_sweep_modules_do_not_import_torch():
    modules = ("sweep", "study", "worker", "sweep_results")
    names = ", ".join(modules)
    code = f"import sys; from ssl_vision.experiments.sweeps import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sweep_writes_expected_files(sweep, sweep_path, tmp_path, capsys):
    file = sweep_path({"x": {"values": [1, 2]}})
    assert sweep(file, f"--runs_dir={tmp_path}") == 0
    folder = tmp_path / "trial"
    assert {each.name for each in folder.iterdir()} == {
        "logs", "x=1", "x=2", "sweep.yaml", "sweep.journal", "sweep.csv", "sweep.md", "sweep.html",
    }  # fmt: skip
    assert (folder / "sweep.yaml").read_text() == (tmp_path / "trial.yaml").read_text()
    assert (folder / "sweep.md").read_text().strip() in capsys.readouterr().out


def test_zero_workers_only_print_the_table(sweep, sweep_path, tmp_path, capsys):
    file = sweep_path({"x": {"values": [1, 2, 3]}})
    assert sweep(file, f"--runs_dir={tmp_path}", "--workers=0", "--trials=2") == 0
    assert capsys.readouterr().out.count("waiting") == 2
    assert not (tmp_path / "trial" / "x=1").exists()


def test_table_of_a_bayes_sweep_that_has_not_begun_is_empty(sweep, sweep_path, tmp_path, capsys):
    file = sweep_path({"x": {"min": 0.0, "max": 1.0}}, method="bayes", run_cap=4)
    assert sweep(file, f"--runs_dir={tmp_path}", "--workers=0") == 0
    assert "0 of 4 trials done\n\nno trials yet\n" in capsys.readouterr().out


def test_random_and_bayes_sweeps_rank_trials_by_metric(sweep, sweep_path, tmp_path):
    for method in ("random", "bayes"):
        file = sweep_path({"x": {"min": 0.0, "max": 1.0}, "steps": {"value": 1}}, method=method, run_cap=4)
        assert sweep(file, f"--runs_dir={tmp_path}", f"--name={method}") == 0
        lines = (tmp_path / method / "sweep.md").read_text().splitlines()
        xs = [float(line.split("|")[1]) for line in lines[4:8]]
        assert xs == sorted(xs, reverse=True)
        assert lines[-1].startswith("best: x=")


def test_trials_get_wandb_group_of_sweep_and_no_run_id(sweep, sweep_path, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "another")
    command = ["sh", "-c", "echo group $WANDB_RUN_GROUP id $WANDB_RUN_ID; exit 1", "${args}"]
    assert (
        sweep(sweep_path({"x": {"value": 1}}, command=command), f"--runs_dir={tmp_path}", "--name=mine") == 1
    )
    assert "group mine id" in (tmp_path / "mine" / "logs" / "cell.log").read_text().splitlines()


def test_submitit_jobs_run_the_trials(sweep, sweep_path, tmp_path, capsys):
    file = sweep_path({"x": {"values": [1, 2, 3, 4]}})
    jobs = ["--submitit.jobs=2", "--submitit.cluster=local", "--submitit.gpus=0", "--submitit.timeout_min=2"]
    assert sweep(file, f"--runs_dir={tmp_path}", *jobs) == 0
    out = capsys.readouterr().out
    assert re.search(r"jobs \d+, \d+; Ctrl-C does not stop them", out)
    assert out.count("| finished |") == 4
    assert len(list((tmp_path / "trial" / "logs" / "jobs").glob("*_log.out"))) == 2


def test_zero_workers_submit_no_jobs(sweep, sweep_path, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ssl_vision.experiments.sweeps.sweep.submitted", lambda *_, **__: pytest.fail("submitted")
    )
    file = sweep_path({"x": {"values": [1, 2]}})
    assert sweep(file, f"--runs_dir={tmp_path}", "--submitit.jobs=2", "--workers=0") == 0


def test_failed_jobs_give_a_nonzero_status(sweep, sweep_path, tmp_path, monkeypatch, capsys):
    job = SimpleNamespace(job_id="7", exception=MemoryError, paths=SimpleNamespace(stderr="7.err"))
    monkeypatch.setattr("ssl_vision.experiments.sweeps.sweep.submitted", lambda *_, **__: [job])
    file = sweep_path({"x": {"values": [1, 2]}})
    assert sweep(file, f"--runs_dir={tmp_path}", "--submitit.jobs=2") == 1
    assert "job 7 failed: see 7.err" in capsys.readouterr().err


def test_missing_slurm_is_reported(sweep, sweep_path, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    file = sweep_path({"x": {"value": 1}})
    assert sweep(file, f"--runs_dir={tmp_path}", "--submitit.jobs=1") == 1
    assert 'Could not detect "srun"' in capsys.readouterr().err


@pytest.mark.parametrize("library", ["optuna", "submitit"])
def test_missing_library_is_reported_with_install_command(
    sweep, library, sweep_path, tmp_path, monkeypatch, capsys
):
    real_find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == library else real_find_spec(name)
    )
    args = ["--submitit.jobs=1"] if library == "submitit" else []
    assert sweep(sweep_path({"x": {"value": 1}}), f"--runs_dir={tmp_path}", *args) == 2
    assert f"{library} is not installed: pip install 'ssl_vision[sweep]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ([], "file"),
        (["absent.yaml"], "sweep file absent.yaml: no such file or recipe"),
        (["FILE", "--worker=2"], "--worker: did you mean --workers?"),
        (["FILE", "--workers=-1"], "workers"),
        (["--seed", "-1", "absent.yaml"], "absent.yaml: no such file or recipe"),
        (["FILE", "--name=a/b"], "--name a/b: must be a name, not a path; set the directory with --runs_dir"),
        (["FILE", "--submitit.job=1"], "--submitit.job: did you mean --submitit.jobs?"),
    ],
)
def test_invalid_command_line_is_reported_in_one_line(
    sweep, args, line, sweep_path, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    file = sweep_path({"x": {"value": 1}})
    assert sweep(*(file if arg == "FILE" else arg for arg in args)) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("metric", "option", "refused"),
    [
        ("val/accuracy", "--data=Digits", True),
        ("val/knn_top1_projector", "--data=Digits", False),
        ("val/accuracy", "--model.objective=mine.Loss", False),
    ],
    ids=["unknown", "known", "own class"],
)
def test_metric_that_no_trial_logs_is_refused(sweep, tmp_path, capsys, metric, option, refused):
    file = file_of_fit(tmp_path, "model.encoder.width")
    content = yaml.safe_load(file.read_text())
    content["metric"]["name"] = metric
    content["command"].append(option)
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(content))
    sweep(str(tmp_path / "other.yaml"), "--dry_run", f"--runs_dir={tmp_path}")
    error = capsys.readouterr().err
    assert ("metric.name: no trial logs 'val/accuracy'" in error) == refused


def test_full_disk_is_reported(sweep, sweep_path, tmp_path, monkeypatch, capsys):
    def raise_disk_full(self, logs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "sweep.journal")

    monkeypatch.setattr("optuna.storages.journal.JournalFileBackend.append_logs", raise_disk_full)
    assert sweep(sweep_path({"x": {"values": [1]}}), f"--runs_dir={tmp_path}") == 2
    assert capsys.readouterr().err == "ssl-vision sweep: sweep.journal: No space left on device\n"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temperature", "model.objective.temperature"), ("trainer.max_epoch", "trainer.max_epochs")],
)
def test_unknown_option_in_sweep_file_is_rejected_with_suggestion(sweep, tmp_path, capsys, name, meant):
    assert sweep(file_of_fit(tmp_path, name), "--dry_run", f"--runs_dir={tmp_path}") == 2
    assert f"unknown option --{name}, did you mean --{meant}?" in capsys.readouterr().err


def file_of_fit(folder, name):
    """Write a sweep file of ``ssl-vision fit`` with one parameter."""
    file = folder / "fit.yaml"
    file.write_text(
        "program: ssl_vision\nmethod: grid\nmetric: {name: val/knn_top1, goal: maximize}\n"
        f"parameters: {{{name}: {{values: [1, 2]}}}}\n"
        'command: ["${env}", "${interpreter}", -m, "${program}", fit, "${args}"]\n'
    )
    return file


def test_reports_of_trials_and_values_named_like_options_are_accepted(sweep, fit_file, capsys):
    assert sweep(fit_file, "--dry_run", "--report=true", "--model.optimizer.name", "name") == 0
    assert "--report=true" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "passed"),
    [("ckpt_path", []), ("runs_dir", []), ("model.encoder.width", ["--overwrite=true"])],
)
def test_option_that_the_sweep_sets_is_refused(sweep, tmp_path, capsys, name, passed):
    assert sweep(file_of_fit(tmp_path, name), "--dry_run", f"--runs_dir={tmp_path}", *passed) == 2
    assert re.search(r"(ckpt_path|runs_dir|overwrite): a sweep sets this option", capsys.readouterr().err)
