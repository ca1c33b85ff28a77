"""One cell as a process: its command, its environment, its log, and what came of it."""

import ctypes
import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import appended, atomic_write, check_inside
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps import masking
from ssl_vision.sweeps.cells import Cell
from ssl_vision.sweeps.logs import last_line
from ssl_vision.sweeps.macros import expanded, is_fit, variables
from ssl_vision.sweeps.plan import Claim, Plan

_PR_SET_PDEATHSIG = 1
_SECONDS = 5.0
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class CommandLine(NamedTuple):
    """The command of a cell."""

    words: list[str]
    """What is run."""
    shown: list[str]
    """The same with ``${envvar:NAME}`` in place of values from the environment, for people and logs."""


def command_line(plan: Plan, cell: Cell) -> CommandLine:
    """What is run for a cell.

    Where that is ``ssl-vision fit``, its folder is the cell's and it continues what it finds there; W&B is
    asked for by an option after the sweep file alone.

    Raises:
        InputError: an environment variable of the file's command is not set.
    """
    file = plan.file
    words, shown = (
        expanded(
            file.command,
            cell.parameters,
            program=file.program,
            json_file=_json_file(plan, cell),
            values=values,
        )
        for values in (True, False)
    )
    more = [*plan.options]
    if is_fit(words):
        more = ["--wandb=false", "--report=false", "--trainer.enable_progress_bar=false", *plan.options]
        more += [f"--runs_dir={plan.folder}", f"--name={cell.name}", "--ckpt_path=last"]
    return CommandLine([*words, *more], [*shown, *more])


class CellProcess:
    """The process of a claimed cell.

    It ends with this one: SIGTERM comes to it when this one dies, however that dies, so that ``fit`` saves.

    Args:
        plan: of the sweep.
        claim: on the cell, whose lock the process inherits.
        environment: variables besides those of this process.

    Raises:
        InputError: the command cannot be started.
    """

    def __init__(self, plan: Plan, claim: Claim, environment: Mapping[str, str]) -> None:
        self.plan, self.claim = plan, claim
        self.log = plan.folder / "logs" / f"{claim.cell.name}.log"
        self._metrics_size = -1
        self._sent: set[int] = set()
        line = command_line(plan, claim.cell)
        check_inside(plan.folder, claim.cell.name)
        inherited = {key: value for key, value in os.environ.items() if key != "WANDB_RUN_ID"}  # of one run
        variables = {
            "WANDB_RUN_GROUP": plan.name,
            "SSL_VISION_CELL": str(plan.folder / claim.cell.name),
            **environment,
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if "${args_json_file}" in plan.file.command:
            text = json.dumps(dict(claim.cell.parameters))
            with atomic_write(_json_file(plan, claim.cell)) as partial:
                partial.write_text(text, encoding="utf-8")
        with appended(self.log) as file, _masking(plan, file) as (output, self._masking):
            file.write(f"$ {shlex.join(line.shown)}\n".encode())
            file.flush()
            self._begin = file.tell()
            try:
                self._process = subprocess.Popen(
                    line.words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**inherited, **variables},
                    pass_fds=[claim.lock.fileno()],
                    start_new_session=True,  # Ctrl-C comes to the sweep alone, which passes it on
                    preexec_fn=_bound_to(os.getpid()),
                )
            except OSError as error:
                raise InputError(f"{line.shown[0]} cannot be started ({error.strerror})") from error

    def poll(self) -> int | None:
        """The exit code, minus the number of a signal that killed it, or None while it runs."""
        code = self._process.poll()
        if code is not None and self._masking is not None:
            with suppress(subprocess.TimeoutExpired):  # a process that outlives the cell may keep it open
                self._masking.wait(_SECONDS)  # the last lines are in the log
        return code

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Sends a signal, each once."""
        if number not in self._sent:
            self._sent.add(number)
            self._process.send_signal(number)

    def new_values(self) -> list[float] | None:
        """All values of the metric so far, or None where metrics.csv is as it was the last time."""
        run = Run(self.plan.folder / self.claim.cell.name)
        try:
            size = run.folder.metrics_file.stat().st_size
        except OSError:
            return None
        if size == self._metrics_size:
            return None
        self._metrics_size = size
        if run.log_damage is not None:
            return None
        return [value for _, _, value in run.curve(self.plan.file.metric.name)]

    def outcome(self, code: int) -> tuple[str, float | None, str]:
        """The state that an exit code means, the metric's last value, and what is to be said of it."""
        metric, run = self.plan.file.metric.name, Run(self.plan.folder / self.claim.cell.name)
        if code:
            return "failed", None, f"{_ended(code)}: {last_line(self.log, self._begin)}"
        if run.log_damage is not None:
            return "failed", None, str(run.log_damage)
        value = run.last(metric)
        if value is None:
            return "failed", None, _absent(metric, run)
        if not math.isfinite(value):
            return "failed", None, f"{metric} is {value}"
        return "finished", value, ""


@contextmanager
def _masking(plan: Plan, log: BinaryIO) -> Iterator[tuple[BinaryIO, subprocess.Popen[bytes] | None]]:
    """Where a cell writes: the log, or a process that masks values of the environment on the way there."""
    names = variables(plan.file.command)
    if not names:
        yield log, None
        return
    command = [sys.executable, "-P", masking.__file__, *names]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, start_new_session=True)
    with cast(BinaryIO, process.stdin) as output:
        yield output, process


def _json_file(plan: Plan, cell: Cell) -> Path:
    return plan.folder / "logs" / f"{cell.name}.json"


def _absent(metric: str, run: Run) -> str:
    names = sorted({name for row in run.history for name in row} - {"step", "epoch"})
    if not names:
        return f"it wrote no metric to {run.folder.metrics_file}"
    return f"metrics.csv has no '{metric}'; it has {', '.join(names)}"


def _ended(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"


def _bound_to(parent: int) -> Callable[[], None]:
    """What a child does before its program starts, so that its parent's death ends it."""

    def bind() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return bind
