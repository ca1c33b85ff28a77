"""Tests of the processes that decode images: their errors, their signals and their end."""

import gc
import multiprocessing
import os
import signal
import sys
from types import SimpleNamespace

import pytest
import torch

from ssl_vision.data.datasets.evaluation_pairs import DatasetImages
from ssl_vision.data.loading import prefetch
from ssl_vision.data.loading.loader import Batches
from ssl_vision.main import COMMANDS, Command, main

FORK = multiprocessing.get_context("fork")
IN_USE = []
"""Loaders that exist until the end of their process."""


def zeros(row):
    return torch.zeros(3, 8, 8, dtype=torch.uint8)


def dies(row):
    os.kill(os.getpid(), signal.SIGKILL)


def fails(row):
    raise ValueError("bad pixel")


def batches(decode, images=4):
    labels = torch.zeros(images, dtype=torch.int64)
    data = DatasetImages(decode, (3, 8, 8), labels, ("a",))
    data.workers = 1
    return Batches(data, batch_size=2, shuffle=False, drop_last=False, seed=0)


def load_with_a_worker_that_dies(args):
    list(batches(dies))


def load_with_a_worker_that_fails(args):
    list(batches(fails))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("dies", "RuntimeError: DataLoader worker (pid"),
        ("fails", "ValueError: bad pixel (--debug shows where)"),
    ],
)
def test_worker_errors_are_reported_in_one_line(how, message, capsys, monkeypatch):
    command = SimpleNamespace(run=globals()[f"load_with_a_worker_that_{how}"])
    monkeypatch.setitem(sys.modules, "test_load", command)
    monkeypatch.setitem(COMMANDS, "load", Command("test_load", "load images"))
    assert main(["load"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_workers_end_with_an_error(no_collection):
    before = multiprocessing.active_children()
    with pytest.raises(ValueError, match="bad pixel"):
        list(batches(fails))
    assert multiprocessing.active_children() == before


def test_worker_survives_sigterm_until_main_process_ends():
    before = multiprocessing.active_children()
    iterator = iter(batches(zeros, images=40))
    next(iterator)
    (worker,) = set(multiprocessing.active_children()) - set(before)
    worker.terminate()
    assert len(list(iterator)) == 19

    iterator = iter(batches(zeros, images=40))
    next(iterator)
    (worker,) = set(multiprocessing.active_children()) - set(before)
    prefetch._ending(os.getpid()).set()
    worker.terminate()
    worker.join(60)
    prefetch._ending(os.getpid()).clear()
    assert worker.exitcode == 0


def test_process_ends_at_once_with_loader_in_use():
    process = FORK.Process(target=end_with_loader_in_use)
    process.start()
    process.join(60)  # workers wait for two minutes after SIGTERM
    assert process.exitcode == 0


def end_with_loader_in_use():
    IN_USE.append(iter(batches(zeros, images=40)))
    next(IN_USE[0])
