"""Tests of the lock of a run directory: a second run is refused, and a dead process holds no lock."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from settings import UNVALIDATED

from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.lock import HELD, Lock
from ssl_vision.runs.record import RunRecord

HOLDER_SCRIPT = "import sys, time; from ssl_vision.runs.lock import Lock; from pathlib import Path; "
HOLDER_SCRIPT += "lock = Lock(Path(sys.argv[1])); lock.take(); print('taken', flush=True); time.sleep(60)"


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of the folder tmp_path / "run"."""
    args = [sys.executable, "-c", HOLDER_SCRIPT, str(tmp_path / "run" / ".lock")]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_taking_a_held_lock_fails_and_names_the_process(tmp_path, holder):
    with pytest.raises(InputError, match=f"run is being trained by process {holder.pid} on "):
        Lock(tmp_path / "run" / ".lock").take()


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    lock = Lock(tmp_path / "run" / ".lock")
    lock.take()
    child = os.fork()
    if not child:
        try:
            signal.pause()
        finally:
            os._exit(0)
    try:
        lock.release()  # as when this process ends
        deadline = time.monotonic() + 20
        while lock.held and time.monotonic() < deadline:  # until the child has released its copy
            time.sleep(0.01)
        assert not lock.held
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_child_shares_the_lock_until_both_processes_have_ended(tmp_path):
    lock = Lock(tmp_path / "run" / ".lock")
    lock.take()
    descriptor = lock.share()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER_SCRIPT, str(lock.path)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[descriptor],
        env={**os.environ, HELD: str(lock.path)},
    ) as child:
        os.close(descriptor)
        assert child.stdout.readline() == "taken\n"
        lock.release()
        with pytest.raises(InputError, match=f"by process {child.pid} on "):
            Lock(lock.path).take()
        child.kill()
    assert not lock.held


def test_lock_of_killed_process_can_be_taken(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock = Lock(tmp_path / "run" / ".lock")
    lock.check()
    lock.take()
    assert lock.path.read_text().startswith(f"process {os.getpid()} on ")
    lock.release()


def test_fit_refuses_folder_in_use_with_one_line(tmp_path, holder, capsys):
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *UNVALIDATED]) == 2
    error = capsys.readouterr().err
    assert f"is being trained by process {holder.pid}" in error
    assert error.count("\n") == 1
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]


def test_fit_that_loses_race_for_lock_replaces_nothing(tmp_path, monkeypatch, capsys):
    """Both runs have checked the lock before either takes it."""
    monkeypatch.setattr(Lock, "check", lambda self: None)
    first = Lock(tmp_path / "run" / ".lock")
    first.take()
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", "--overwrite=true", *UNVALIDATED]) == 2
    assert "is being trained by process" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()
    first.release()


def test_fit_releases_lock_when_it_ends(tmp_path):
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *UNVALIDATED, "--trainer.max_epochs=1"]) == 0
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *UNVALIDATED, "--ckpt_path=last"]) == 0


def test_run_finished_meanwhile_by_another_process_is_kept(tmp_path, monkeypatch, capsys):
    """Both runs find the folder free; the other one trains and ends before this one begins."""
    start = RunRecord.on_train_start
    options = [f"--runs_dir={tmp_path}", "--name=run", *UNVALIDATED, "--trainer.max_epochs=1"]

    def start_late(self, trainer, pl_module):
        monkeypatch.setattr(RunRecord, "on_train_start", start)
        assert main(["fit", *options, "--seed_everything=5"]) == 0
        start(self, trainer, pl_module)

    monkeypatch.setattr(RunRecord, "on_train_start", start_late)
    assert main(["fit", *options]) == 2
    assert "run with a different config (seed_everything: 5 there, 0 here)" in capsys.readouterr().err
    assert read_checkpoint(tmp_path / "run").config["seed_everything"] == 5


@pytest.mark.parametrize("replaced", [True, False])
def test_run_stops_when_its_directory_is_moved_and_another_one_starts(
    tmp_path, monkeypatch, capsys, replaced
):
    step, calls = SimCLR.training_step, []
    options = [f"--runs_dir={tmp_path}", "--name=run", *UNVALIDATED, "--trainer.max_epochs=1"]

    def moving_step(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            (tmp_path / "run").rename(tmp_path / "moved")
            if replaced:
                assert main(["fit", *options, "--seed_everything=5"]) == 0
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "training_step", moving_step)
    assert main(["fit", *options, "--save_every_n_steps=1"]) == 2
    assert "run was moved or deleted while this run trained in it" in capsys.readouterr().err
    assert (tmp_path / "run").exists() == replaced
    assert [row.split(",")[0] for row in (tmp_path / "moved" / "metrics.csv").read_text().split()[1:]] == [
        "0",
        "1",
    ]
    if replaced:
        assert read_checkpoint(tmp_path / "run").config["seed_everything"] == 5
        assert len((tmp_path / "run" / "metrics.csv").read_text().split()) == 5


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_file_system_without_locks_gives_warning(tmp_path, monkeypatch, number):
    def refused(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    lock = Lock(tmp_path / "run" / ".lock")
    with pytest.warns(UserWarning, match=r"\.lock cannot be locked .*; do not start this run twice"):
        lock.take()
    assert not lock.held
    lock.release()


@pytest.mark.parametrize("make", [os.mkdir, lambda path: os.symlink(path.name, path)])
def test_lock_that_is_a_directory_or_a_link_cannot_be_taken(tmp_path, make):
    make(tmp_path / ".lock")
    lock = Lock(tmp_path / ".lock")
    assert not lock.held
    with pytest.raises(InputError, match=r"\.lock cannot be used as a lock"):
        lock.take()
