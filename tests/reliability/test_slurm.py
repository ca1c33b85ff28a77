"""Tests of preempted SLURM jobs, which save between two steps, are requeued and resume."""

import os
import shutil
import signal

import pytest
import torch
from equal import difference, difference_of_runs, everything
from settings import TINY, UNVALIDATED

from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.checkpoint import read_checkpoint


def fit(runs, name="run"):
    return main(
        ["fit", f"--runs_dir={runs}", f"--name={name}", *UNVALIDATED, "--trainer.limit_train_batches=6"]
    )


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A job of one task, with a scontrol that records its arguments and ends the job, as SLURM does."""
    requests = tmp_path / "asked"
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {requests}\nkill -TERM $PPID\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}{os.pathsep}{os.environ['PATH']}")
    job = {"JOB_ID": 7, "JOB_NAME": "train", "NTASKS": 1, "LOCALID": 0, "NODEID": 0, "PROCID": 0}
    for key, value in job.items():
        monkeypatch.setenv(f"SLURM_{key}", str(value))
    return requests


def test_preempted_job_is_requeued_and_resumes_exactly(tmp_path, monkeypatch, slurm):
    assert fit(tmp_path, "whole") == 0
    step, calls = SimCLR.training_step, []

    def preempted_step(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "training_step", preempted_step)
    assert fit(tmp_path) == 128 + signal.SIGTERM
    assert slurm.read_text() == "requeue 7\n"
    assert everything(tmp_path / "run")["global_step"] in (3, 4)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert fit(tmp_path) == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")
    assert not list((tmp_path / "run").glob("hpc_*"))


def test_overwriting_fit_ignores_checkpoint_left_by_requeue(tmp_path, slurm, tiny_run):
    """Lightning prefers such a file to every other checkpoint, whichever run it belongs to."""
    run = shutil.copytree(tiny_run, tmp_path / "run")
    shutil.copy(run / "checkpoints" / "last.ckpt", run / "hpc_ckpt_1.ckpt")
    args = [
        "fit",
        f"--runs_dir={tmp_path}",
        "--name=run",
        *TINY,
        "--overwrite=true",
        "--seed_everything=5",
    ]
    assert main(args) == 0
    assert everything(run)["global_step"] == 8
    assert read_checkpoint(run).config["seed_everything"] == 5
    assert not difference(everything(run)["loops"], everything(tiny_run)["loops"])


@pytest.mark.parametrize("option", ["--overwrite=true", "--ckpt_path=last"])
def test_requeue_checkpoint_of_another_program_is_kept(tmp_path, tiny_run, capsys, option):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    torch.save({"state_dict": {}}, run / "hpc_ckpt_3.ckpt")
    options = ["--model.objective=MACL", "--model.objective.alpha=3", option]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *TINY, *options]) == 2
    assert "hpc_ckpt_3.ckpt: not written by this run" in capsys.readouterr().err
    assert (run / "hpc_ckpt_3.ckpt").exists()
    assert (run / "checkpoints" / "last.ckpt").exists()


def test_requeued_job_with_overwrite_resumes(tmp_path, monkeypatch, slurm):
    args = ["fit", f"--runs_dir={tmp_path}", "--name=run", *UNVALIDATED, "--overwrite=true"]
    assert main([*args, "--trainer.max_steps=3"]) == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert main(args) == 0
    assert everything(tmp_path / "run")["global_step"] == 8
    with (tmp_path / "run" / "metrics.csv").open() as file:
        assert len(file.readlines()) == 9
