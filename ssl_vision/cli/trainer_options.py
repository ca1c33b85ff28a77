"""Checks of trainer options whose invalid values Lightning accepts at first and fails on later."""

import math
import os
from collections.abc import Iterable
from typing import Any

from jsonargparse import Namespace
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback, StochasticWeightAveraging, Timer
from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.errors import InputError

_REFUSED = {
    "BaseFinetuning": "a continued run would freeze the backbone again; set --model.optimizer instead",
    "BatchSizeFinder": "the batch size would not be the recorded one; set --data.batch_size",
    "GradientAccumulationScheduler": "schedules count steps with a fixed --trainer.accumulate_grad_batches",
    "LearningRateFinder": "the learning rate would not be the recorded one; set --model.optimizer.lr",
    "ModelPruning": "its masks are not in the checkpoint, so the run could not be continued",
}
"""Callbacks that change recorded settings, or whose state is not in checkpoints, with the reason."""


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Check that no callback makes the run differ from its record, or from the run that continues it.

    `StochasticWeightAveraging` only causes a warning.

    Raises:
        InputError: a callback is one of those in the table, or derived from one.
    """
    for callback in callbacks:
        own = type(callback)
        if isinstance(callback, StochasticWeightAveraging):
            rank_zero_warn(f"{own.__name__}: a continued run differs; with EMAWeightAveraging it does not")
        for name in {cls.__name__ for cls in own.__mro__} & _REFUSED.keys():
            raise InputError(f"--trainer.callbacks {own.__name__} cannot be used: {_REFUSED[name]}")


def check_trainer(trainer: Namespace) -> None:
    """Check the trainer options whose invalid values Lightning does not reject.

    Raises:
        InputError: a value is out of range.
    """
    for names, valid, description in (
        (("accumulate_grad_batches", "check_val_every_n_epoch"), lambda value: value >= 1, "1 or more"),
        (
            ("max_epochs", "max_steps"),
            lambda value: value == -1 or value >= 1,
            "-1, for no limit, or 1 or more",
        ),
        (("limit_train_batches",), lambda value: value > 0, "above 0"),
        (("val_check_interval",), lambda value: not isinstance(value, (int, float)) or value > 0, "above 0"),
        (("gradient_clip_val",), lambda value: 0 <= value < math.inf, "0 or more"),
    ):
        for name in names:
            value = trainer.get(name)
            if value is not None and not valid(value):
                raise InputError(f"--trainer.{name} must be {description}, not {value}")
    cores = max(8, os.cpu_count() or 1)  # on GPUs, Lightning itself checks the number of devices
    devices = trainer.devices
    if str(devices).isdigit() and not 1 <= int(devices) <= cores:
        raise InputError(f"--trainer.devices must lie in 1..{cores}, not {devices}")
    if "spawn" in str(trainer.strategy):
        raise InputError(f"--trainer.strategy {trainer.strategy} cannot pass a run to its processes; use ddp")
    if trainer.max_time is not None and not _is_positive(trainer.max_time):
        raise InputError(
            f"--trainer.max_time must be days:hours:minutes:seconds above 0, not {trainer.max_time}"
        )


def _is_positive(duration: Any) -> bool:
    """Return True if Lightning parses the value as a duration above 0."""
    try:
        return (Timer(duration).time_remaining() or 0) > 0
    except (MisconfigurationException, TypeError, ValueError, OverflowError):
        return False
