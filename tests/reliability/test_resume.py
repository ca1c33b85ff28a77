"""Tests that an interrupted and resumed run equals the uninterrupted run bit for bit."""

import csv
import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from equal import difference_of_runs, everything
from settings import TINY

from ssl_vision.callbacks import StepSeeds
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs import log
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.folder import RunFolder

STATEFUL = ["--model.objective=InfoNCE", "--model.objective.temperature=Learnable"]
LONGER = ["--trainer.max_epochs=3", "--online_probe=true", "--data.eval_batch_size=64"]
LONGER += ["--trainer.limit_val_batches=3"]  # three of the training images and three of the held-out ones


def fit(runs: Path, *args: str, name: str = "run") -> int:
    return main(["fit", f"--runs_dir={runs}", f"--name={name}", *TINY, *STATEFUL, *LONGER, *args])


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    runs = tmp_path_factory.mktemp("whole")
    assert fit(runs) == 0
    return runs / "run"


@pytest.fixture
def crash_at(monkeypatch):
    """Crash a run at its n-th step, without a signal; return the last step that it had saved before."""

    class Death(BaseException):
        pass

    def crash_at_step(batch, runs, *options):
        step, calls = SimCLR.training_step, []

        def crashing_step(self, *args, **kwargs):
            calls.append(1)
            if len(calls) == batch:
                raise Death
            return step(self, *args, **kwargs)

        monkeypatch.setattr(SimCLR, "training_step", crashing_step)
        with pytest.raises(Death):
            fit(runs, *options)
        monkeypatch.undo()
        folder = runs / "run"
        return everything(folder)["global_step"] if RunFolder(folder).last.exists() else 0

    return crash_at_step


@pytest.fixture
def signal_at(monkeypatch):
    """Send this process a signal at the n-th call of a training hook."""

    def send_signal_at(hook, count, number):
        original, calls = getattr(SimCLR, hook), []

        def hooked(self, *args, **kwargs):
            calls.append(hook)
            if len(calls) == count:
                os.kill(os.getpid(), number)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(SimCLR, hook, hooked)

    return send_signal_at


MOMENTS = [
    ("training_step", 1),
    ("training_step", 2),
    ("training_step", 4),  # the last step of the first epoch
    ("training_step", 6),
    ("validation_step", 1),
    ("validation_step", 4),
    ("validation_step", 8),  # in the validation of the second epoch
    ("on_train_epoch_start", 2),
]
SIGINT_MOMENTS = (MOMENTS[1], MOMENTS[5])


@pytest.mark.parametrize(
    ("hook", "count", "number"),
    [
        pytest.param(*moment, signal.SIGTERM, marks=[pytest.mark.long] if moment in SIGINT_MOMENTS else [])
        for moment in MOMENTS
    ]
    + [(*moment, signal.SIGINT) for moment in SIGINT_MOMENTS],
)
def test_run_stopped_by_signal_saves_and_resumes_exactly(
    tmp_path, reference, signal_at, capfd, monkeypatch, hook, count, number
):
    signal_at(hook, count, number)
    assert fit(tmp_path) == 128 + number
    monkeypatch.undo()
    error = capfd.readouterr().err
    assert f"{signal.Signals(number).name}: saving a checkpoint and stopping" in error
    assert "Traceback" not in error
    command = shlex.split(error.rpartition("saved; continue with ssl-vision ")[2])
    assert main(command) == 0
    assert not difference_of_runs(tmp_path / "run", reference)


@pytest.mark.parametrize("option", ["--data.progressive_resizing={1: 8}", "--model.optimizer.name=muon"])
def test_resizing_and_muon_resume_exactly_within_epoch(tmp_path, option):
    args = [option, "--trainer.max_epochs=2"]
    assert fit(tmp_path, *args, name="whole") == 0
    assert fit(tmp_path, *args, "--trainer.max_steps=3") == 0
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


