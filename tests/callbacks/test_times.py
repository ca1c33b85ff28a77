"""Tests of the timings of an epoch, with a clock that each test sets."""

import math
from types import SimpleNamespace

import torch

from ssl_vision.callbacks import Times


def trainer_at(epoch, batches, *, batches_per_epoch=4):
    """Return a stub of a trainer that has trained on some batches of an epoch."""
    progress = SimpleNamespace(current=SimpleNamespace(ready=batches))
    return SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress)),
        current_epoch=epoch,
        num_training_batches=batches_per_epoch,
    )


def test_training_seconds_exclude_validation():
    ticks = iter([100.0, 103.0, 105.0, 111.0, 112.0, 120.0])  # start, two validations, end
    logged = {}
    trainer = trainer_at(0, 4)
    module = SimpleNamespace(log=logged.__setitem__)
    times = Times(clock=lambda: next(ticks))
    times.on_train_epoch_start(trainer, module)
    for _ in range(2):
        times.on_validation_start(trainer, module)
        times.on_validation_end(trainer, module)
    times.on_train_epoch_end(trainer, module)
    assert logged["time/train_seconds"] == 20.0 - 2.0 - 1.0 - 0.0
    assert logged["time/val_seconds"] == 2.0 + 1.0


def test_epoch_without_validation_logs_no_validation_seconds():
    ticks = iter([1.0, 4.0])
    logged = {}
    trainer = trainer_at(2, 4)
    times = Times(clock=lambda: next(ticks))
    times.on_train_epoch_start(trainer, None)
    times.on_train_epoch_end(trainer, SimpleNamespace(log=logged.__setitem__))
    assert logged == {"time/train_seconds": 3.0, "time/train_batches": 0, "time/epochs": 3.0}


def test_resumed_epoch_is_timed_from_start_of_training():
    ticks = iter([500.0, 507.0])
    logged = {}
    trainer = trainer_at(5, 3)
    times = Times(clock=lambda: next(ticks))
    times.on_train_start(trainer, None)  # without on_train_epoch_start
    times.on_train_batch_end(trainer, None, None, None, 2)
    times.on_train_epoch_end(trainer, SimpleNamespace(log=logged.__setitem__))
    assert logged == {"time/train_seconds": 7.0, "time/train_batches": 1, "time/epochs": 5.75}


def test_epoch_of_unknown_length_counts_as_one():
    logged = {}
    times = Times(clock=lambda: 0.0)
    trainer = trainer_at(1, 7, batches_per_epoch=math.inf)
    for trainer.is_last_batch, epochs in ((False, 1), (True, 2)):
        times.on_train_epoch_end(trainer, SimpleNamespace(log=logged.__setitem__))
        assert logged["time/epochs"] == epochs
