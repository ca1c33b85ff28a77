"""Training and evaluation of a paper's runs by the runner of sweeps."""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from ssl_vision.experiments.reproduce.paper_run import PaperRun
from ssl_vision.experiments.sweeps.runner import Process, Runner

_OTHER = "left to another process, which is training it"


def spawned(args: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """Start an ``ssl-vision`` command in a new Python process."""
    return Process([sys.executable, "-m", "ssl_vision", *args], log, environment)


class PaperRunner(Runner[Process]):
    """The runs of a paper, whose directories show whether training or evaluation is missing.

    There is no other queue, so runs that other commands trained are also used.

    Args:
        runs: the runs.
        slots: environment variables of each process that may run at the same time.
    """

    def __init__(self, runs: Sequence[PaperRun], slots: Sequence[Mapping[str, str]]) -> None:
        super().__init__(slots)
        self.failed = 0
        self._waiting = deque(run for run in runs if run.state != "done")
        self._count, self._ended = len(self._waiting), 0
        self._commands: dict[Process, tuple[PaperRun, list[list[str]]]] = {}
        self._started: dict[str, float] = {}
        self._begin = time.perf_counter()

    def start(self, environment: Mapping[str, str]) -> Process | None:
        """Start the next command of the next run."""
        while self._waiting:
            run = self._waiting.popleft()
            began = self._started.setdefault(run.name, time.perf_counter())
            if run.state == "running":
                self._print(run, _OTHER)
            elif commands := run.missing():
                run.place.mkdir(parents=True, exist_ok=True)
                if commands[0] == run.fit:
                    run.record_options()
                process = spawned(commands[0], run.log, environment)
                self._commands[process] = run, commands
                return process
            else:
                self._print(run, f"done in {time.perf_counter() - began:.0f} s")
        return None

    def end(self, process: Process, code: int) -> None:
        """Print the result of a run, or put it first in line for its next command."""
        run, commands = self._commands.pop(process)
        name = f"ssl-vision {commands[0][0]}"
        if code and self.signal:
            return
        if code > 128:  # a signal reached the command only
            self.signal = code - 128
        elif code and run.state == "running":
            self._print(run, _OTHER)
        elif code:
            self._fail(run, f"{name} ended with exit code {code}; {process.last_line()}")
        elif len(run.missing()) == len(commands):
            self._fail(run, f"{name} did not write the values that the paper file requires")
        else:
            self._waiting.appendleft(run)

    def _fail(self, run: PaperRun, reason: str) -> None:
        self.failed += 1
        self._print(run, f"failed: {reason} ({run.log})")

    def _print(self, run: PaperRun, state: str) -> None:
        self._ended += 1
        passed = time_text(time.perf_counter() - self._begin)
        print(f"[{self._ended}/{self._count}, {passed}] {run.name}: {state}", flush=True)


def time_text(seconds: float) -> str:
    """Format a duration such as ``3 h 05 min``, ``2 min 07 s`` or ``12 s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    )
