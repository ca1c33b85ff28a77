"""A worker: takes cells from the queue, as many at a time as it has slots, until none is left."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from ssl_vision.errors import InputError
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.cell import CellProcess
from ssl_vision.sweeps.queue import Queue

_WRONG = 3
"""So many cells that end first and all by wrong input end the sweep: it would be the same line every time."""

_LOOK, _IDLE = 0.1, 1.0
"""Seconds between two looks at processes, and at the queue when there is nothing to take."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Worker:
    """Trains cells in processes of their own.

    Args:
        queue: of the sweep.
        slots: environment variables of each place that a cell can take.
        waits: stays while other workers have cells, to take those over whose worker dies.
    """

    def __init__(self, queue: Queue, slots: Sequence[Mapping[str, str]], *, waits: bool = True) -> None:
        self.queue, self.slots, self.waits = queue, slots, waits
        self._running: dict[int, CellProcess] = {}
        self._pruned: dict[int, tuple[int, float]] = {}
        self._ended: list[str] = []
        self._any_good = any(record.state == "finished" for record in queue.records())
        self._signal = 0
        self._next_claim = 0.0
        self._said = False

    def work(self) -> int:
        """Works until no cell is left, or a signal comes; the signal's number, or 0.

        At a signal each cell saves and ends, to be continued at the next start; a second one does not wait.

        Raises:
            InputError: the first cells all ended with the same kind of complaint.
        """
        heard = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heard}
        try:
            while self._step():
                time.sleep(_LOOK if self._running else _IDLE)
        finally:
            for process in self._running.values():
                process.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._wrong:
            raise InputError(
                f"the first {_WRONG} cells ended alike; the last line: {self._ended[_WRONG - 1]}"
            )
        return self._signal

    @property
    def _wrong(self) -> bool:
        first = self._ended[:_WRONG]
        alike = len(first) == _WRONG and all(note.startswith("exit code 2:") for note in first)
        return alike and not self._any_good

    def _step(self) -> bool:
        """Looks at everything once; whether there is more to do."""
        for slot, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                self._settle(slot, process, code)
            elif self._signal:
                process.stop()
            elif slot not in self._pruned:
                self._judge(slot, process)
        if self._signal or self._wrong:
            return bool(self._running)
        self._take()
        if self._running:
            return True
        done, all_of_them = self.queue.left()
        if done >= all_of_them or not self.waits:
            return False
        if not self._said:
            self._said = True
            print(f"waiting for {all_of_them - done} that other workers have", flush=True)
        return True

    def _take(self) -> None:
        """Fills the free slots."""
        if time.monotonic() < self._next_claim:
            return
        for slot, environment in enumerate(self.slots):
            if slot in self._running or self._signal:
                continue
            claim = self.queue.claim()
            if claim is None:
                self._next_claim = time.monotonic() + _IDLE
                break
            try:
                self._running[slot] = CellProcess(self.queue.plan, claim, environment)
            except BaseException:
                claim.release()
                raise

    def _judge(self, slot: int, process: CellProcess) -> None:
        """Early termination: ends a cell that is not among the best."""
        if self.queue.file.early is None:
            return
        values = process.new_values()
        if values and (place := self.queue.ends_at(process.claim, values)):
            self._pruned[slot] = place
            process.stop()

    def _settle(self, slot: int, process: CellProcess, code: int) -> None:
        """Records how a cell ended, and says so; one that a signal ended is left to the next start."""
        place = self._pruned.pop(slot, None)
        state: str
        value: float | None
        if code and place:
            state, value, note = "pruned", place[1], f"at value {place[0]}"
        elif code and self._signal:
            process.claim.release()
            return
        else:
            state, value, note = process.outcome(code)
        self.queue.finish(process.claim, state, value, note)
        self._ended.append(note)
        self._report(process, state, value, note)

    def _report(self, process: CellProcess, state: str, value: float | None, note: str) -> None:
        done, all_of_them = self.queue.left()
        run = Run(self.queue.plan.folder / process.claim.cell.name)
        said = [] if value is None else [f"{self.queue.file.metric.name} {value:.4g}"]
        said += [note] if note else []
        if run.log_damage is None and run.seconds is not None:
            said.append(f"{run.epoch} epochs, {run.seconds:.0f} s")
        what = f"{state}: " if state != "finished" else ""
        print(f"{done}/{all_of_them} {process.claim.cell.name}: {what}{'; '.join(said)}", flush=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self._signal = bool(self._signal), number
        if not again:
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: the cells save and end; once more does not wait\n".encode())
        for process in self._running.values() if again else ():
            process.stop(signal.SIGKILL)
