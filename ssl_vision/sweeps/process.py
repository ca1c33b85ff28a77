"""Processes of trials, with their environment, log and exit code."""

import ctypes
import multiprocessing
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import cast

from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import appended

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_FORKS = multiprocessing.get_context("forkserver")
_OF_ONE_RUN = "WANDB_RUN_ID"
"""Variable with a W&B run id, which trials must not share."""

_TAIL = 1 << 16
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST = 300


class Process:
    """A running trial, whose command and output are appended to a log.

    If this process dies for any reason, the trial receives SIGTERM, so that ``fit`` saves a checkpoint.

    Args:
        log: path of the log.
        command: program and arguments, for the log.
    """

    _pid: int

    def __init__(self, log: Path, command: Sequence[str]) -> None:
        self.log = log
        self._sent: set[int] = set()
        with appended(log) as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            self._begin = file.tell()

    def poll(self) -> int | None:
        """Return the exit code, minus the number of a signal that killed it, or None while it runs."""
        raise NotImplementedError

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal; the same signal is sent only once."""
        if number not in self._sent and self.poll() is None:
            self._sent.add(number)
            os.kill(self._pid, number)

    def last_line(self) -> str:
        """Return the last line of the output."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._begin, end - _TAIL))
            text = _ESCAPES.sub("", file.read().decode("utf-8", errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:_LONGEST] if lines else "it printed nothing"


class TrialProcess(Process):
    """A command in a new process.

    Args:
        command: program and arguments.
        log: path of the log.
        environment: environment variables in addition to those of this process.
        inherited: file descriptors that the process inherits, such as those of locks.

    Raises:
        InputError: the command cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        inherited: Sequence[int] = (),
    ) -> None:
        super().__init__(log, command)
        common = {key: value for key, value in os.environ.items() if key != _OF_ONE_RUN}
        with appended(log) as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**common, **environment},
                    pass_fds=inherited,
                    start_new_session=True,  # Ctrl-C reaches only the runner, which forwards it
                    preexec_fn=_bound_to(os.getpid()),
                )
            except OSError as error:
                raise InputError(f"{command[0]} cannot be started ({error.strerror})") from error
        self._pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, minus the number of a signal that killed it, or None while it runs."""
        return self._process.poll()


class ForkedProcess(Process):
    """An ``ssl-vision`` command in a fork of a process that has imported torch, for very short runs.

    It uses one thread.

    Args:
        args: command and options.
        log: path of the log.
        environment: environment variables in addition to those of this process.
    """

    def __init__(self, args: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        super().__init__(log, ["ssl-vision", *args])
        _FORKS.set_forkserver_preload(["ssl_vision.cli.fit", "ssl_vision.evaluation.evaluate"])
        self._process = _FORKS.Process(target=run_forked, args=(list(args), log, dict(environment)))
        self._process.start()
        self._pid = cast(int, self._process.pid)

    def poll(self) -> int | None:
        """Return the exit code, minus the number of a signal that killed it, or None while it runs."""
        return self._process.exitcode


def run_forked(args: list[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run an ``ssl-vision`` command in this process, as ``python -m ssl_vision`` does."""
    import torch

    os.setsid()
    Thread(target=_end_with_parent, daemon=True).start()
    with appended(log) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    os.environ.update(environment)
    os.environ.pop(_OF_ONE_RUN, None)
    sys.argv = ["ssl-vision", *args]
    runpy.run_module("ssl_vision", run_name="__main__")


def _end_with_parent() -> None:
    cast(BaseProcess, multiprocessing.parent_process()).join()
    os.kill(os.getpid(), signal.SIGTERM)


def _bound_to(parent: int) -> Callable[[], None]:
    """Return a function that a child calls before its program, so that it ends when its parent dies."""

    def bind() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return bind