def test_dropout_is_resumed_exactly_within_epoch(tmp_path, monkeypatch):
    (tmp_path / "dropping.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 8), nn.Dropout(0.5))\n"
    )
    monkeypatch.chdir(tmp_path)
    options = [option for option in TINY if "encoder.width" not in option]

    def run(name, *args):
        return main(
            ["fit", "--runs_dir=.", f"--name={name}", *options, "--model.encoder=dropping.Net", *args]
        )

    assert run("whole") == 0
    assert run("run", "--trainer.max_steps=3") == 0
    assert run("run", "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


def test_fit_restores_signal_handlers(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_run_stopped_in_its_last_validation_outside_the_interval_resumes_there(
    tmp_path, signal_at, monkeypatch
):
    args = ["--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2"]
    assert fit(tmp_path, *args, name="whole") == 0
    signal_at("validation_step", 8, signal.SIGTERM)  # in the second validation, after the third epoch
    assert fit(tmp_path, *args) == 143
    monkeypatch.undo()
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


LONG = pytest.mark.long


@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=LONG), 4, pytest.param(5, marks=LONG), 10])
def test_run_ended_by_max_steps_resumes_exactly(tmp_path, reference, steps):
    assert fit(tmp_path, f"--trainer.max_steps={steps}") == 0
    assert everything(tmp_path / "run")["global_step"] == steps
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", reference)


@pytest.mark.parametrize("options", [[], ["--trainer.val_check_interval=3"]], ids=["", "validated within"])
def test_run_stopped_during_gradient_accumulation_resumes_exactly(tmp_path, monkeypatch, signal_at, options):
    args = ["--trainer.accumulate_grad_batches=2", "--trainer.limit_train_batches=5", *options]
    assert fit(tmp_path, *args, name="whole") == 0
    signal_at("training_step", 3 if options else 6, signal.SIGTERM)
    assert fit(tmp_path, *args) == 143
    monkeypatch.undo()
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("batch", [2, pytest.param(3, marks=LONG), pytest.param(6, marks=LONG), 11])
def test_crashed_run_resumes_exactly_from_last_saved_step(tmp_path, reference, crash_at, batch):
    assert crash_at(batch, tmp_path, "--save_every_n_steps=2") == max(
        batch - 1 - (batch - 1) % 2, (batch - 1) // 4 * 4
    )
    assert fit(tmp_path, "--ckpt_path=last", "--save_every_n_steps=2") == 0
    assert not difference_of_runs(tmp_path / "run", reference)


@pytest.mark.parametrize(("batch", "saved"), [(7, 0), (11, 8)])
def test_crashed_run_resumes_exactly_from_last_saved_epoch(tmp_path, reference, crash_at, batch, saved):
    assert crash_at(batch, tmp_path, "--save_every_n_epochs=2") == saved
    assert fit(tmp_path, "--ckpt_path=last", "--save_every_n_epochs=2") == 0
    assert everything(tmp_path / "run")["global_step"] == 12  # the third epoch is the last one
    assert not difference_of_runs(tmp_path / "run", reference)


def test_run_stopped_at_end_of_epoch_saves_although_no_save_is_due(tmp_path, signal_at):
    signal_at("training_step", 4, signal.SIGTERM)  # the last step of the first epoch
    options = ["--save_every_n_epochs=2", "--trainer.check_val_every_n_epoch=2"]
    assert fit(tmp_path, *options) == 128 + signal.SIGTERM
    assert everything(tmp_path / "run")["global_step"] == 4


def test_run_ended_by_max_steps_saves_although_no_save_is_due(tmp_path):
    assert fit(tmp_path, "--save_every_n_epochs=5", "--trainer.max_steps=4") == 0
    assert everything(tmp_path / "run")["global_step"] == 4


def test_sigterm_before_first_step_saves_and_resumes_exactly(tmp_path, reference, monkeypatch):
    """Lightning notes signals from the moment when it prepares the data loaders."""

    def signalled(self, trainer, pl_module):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(StepSeeds, "on_train_start", signalled, raising=False)
    assert fit(tmp_path) == 128 + signal.SIGTERM
    monkeypatch.undo()
    assert everything(tmp_path / "run")["global_step"] == 1
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", reference)


