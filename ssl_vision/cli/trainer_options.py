"""Checks of the trainer's options that Lightning accepts and then fails on."""

import math
import os
from typing import Any

from jsonargparse import Namespace
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Timer

from ssl_vision.errors import InputError


def check_trainer(trainer: Namespace) -> None:
    """Refuses values of the trainer's options that Lightning takes and then trips over.

    Raises:
        InputError: a value is out of range.
    """
    for names, good, description in (
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
            if value is not None and not good(value):
                raise InputError(f"--trainer.{name} must be {description}, not {value}")
    cores = max(8, os.cpu_count() or 1)  # on a GPU, Lightning compares with the devices that there are
    devices = trainer.devices
    if str(devices).isdigit() and not 1 <= int(devices) <= cores:
        raise InputError(f"--trainer.devices must lie in 1..{cores}, not {devices}")
    if trainer.max_time is not None and not _lasts(trainer.max_time):
        raise InputError(
            f"--trainer.max_time must be days:hours:minutes:seconds above 0, not {trainer.max_time}"
        )


def _lasts(duration: Any) -> bool:
    """True for what Lightning takes for a time above 0."""
    try:
        return (Timer(duration).time_remaining() or 0) > 0
    except (MisconfigurationException, TypeError, ValueError, OverflowError):
        return False
