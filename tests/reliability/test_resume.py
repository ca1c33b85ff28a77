"""A run that is stopped at any moment and continued is the run that was never stopped, to the bit."""

import csv
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from equal import difference_of_runs, everything
from settings import TINY

from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.folder import RunFolder

STATEFUL = ["--model.objective=InfoNCE", "--model.objective.temperature=Learnable"]
LONGER = ["--trainer.max_epochs=3", "--online_probe=true", "--data.eval_batch_size=64"]


def fit(runs: Path, *args: str, name: str = "run") -> int:
    return main(["fit", f"--runs_dir={runs}", f"--name={name}", *TINY, *STATEFUL, *LONGER, *args])


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
TWICE = (MOMENTS[1], MOMENTS[5])


@pytest.mark.parametrize(
    ("hook", "count", "number"),
    [
        pytest.param(*moment, signal.SIGTERM, marks=[pytest.mark.long] if moment in TWICE else [])
        for moment in MOMENTS
    ]
    + [(*moment, signal.SIGINT) for moment in TWICE],
)
def test_a_signal_saves_and_ends_and_the_run_continues(
    tmp_path, whole, stopped_at, capfd, monkeypatch, hook, count, number
):
    with monkeypatch.context():
        stopped_at(hook, count, number)
        assert fit(tmp_path) == 128 + number
        monkeypatch.undo()
    error = capfd.readouterr().err
    assert f"{signal.Signals(number).name}: saving a checkpoint and stopping" in error
    assert "Traceback" not in error
    command = shlex.split(error.rpartition("saved; continue with ssl-vision ")[2])
    assert main(command) == 0
    assert not difference_of_runs(tmp_path / "run", whole)


@pytest.mark.parametrize("option", ["--data.progressive_resizing={1: 8}", "--model.optimizer.name=muon"])
def test_a_run_cut_within_an_epoch_continues(tmp_path, option):
    args = [option, "--trainer.max_epochs=2"]
    assert fit(tmp_path, *args, name="whole") == 0
    assert fit(tmp_path, *args, "--trainer.max_steps=3") == 0
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


def test_signals_do_again_what_they_did_before(tmp_path, whole):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


LONG = pytest.mark.long


@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=LONG), 4, pytest.param(5, marks=LONG), 10])
def test_a_run_cut_by_max_steps_continues(tmp_path, whole, steps):
    assert fit(tmp_path, f"--trainer.max_steps={steps}") == 0
    assert everything(tmp_path / "run")["global_step"] == steps
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", whole)


@pytest.mark.parametrize("options", [[], ["--trainer.val_check_interval=3"]], ids=["", "validated within"])
def test_accumulated_gradients_are_never_cut(tmp_path, monkeypatch, stopped_at, options):
    args = ["--trainer.accumulate_grad_batches=2", "--trainer.limit_train_batches=5", *options]
    assert fit(tmp_path, *args, name="whole") == 0
    with monkeypatch.context():
        stopped_at("training_step", 3 if options else 6, signal.SIGTERM)
        assert fit(tmp_path, *args) == 143
        monkeypatch.undo()
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("batch", [2, pytest.param(3, marks=LONG), pytest.param(6, marks=LONG), 11])
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
    assert not difference_of_runs(tmp_path / "run", whole)


def test_an_unreadable_last_gives_way_to_the_one_before(tmp_path, whole, recwarn):
    assert fit(tmp_path, "--trainer.max_epochs=2") == 0
    last = RunFolder(tmp_path / "run").last
    last.write_bytes(last.read_bytes()[:-1000])
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert any("falling back to" in str(warning.message) for warning in recwarn)
    assert not difference_of_runs(tmp_path / "run", whole)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(12))


def test_a_requeued_job_continues_by_the_same_command(tmp_path, whole, monkeypatch):
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert fit(tmp_path) == 0
    assert not difference_of_runs(tmp_path / "run", whole)
    assert read_checkpoint(tmp_path / "run").epoch == 3


