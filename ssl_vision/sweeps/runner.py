"""Runner of trials in parallel processes, until none is left or a signal is received."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Generic, TypeVar

from ssl_vision.sweeps.process import Process

_POLL, _IDLE = 0.1, 1.0
"""Seconds between two checks of the processes, and of the queue if there is no trial to start."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

P = TypeVar("P", bound=Process)


class Trials(Generic[P]):
    """Interface of the trials of a ``Runner``: starts them and records their results."""

    def start(self, environment: Mapping[str, str]) -> P | None:
        """Start the next process; None if there is nothing to start now."""
        raise NotImplementedError

    def watch(self, process: P) -> None:
        """Check a running process."""

    def end(self, process: P, code: int, *, stopping: bool) -> int:
        """Record the result of a process, and return the number of a signal that stops all, or 0.

        Args:
            process: process that has ended.
            code: exit code of the process.
            stopping: True if a signal has asked all processes to stop.
        """
        raise NotImplementedError

    def more(self) -> bool:
        """Return True if there may be a process to start later, although none is running."""
        return False


class Runner(Generic[P]):
    """Runs a process in every slot and forwards signals to the processes.

    Args:
        trials: trials to start and record.
        slots: environment variables of each process that may run at the same time.
    """

    def __init__(self, trials: Trials[P], slots: Sequence[Mapping[str, str]]) -> None:
        self.trials, self.slots = trials, slots
        self._running: dict[int, P] = {}
        self._signal = 0
        self._next_start = 0.0

    def run(self) -> int:
        """Run until no trial is left or a signal is received, and return the number of the signal or 0.

        After a signal, each process saves and ends, and continues at the next start. A second signal kills
        them.
        """
        heeded = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]
        handlers = {number: signal.signal(number, self._on_signal) for number in heeded}
        try:
            while self._step():
                time.sleep(_POLL if self._running else _IDLE)
        finally:
            for process in self._running.values():
                process.stop()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return self._signal

    def _step(self) -> bool:
        """Check all slots once; return False at the end."""
        for slot, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                self._next_start = 0.0
                stop = self.trials.end(process, code, stopping=bool(self._signal))
                self._signal = self._signal or stop
            elif self._signal:
                process.stop()
            else:
                self.trials.watch(process)
        for slot, environment in enumerate(self.slots):
            if slot not in self._running and not self._signal and time.monotonic() >= self._next_start:
                if (started := self.trials.start(environment)) is not None:
                    self._running[slot] = started
                else:
                    self._next_start = time.monotonic() + _IDLE
        return bool(self._running) or (not self._signal and self.trials.more())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self._signal = bool(self._signal), number
        if not again:
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: the runs save and end; a second signal kills them\n".encode())
        for process in self._running.values() if again else ():
            process.stop(signal.SIGKILL)