@pytest.mark.parametrize("failing", [6, pytest.param(8, marks=LONG)])
def test_run_whose_log_cannot_be_written_resumes_exactly(tmp_path, reference, monkeypatch, capsys, failing):
    """The checkpoint of the step is complete, but its row is missing."""
    add = log._Table.add

    def failing_add(table, row):
        if row["step"] == str(failing - 1):
            raise OSError(errno.ENOSPC, "No space left on device")
        add(table, row)

    monkeypatch.setattr(log._Table, "add", failing_add)
    assert fit(tmp_path, "--save_every_n_steps=2") == 1
    monkeypatch.undo()
    assert "No space left on device" in capsys.readouterr().err
    assert everything(tmp_path / "run")["global_step"] == failing - 2
    assert fit(tmp_path, "--ckpt_path=last", "--save_every_n_steps=2") == 0
    assert not difference_of_runs(tmp_path / "run", reference)


def test_run_that_goes_back_to_an_earlier_checkpoint_has_every_step_once(tmp_path, reference, monkeypatch):
    """Killed before its next save, it goes back there again."""
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    shutil.copy(RunFolder(tmp_path / "run").last, tmp_path / "first.ckpt")
    assert fit(tmp_path, "--ckpt_path=last") == 0

    class Death(BaseException):
        pass

    def die(self, *args, **kwargs):
        raise Death

    monkeypatch.setattr(SimCLR, "training_step", die)
    with pytest.raises(Death):
        fit(tmp_path, f"--ckpt_path={tmp_path / 'first.ckpt'}")
    monkeypatch.undo()
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", reference)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(12))


def test_killed_copy_of_a_checkpoint_into_a_new_run_can_be_repeated(tmp_path, reference, monkeypatch):
    class Death(BaseException):
        pass

    def die(source, target):
        target.write_bytes(b"half of it")
        raise Death

    def remove_nothing(self, missing_ok=False):
        """A killed process removes no file."""

    first = RunFolder(reference).last
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "copyfile", die)
        killed.setattr(Path, "unlink", remove_nothing)
        with pytest.raises(Death):
            fit(tmp_path, f"--ckpt_path={first}", "--trainer.max_epochs=4")
    assert [file.suffix for file in RunFolder(tmp_path / "run").checkpoints.iterdir()] == [".partial"]
    assert fit(tmp_path, f"--ckpt_path={first}", "--trainer.max_epochs=4") == 0
    assert read_checkpoint(tmp_path / "run").epoch == 4
    assert not list((tmp_path / "run").rglob("*.partial"))


def test_damaged_last_checkpoint_is_replaced_before_training_continues(tmp_path, reference, monkeypatch):
    """Otherwise, the first save would move the damaged file over the good one."""
    assert fit(tmp_path, "--trainer.max_epochs=2") == 0
    folder = RunFolder(tmp_path / "run")
    good = folder.previous.read_bytes()
    folder.last.write_bytes(folder.last.read_bytes()[:-1000])

    class Death(BaseException):
        pass

    def die(self, *args, **kwargs):
        raise Death

    monkeypatch.setattr(SimCLR, "training_step", die)
    with pytest.warns(UserWarning, match="falling back"), pytest.raises(Death):
        fit(tmp_path, "--ckpt_path=last")
    assert folder.last.read_bytes() == good
    assert not folder.previous.exists()


def test_unreadable_last_checkpoint_falls_back_to_previous(tmp_path, reference, recwarn):
    assert fit(tmp_path, "--trainer.max_epochs=2") == 0
    last = RunFolder(tmp_path / "run").last
    last.write_bytes(last.read_bytes()[:-1000])
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert any("falling back to" in str(warning.message) for warning in recwarn)
    assert not difference_of_runs(tmp_path / "run", reference)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(12))


def test_requeued_job_resumes_with_same_command(tmp_path, reference, monkeypatch):
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert fit(tmp_path) == 0
    assert not difference_of_runs(tmp_path / "run", reference)
    assert read_checkpoint(tmp_path / "run").epoch == 3


