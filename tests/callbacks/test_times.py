"""Seconds of an epoch, by a clock that the test winds."""

from types import SimpleNamespace

import torch

from ssl_vision.callbacks import Times


def test_training_and_validation_are_told_apart():
    ticks = iter([100.0, 103.0, 105.0, 111.0, 112.0, 120.0])  # start, two validations, end
    logged = {}
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")))
    module = SimpleNamespace(log=logged.__setitem__)
    times = Times(clock=lambda: next(ticks))
    times.on_train_epoch_start(trainer, module)
    for _ in range(2):
        times.on_validation_start(trainer, module)
        times.on_validation_end(trainer, module)
    times.on_train_epoch_end(trainer, module)
    assert logged == {"time/train_seconds": 20.0 - 2.0 - 1.0, "time/val_seconds": 3.0}


def test_an_epoch_without_validation_has_no_seconds_of_it():
    ticks = iter([1.0, 4.0])
    logged = {}
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")))
    times = Times(clock=lambda: next(ticks))
    times.on_train_epoch_start(trainer, None)
    times.on_train_epoch_end(trainer, SimpleNamespace(log=logged.__setitem__))
    assert logged == {"time/train_seconds": 3.0}


def test_an_epoch_that_is_continued_counts_from_the_start_of_training():
    ticks = iter([500.0, 507.0])
    logged = {}
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")))
    times = Times(clock=lambda: next(ticks))
    times.on_train_start(trainer, None)  # and no on_train_epoch_start
    times.on_train_epoch_end(trainer, SimpleNamespace(log=logged.__setitem__))
    assert logged == {"time/train_seconds": 7.0}