def test_a_run_told_to_stop_before_it_may_keeps_its_last_step(tmp_path, monkeypatch):
    """min_epochs holds it up, as with EarlyStopping: the epoch ends whole."""
    step = SimCLR.training_step

    def stopping(self, *args, **kwargs):
        self.trainer.should_stop = True
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "training_step", stopping)
    assert fit(tmp_path, "--trainer.min_epochs=2") == 0
    assert everything(tmp_path / "run")["global_step"] == 8


def test_an_exception_in_a_validation_in_mid_epoch_loses_none_of_it(tmp_path, monkeypatch):
    args = ["--trainer.val_check_interval=2", "--save_every_n_steps=2"]
    assert fit(tmp_path, *args, name="whole") == 0

    class Death(BaseException):
        pass

    step, calls = SimCLR.validation_step, []

    def dying(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 30:  # the second validation
            raise Death
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "validation_step", dying)
    with pytest.raises(Death):
        fit(tmp_path, *args)
    monkeypatch.undo()
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")


def test_a_second_ctrl_c_does_not_wait(tmp_path, stopped_at, capfd, monkeypatch):
    stopped_at("training_step", 4, signal.SIGINT)  # the epoch's last step: the run ends in the validation
    stopped_at("on_validation_model_eval", 1, signal.SIGINT)
    assert fit(tmp_path) == 130
    assert "interrupted" in capfd.readouterr().err


TWO = ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=32"]


def start(runs: Path, *args: str) -> subprocess.Popen:
    """A run in a process, and a process group, of its own."""
    command = [sys.executable, "-m", "ssl_vision", "fit", f"--runs_dir={runs}", "--name=run"]
    options = [*TINY, *STATEFUL, *LONGER, *TWO, *args]
    return subprocess.Popen([*command, *options], start_new_session=True, stderr=subprocess.PIPE, text=True)


def gone(group: int) -> bool:
    """Whether the last process of a group ends within a minute."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.long
def test_two_processes_end_together_and_continue(tmp_path):
    """The signal reaches the first alone; both save and end, and both continue."""
    with start(tmp_path / "whole") as whole:
        assert whole.wait(timeout=200) == 0
    with start(tmp_path / "cut") as cut:
        rows = tmp_path / "cut" / "run" / "metrics.csv"
        while not rows.exists() or rows.read_text().count("\n") < 3:
            assert cut.poll() is None
            time.sleep(0.01)
        cut.send_signal(signal.SIGTERM)
        assert cut.wait(timeout=200) == 143
        assert "saved; continue with" in cut.stderr.read()
    assert gone(cut.pid)
    assert 2 <= everything(tmp_path / "cut" / "run")["global_step"] < 12
    with start(tmp_path / "cut", "--ckpt_path=last") as rest:
        assert rest.wait(timeout=200) == 0
    assert not difference_of_runs(tmp_path / "cut" / "run", tmp_path / "whole" / "run")


def test_one_killed_while_it_wrote_its_first_checkpoint_starts_afresh(tmp_path, whole, monkeypatch):
    class Death(BaseException):
        pass

    def dying(self):
        if self._complete:
            raise Death

    monkeypatch.setattr("ssl_vision.runs.checkpoint_io.AtomicCheckpointIO.commit", dying)
    with pytest.raises(Death):
        fit(tmp_path)
    monkeypatch.undo()
    assert [file.suffix for file in RunFolder(tmp_path / "run").checkpoints.iterdir()] == [".partial"]
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", whole)


def test_an_objective_with_a_memory_continues_within_an_epoch(tmp_path, monkeypatch, stopped_at):
    args = [
        "--model.objective=RECLAIM",
        "--model.objective.negatives=random",
        "--model.objective.objective=InfoNCE",
        "--model.objective.objective.temperature=LinearInEpoch",
    ]

    def run(name, *more):
        return main(["fit", f"--runs_dir={tmp_path}", f"--name={name}", *TINY, *LONGER, *args, *more])

    assert run("whole") == 0
    with monkeypatch.context():
        stopped_at("training_step", 7, signal.SIGTERM)  # in the second epoch, the first after the warm-up
        assert run("run") == 143
        monkeypatch.undo()
    assert run("run", "--ckpt_path=last") == 0
    assert not difference_of_runs(tmp_path / "run", tmp_path / "whole")
