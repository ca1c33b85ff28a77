"""Tests of saving checkpoints: files are complete or absent, and a failed save does not stop training."""

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from forked import forked
from settings import UNVALIDATED

from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.checkpoint import AtomicCheckpointIO
from ssl_vision.runs.folder import RunFolder


def fit(runs, *args):
    return main(["fit", f"--runs_dir={runs}", "--name=run", *UNVALIDATED, *args])


def checkpoint_files(folder: Path) -> AtomicCheckpointIO:
    return AtomicCheckpointIO(folder / "last.ckpt", folder / "previous-last.ckpt")


def read_number(file: Path) -> int:
    return torch.load(file, weights_only=True)["n"]


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def fill_disk_at(monkeypatch):
    """Make the given calls of torch.save, counted from 1, fail on a full disk after half of the file."""

    def arrange(failing_calls):
        save, calls = torch.save, []

        def failing_save(content, file):
            calls.append(1)
            if len(calls) in failing_calls:
                file.write(b"half of it")
                raise OSError(errno.ENOSPC, "No space left on device")
            save(content, file)

        monkeypatch.setattr(torch, "save", failing_save)

    return arrange


def test_commit_replaces_last_checkpoint_and_keeps_previous(tmp_path):
    files = checkpoint_files(tmp_path)
    for n in (1, 2, 3):
        files.save_checkpoint({"n": n}, files.last)
        assert not files.last.exists() if n == 1 else read_number(files.last) == n - 1
        files.commit()
        assert read_number(files.last) == n
    assert read_number(files.previous) == 2
    files.commit()
    assert read_number(files.last) == 3
    files.save_checkpoint({"n": 7}, tmp_path / "epoch=1.ckpt")
    assert read_number(tmp_path / "epoch=1.ckpt") == 7
    assert names(tmp_path) == {"last.ckpt", "previous-last.ckpt", "epoch=1.ckpt"}


def test_commit_keeps_previous_checkpoint_without_hard_links(tmp_path, monkeypatch):
    def failing_link(*args):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", failing_link)
    files = checkpoint_files(tmp_path)
    for n in (1, 2):
        files.save_checkpoint({"n": n}, files.last)
        files.commit()
    assert (read_number(files.last), read_number(files.previous)) == (2, 1)


def test_full_disk_keeps_old_checkpoint_and_next_save_succeeds(tmp_path, fill_disk_at):
    files = checkpoint_files(tmp_path)
    fill_disk_at({2})
    files.save_checkpoint({"n": 1}, files.last)
    files.commit()
    with pytest.warns(
        UserWarning, match=r"last.ckpt cannot be written \(No space left on device\); training continues"
    ):
        files.save_checkpoint({"n": 2}, files.last)
    files.commit()
    assert read_number(files.last) == 1
    assert names(tmp_path) == {"last.ckpt"}
    files.save_checkpoint({"n": 3}, files.last)
    files.commit()
    files.finish()
    assert read_number(files.last) == 3


def test_full_disk_error_of_torch_save_is_recognized(tmp_path):
    """torch.save raises a RuntimeError instead of the OSError."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True
    ).returncode:
        pytest.skip("a small file system needs root")
    try:
        files = checkpoint_files(small)
        files.save_checkpoint({"n": 1}, files.last)
        files.commit()
        with pytest.warns(UserWarning, match="No space left on device"):
            files.save_checkpoint({"n": 2, "much": torch.zeros(2**20)}, files.last)
        files.commit()
        assert read_number(files.last) == 1
        assert names(small) == {"last.ckpt"}
        with pytest.raises(OSError, match="the end of the run is lost"):
            files.finish()
    finally:
        subprocess.run(["umount", small], check=True)


def test_fit_survives_full_disk(tmp_path, fill_disk_at):
    fill_disk_at({1})
    with pytest.warns(UserWarning, match="cannot be written"):
        assert fit(tmp_path) == 0
    assert names(tmp_path / "run" / "checkpoints") == {"last.ckpt"}
    assert torch.load(RunFolder(tmp_path / "run").last, weights_only=True)["global_step"] == 8


def test_fit_fails_without_traceback_if_final_checkpoint_is_lost(tmp_path, fill_disk_at, capsys):
    fill_disk_at({2, 3})
    with pytest.warns(UserWarning, match="cannot be written"):
        assert fit(tmp_path) == 1
    error = capsys.readouterr().err
    assert "the end of the run is lost" in error
    assert "Traceback" not in error
    assert torch.load(RunFolder(tmp_path / "run").last, weights_only=True)["global_step"] == 4


def test_next_save_recreates_deleted_checkpoint_folder(tmp_path):
    files = checkpoint_files(tmp_path / "gone")
    files.save_checkpoint({"n": 1}, files.last)
    files.commit()
    for file in (tmp_path / "gone").iterdir():
        file.unlink()
    (tmp_path / "gone").rmdir()
    files.save_checkpoint({"n": 2}, files.last)
    files.commit()
    assert read_number(files.last) == 2


def save_without_end(folder, ready):
    files = checkpoint_files(folder)
    RunFolder(folder).remove_partial()
    ready.set()
    for n in range(1, 100_000):
        files.save_checkpoint({"n": n, "much": torch.full((2_000_000,), float(n))}, files.last)
        files.commit()


def test_process_killed_during_save_leaves_complete_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    monkeypatch.setattr("tempfile.tempdir", None)  # so that it is read again
    highest = 0
    for kill in range(2):
        ready = multiprocessing.get_context("fork").Event()
        process = forked(save_without_end, tmp_path, ready)
        assert ready.wait(60)
        time.sleep(0.15 + 0.11 * kill)
        process.kill()
        process.join()
        for file in (tmp_path / "last.ckpt", tmp_path / "previous-last.ckpt"):
            if file.exists():
                content = torch.load(file, weights_only=True)
                assert (content["much"] == content["n"]).all()
                highest = max(highest, content["n"])
        assert len(list(tmp_path.glob(".*.partial"))) <= 1
    assert highest > 1


def test_checkpoint_is_kept_if_its_replacement_was_not_saved(tmp_path, fill_disk_at):
    fill_disk_at({2})
    files = checkpoint_files(tmp_path)
    files.save_checkpoint({"n": 1}, tmp_path / "a.ckpt")
    with pytest.warns(UserWarning, match="b.ckpt cannot be written"):
        files.save_checkpoint({"n": 2}, tmp_path / "b.ckpt")
    files.remove_checkpoint(tmp_path / "a.ckpt")  # as ModelCheckpoint does after saving b
    assert names(tmp_path) == {"a.ckpt"}
    files.save_checkpoint({"n": 3}, tmp_path / "c.ckpt")
    files.remove_checkpoint(tmp_path / "a.ckpt")
    assert names(tmp_path) == {"c.ckpt"}


def test_commit_warns_if_folder_is_gone_and_finish_restores_it(tmp_path):
    files = checkpoint_files(tmp_path / "gone")
    files.save_checkpoint({"n": 1}, files.last)
    shutil.rmtree(tmp_path / "gone")
    with pytest.warns(UserWarning, match="last.ckpt cannot be written"):
        files.commit()
    files.finish()
    assert read_number(files.last) == 1


def test_run_stopped_by_signal_on_full_disk_states_that_its_end_is_lost(
    tmp_path, fill_disk_at, monkeypatch, capsys
):
    fill_disk_at({1, 2})
    step, calls = SimCLR.training_step, []

    def interrupted_step(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "training_step", interrupted_step)
    with pytest.warns(UserWarning, match="cannot be written"):
        assert fit(tmp_path) == 1
    assert "the end of the run is lost" in capsys.readouterr().err