def test_early_stop_request_saves_last_step(tmp_path, monkeypatch):
    """As with EarlyStopping, min_epochs delays the stop, and the epoch is completed."""
    step = SimCLR.training_step

    def stopping(self, *args, **kwargs):
        self.trainer.should_stop = True
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "training_step", stopping)
    assert fit(tmp_path, "--trainer.min_epochs=2") == 0
    assert everything(tmp_path / "run")["global_step"] == 8


def test_run_that_crashed_in_mid_epoch_validation_resumes_exactly(tmp_path, monkeypatch):
    args = ["--trainer.val_check_interval=2", "--save_every_n_steps=2"]
    assert fit(tmp_path, *args, name="whole") == 0

    class Death(BaseException):
        pass

    step, calls = SimCLR.validation_step, []

    def crashing_step(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 8:  # in the second validation
            raise Death
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "validation_step", crashing_step)
    with pytest.raises(Death):
        fit(tmp_path, *args)
    monkeypatch.undo()
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


def test_second_sigint_interrupts_final_validation(tmp_path, signal_at, capfd):
    signal_at("training_step", 4, signal.SIGINT)  # the epoch's last step, so the run ends in validation
    signal_at("on_validation_model_eval", 1, signal.SIGINT)
    assert fit(tmp_path) == 130
    assert "interrupted" in capfd.readouterr().err


TWO_PROCESSES = ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=32"]


def start(runs: Path, *args: str) -> subprocess.Popen:
    """Start a run in its own process and process group."""
    command = [sys.executable, "-m", "ssl_vision", "fit", f"--runs_dir={runs}", "--name=run"]
    options = [*TINY, *STATEFUL, *LONGER, *TWO_PROCESSES, *args]
    return subprocess.Popen([*command, *options], start_new_session=True, stderr=subprocess.PIPE, text=True)


def group_has_ended(group: int) -> bool:
    """Return True if the last process of a group ends within a minute."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.long
def test_two_processes_stop_together_and_resume_exactly(tmp_path):
    """Only the first process gets the signal; both stop, and both resume."""
    with start(tmp_path / "whole") as reference:
        assert reference.wait(timeout=200) == 0
    with start(tmp_path / "cut") as interrupted:
        rows = tmp_path / "cut" / "run" / "metrics.csv"
        while not rows.exists() or rows.read_text().count("\n") < 3:
            assert interrupted.poll() is None
            time.sleep(0.01)
        interrupted.send_signal(signal.SIGTERM)
        assert interrupted.wait(timeout=200) == 143
        assert "saved; continue with" in interrupted.stderr.read()
    assert group_has_ended(interrupted.pid)
    assert 2 <= everything(tmp_path / "cut" / "run")["global_step"] < 12
    with start(tmp_path / "cut", "--ckpt_path=last") as resumed:
        assert resumed.wait(timeout=200) == 0
    assert not difference_of_runs(tmp_path / "cut" / "run", tmp_path / "whole" / "run")


def test_run_killed_during_first_checkpoint_starts_from_scratch(tmp_path, reference, monkeypatch):
    class Death(BaseException):
        pass

    def crashing_commit(self):
        if self._complete:
            raise Death

    monkeypatch.setattr("ssl_vision.runs.checkpoint.AtomicCheckpointIO.commit", crashing_commit)
    with pytest.raises(Death):
        fit(tmp_path)
    monkeypatch.undo()
    assert [file.suffix for file in RunFolder(tmp_path / "run").checkpoints.iterdir()] == [".partial"]
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", reference)


def test_objective_with_memory_resumes_exactly_within_epoch(tmp_path, monkeypatch, signal_at):
    args = [
        "--model.objective=RECLAIM",
        "--model.objective.negatives=random",
        "--model.objective.objective=InfoNCE",
        "--model.objective.objective.temperature=LinearInEpoch",
        "--trainer.max_epochs=2",
    ]

    def run(name, *options):
        return main(["fit", f"--runs_dir={tmp_path}", f"--name={name}", *TINY, *LONGER, *args, *options])

    assert run("whole") == 0
    signal_at("training_step", 7, signal.SIGTERM)  # in the second epoch, the first after the warm-up
    assert run("run") == 143
    monkeypatch.undo()
    assert run("run", "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")
