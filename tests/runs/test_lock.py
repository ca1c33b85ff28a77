"""Two runs into one folder: the second stops, and a dead one leaves no claim."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from settings import TINY

from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.lock import Lock
from ssl_vision.runs.record import RunRecord

HOLD = "import sys, time; from ssl_vision.runs.lock import Lock; from pathlib import Path; "
HOLD += "lock = Lock(Path(sys.argv[1])); lock.take(); print('taken', flush=True); time.sleep(60)"


@pytest.fixture
def other(tmp_path):
    """Another process that has the folder tmp_path / "run"."""
    args = [sys.executable, "-c", HOLD, str(tmp_path / "run" / ".lock")]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_not_taken_and_says_by_whom(tmp_path, other):
    with pytest.raises(InputError, match=f"run is being trained by process {other.pid} on "):
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
        lock.release()  # as at the end of this process
        deadline = time.monotonic() + 20
        while lock.held and time.monotonic() < deadline:  # until the child has run
            time.sleep(0.01)
        assert not lock.held
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_killed_process_has_no_claim(tmp_path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    lock = Lock(tmp_path / "run" / ".lock")
    lock.check()
    lock.take()
    assert lock.path.read_text().startswith(f"process {os.getpid()} on ")
    lock.release()


def test_a_second_run_into_a_folder_stops_with_a_line(tmp_path, other, capsys):
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *TINY]) == 2
    error = capsys.readouterr().err
    assert f"is being trained by process {other.pid}" in error
    assert error.count("\n") == 1
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]


def test_one_that_comes_between_is_refused_before_anything_is_replaced(tmp_path, monkeypatch, capsys):
    """Both have looked before either took the folder."""
    monkeypatch.setattr(Lock, "check", lambda self: None)
    first = Lock(tmp_path / "run" / ".lock")
    first.take()
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", "--overwrite=true", *TINY]) == 2
    assert "is being trained by process" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()
    first.release()


def test_a_run_gives_its_folder_back(tmp_path, capsys):
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *TINY, "--trainer.max_epochs=1"]) == 0
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *TINY, "--ckpt_path=last"]) == 0


def test_a_run_that_another_finished_meanwhile_is_not_wiped(tmp_path, monkeypatch, capsys):
    """Both found the folder free; the other trained and was done before this one began."""
    start = RunRecord.on_train_start
    runs = [f"--runs_dir={tmp_path}", "--name=run", *TINY, "--trainer.max_epochs=1"]

    def late(self, trainer, pl_module):
        monkeypatch.setattr(RunRecord, "on_train_start", start)
        assert main(["fit", *runs, "--seed_everything=5"]) == 0
        start(self, trainer, pl_module)

    monkeypatch.setattr(RunRecord, "on_train_start", late)
    assert main(["fit", *runs]) == 2
    assert "run with a different config (seed_everything: 5 there, 0 here)" in capsys.readouterr().err
    assert read_checkpoint(tmp_path / "run").config["seed_everything"] == 5


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, number):
    def refused(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    lock = Lock(tmp_path / "run" / ".lock")
    with pytest.warns(UserWarning, match=r"\.lock cannot be locked .*; do not start this run twice"):
        lock.take()
    assert not lock.held
    lock.release()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path.name, path)])
def test_a_lock_that_is_no_file_is_not_held_and_cannot_be_taken(tmp_path, make):
    make(tmp_path / ".lock")
    lock = Lock(tmp_path / ".lock")
    assert not lock.held
    with pytest.raises(InputError, match=r"\.lock cannot be used as a lock"):
        lock.take()
