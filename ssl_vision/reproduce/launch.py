"""Commands of the toolkit in processes of their own."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ssl_vision.errors import Interrupted
from ssl_vision.reproduce.runs import PaperRun
from ssl_vision.runs.atomic_files import appended, check_inside
from ssl_vision.sweeps.logs import last_line

Launch = Callable[[Sequence[str], Path], int]
"""Runs a command whose output is added to a file; its exit code, or minus the signal that killed it."""

_OF_ONE_RUN = "WANDB_RUN_ID"
"""A W&B id, which runs must not share."""

_FORKS = multiprocessing.get_context("forkserver")


def worked(run: PaperRun, launch: Launch) -> str:
    """Does what is missing of a run; what came of it, in words that begin with ``failed`` where it did.

    Raises:
        Interrupted: a signal ended it.
    """
    started = time.perf_counter()
    run.place.mkdir(parents=True, exist_ok=True)
    check_inside(run.place, run.name)
    while commands := run.missing():
        if run.state == "running":
            return "left to another process, which trains it"
        command = commands[0]
        code = launch(command, run.log)
        if code > 128:
            raise Interrupted(code - 128)
        if code and run.state == "running":
            return "left to another process, which trains it"
        if code:
            return f"failed: ssl-vision {command[0]} ended with {code}; {last_line(run.log)} ({run.log})"
        if len(run.missing()) == len(commands):
            return f"failed: ssl-vision {command[0]} left nothing of what the paper file asks for ({run.log})"
    return f"done in {time.perf_counter() - started:.0f} s"


def spawned(args: Sequence[str], log: Path) -> int:
    """A new Python, as a user would start it."""
    command = [sys.executable, "-m", "ssl_vision", *args]
    environment = {key: value for key, value in os.environ.items() if key != _OF_ONE_RUN}
    with appended(log) as file:
        return subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
        ).returncode


def forked(args: Sequence[str], log: Path) -> int:
    """A fork of a process that has imported everything, with one thread: for runs as short as an import."""
    _FORKS.set_forkserver_preload(["ssl_vision.cli.fit", "ssl_vision.evaluation.evaluate"])
    process = _FORKS.Process(target=_command, args=(list(args), str(log)))
    process.start()
    process.join()
    return int(process.exitcode or 0)


def _command(args: list[str], log: str) -> None:
    """What ``spawned`` starts, in this process."""
    import torch

    with appended(Path(log)) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    os.environ.pop(_OF_ONE_RUN, None)
    sys.argv = ["ssl-vision", *args]
    runpy.run_module("ssl_vision", run_name="__main__")
