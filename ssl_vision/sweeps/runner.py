"""Runs trials in processes, as many at a time as there are slots, until none is left or a signal comes."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Generic, TypeVar

from ssl_vision.sweeps.process import Process

_LOOK, _IDLE = 0.1, 1.0
"""Seconds between two looks at processes, and at the queue when there is nothing to take."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

P = TypeVar("P", bound=Process)


class Trials(Generic[P]):
    """The trials of a ``Runner``: starts them, and records how they end."""

    def start(self, environment: Mapping[str, str]) -> P | None:
        """Starts the next process; None where there is nothing to start now."""
        raise NotImplementedError

    def watch(self, process: P) -> None:
        """Looks at a process that runs."""

    def end(self, process: P, code: int, *, stopping: bool) -> int:
        """Records how a process ended; the number of a signal by which all are to stop, or 0.

        Args:
            process: it has ended.
            code: its exit code.
            stopping: a signal has asked all processes to stop.
        """
        raise NotImplementedError

    def more(self) -> bool:
        """True if there may be something to start later, although nothing runs here."""
        return False


class Runner(Generic[P]):
    """Keeps every slot busy and passes signals on to the processes.

    Args:
        trials: they start and record.
        slots: environment variables of each process that may run at a time.
    """

    def __init__(self, trials: Trials[P], slots: Sequence[Mapping[str, str]]) -> None:
        self.trials, self.slots = trials, slots
        self._running: dict[int, P] = {}
        self._signal = 0
        self._next_start = 0.0

    def run(self) -> int:
        """Runs until no trial is left, or a signal comes; the signal's number, or 0.

        At a signal each process saves and ends, to be continued at the next start; at a second one they are
        killed.
        """
        heeded = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]
        handlers = {number: signal.signal(number, self._on_signal) for number in heeded}
        try:
            while self._step():
                time.sleep(_LOOK if self._running else _IDLE)
        finally:
            for process in self._running.values():
                process.stop()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return self._signal

    def _step(self) -> bool:
        """Looks at everything once; False at the end."""
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
