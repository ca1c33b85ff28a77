"""Tests of saving checkpoints: files are complete or absent, and a failed save keeps the previous one."""

import errno
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from forked import forked
from settings import UNVALIDATED

from ssl_vision.main import main
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
    with pytest.raises(OSError, match="No space left on device"):
        files.save_checkpoint({"n": 2}, files.last)
    files.commit()
    assert read_number(files.last) == 1
    assert names(tmp_path) == {"last.ckpt"}
    files.save_checkpoint({"n": 3}, files.last)
    files.commit()
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
        with pytest.raises(OSError, match=r"No space left on device: .*last\.ckpt"):
            files.save_checkpoint({"n": 2, "much": torch.zeros(2**20)}, files.last)
        files.commit()
        assert read_number(files.last) == 1
        assert names(small) == {"last.ckpt"}
    finally:
        subprocess.run(["umount", small], check=True)


def test_fit_ends_on_full_disk_without_traceback_and_continues_later(
    tmp_path, fill_disk_at, monkeypatch, capsys
):
    fill_disk_at({2})
    assert fit(tmp_path) == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert "Traceback" not in error
    assert names(tmp_path / "run" / "checkpoints") == {"last.ckpt"}
    assert torch.load(RunFolder(tmp_path / "run").last, weights_only=True)["global_step"] == 4
    monkeypatch.undo()
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert torch.load(RunFolder(tmp_path / "run").last, weights_only=True)["global_step"] == 8


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
