"""A run that is stopped at any moment and continued is the run that was never stopped, to the bit."""

import csv
import os
import signal
from pathlib import Path

import pytest
import torch
from settings import TINY

from ssl_vision.main import main
from ssl_vision.models import SimCLR
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.folder import RunFolder

STATEFUL = ["--model.objective=InfoNCE", "--model.objective.temperature=Learnable"]
LONGER = ["--trainer.max_epochs=3", "--online_probe=true", "--data.eval_batch_size=64"]


def fit(runs: Path, *args: str, name: str = "run") -> int:
    return main(["fit", f"--runs_dir={runs}", f"--name={name}", *TINY, *STATEFUL, *LONGER, *args])


def everything(run: Path) -> dict:
    return torch.load(RunFolder(run).last, weights_only=True)


def same(one, other, path=""):
    """Equal to the bit, whatever is nested."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{path}[{i}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    else:
        assert one == other, path


def same_run(one: Path, other: Path) -> None:
    first, second = everything(one), everything(other)
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "epoch", "global_step"):
        same(first[key], second[key], key)
    assert (one / "metrics.csv").read_text() == (other / "metrics.csv").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    runs = tmp_path_factory.mktemp("whole")
    assert fit(runs) == 0
    return runs / "run"


@pytest.fixture
def stopped_at(monkeypatch):
    """Sends this process a signal at a moment of training: (hook, its n-th call)."""

    def arrange(hook, count, number):
        original, calls = getattr(SimCLR, hook), []

        def hooked(self, *args, **kwargs):
            calls.append(hook)
            if len(calls) == count:
                os.kill(os.getpid(), number)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(SimCLR, hook, hooked)

    return arrange


MOMENTS = [
    ("training_step", 1),
    ("training_step", 2),
    ("training_step", 4),  # the last one of the first epoch
    ("training_step", 6),
    ("validation_step", 1),
    ("validation_step", 4),
    ("validation_step", 60),  # in the second epoch's
    ("on_train_epoch_start", 2),
]


@pytest.mark.parametrize(("hook", "count"), MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_saves_and_ends_and_the_run_continues(
    tmp_path, whole, stopped_at, capfd, monkeypatch, hook, count, number
):
    with monkeypatch.context():
        stopped_at(hook, count, number)
        assert fit(tmp_path) == 128 + number
        monkeypatch.undo()
    error = capfd.readouterr().err
    assert f"{signal.Signals(number).name}: saving and ending" in error
    assert "saved; continue with --ckpt_path last" in error
    assert "Traceback" not in error
    assert fit(tmp_path, "--ckpt_path=last") == 0
    same_run(tmp_path / "run", whole)


def test_signals_do_again_what_they_did_before(tmp_path, whole):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 10])
def test_a_run_cut_by_max_steps_continues(tmp_path, whole, steps):
    assert fit(tmp_path, f"--trainer.max_steps={steps}") == 0
    assert everything(tmp_path / "run")["global_step"] == steps
    assert fit(tmp_path, "--ckpt_path=last") == 0
    same_run(tmp_path / "run", whole)


def test_accumulated_gradients_are_never_cut(tmp_path, monkeypatch, stopped_at):
    args = ["--trainer.accumulate_grad_batches=2", "--trainer.limit_train_batches=5"]
    assert fit(tmp_path, *args, name="whole") == 0
    with monkeypatch.context():
        stopped_at("training_step", 6, signal.SIGTERM)
        assert fit(tmp_path, *args) == 143
        monkeypatch.undo()
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("batch", [2, 3, 6, 11])
def test_a_process_that_dies_continues_from_the_nth_step(tmp_path, whole, monkeypatch, batch):
    """Nothing is said to the run; what it had saved by then is what there is."""

    class Death(BaseException):
        pass

    step, calls = SimCLR.training_step, []

    def dying(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == batch:
            raise Death
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "training_step", dying)
    with pytest.raises(Death):
        fit(tmp_path, "--save_every_n_steps=2")
    monkeypatch.undo()
    saved = everything(tmp_path / "run")["global_step"] if RunFolder(tmp_path / "run").last.exists() else 0
    assert saved == max(batch - 1 - (batch - 1) % 2, (batch - 1) // 4 * 4)
    assert fit(tmp_path, "--ckpt_path=last", "--save_every_n_steps=2") == 0
    same_run(tmp_path / "run", whole)


def test_an_unreadable_last_gives_way_to_the_one_before(tmp_path, whole, recwarn):
    assert fit(tmp_path, "--trainer.max_epochs=2") == 0
    last = RunFolder(tmp_path / "run").last
    last.write_bytes(last.read_bytes()[:-1000])
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert any("taking the one before it" in str(warning.message) for warning in recwarn)
    same_run(tmp_path / "run", whole)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(12))


def test_a_requeued_job_continues_by_the_same_command(tmp_path, whole, monkeypatch):
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert fit(tmp_path) == 0
    same_run(tmp_path / "run", whole)
    assert read_checkpoint(tmp_path / "run").epoch == 3
