"""``ssl-vision report --follow``: the report of a run, rewritten while it trains."""

import time
from collections.abc import Callable
from pathlib import Path

from ssl_vision.runs.registry import Run

_POLL = 2.0
"""Seconds between two looks at the logs of the run."""


def follow(path: Path, write: Callable[[Run, bool], None]) -> None:
    """Write the report now, after every epoch and validation, and a last time when the run has ended.

    Args:
        path: run directory.
        write: function that writes the report, given the run and whether it is training.
    """
    written: tuple[int, int, bool] | None = None
    while True:
        run = Run(path)
        training = run.status == "running"
        validations = sum(any(name.startswith("val/") for name in row) for row in run.history)
        state = (run.epoch, validations, training)
        if state != written:
            write(run, training)
            written = state
        if not training:
            return
        time.sleep(_POLL)
