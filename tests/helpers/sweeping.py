"""Functions that run sweeps in separate processes."""

import csv
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

from ssl_vision.main import main

FORK = multiprocessing.get_context("fork")


def started(*args: object, log: Path) -> ForkProcess:
    """Start a sweep in a process that leads a session and writes its output to a file."""

    def run_sweep() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
        sys.stdout = sys.stderr = log.open("a")
        os.dup2(sys.stderr.fileno(), 2)
        try:
            code = main(["sweep", *map(str, args)])
        except SystemExit as error:
            code = int(error.code or 0)
        sys.stdout.flush()
        os._exit(code)

    process = FORK.Process(target=run_sweep)
    process.start()
    return process


def until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))
