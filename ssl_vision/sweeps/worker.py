"""A worker that runs trials from the queue of a sweep in parallel until none is left."""

from collections.abc import Mapping, Sequence

from optuna.exceptions import StorageInternalError

from ssl_vision.cli.parser import one_line
from ssl_vision.descriptions import description_of
from ssl_vision.errors import InputError
from ssl_vision.progress import epochs_text
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.evaluation import EvaluationProcess, Evaluations
from ssl_vision.sweeps.queue import Queue
from ssl_vision.sweeps.runner import Runner, Trials
from ssl_vision.sweeps.sweep_process import NOT_VALIDATED, SweepProcess

_INPUT_FAILURES = ("exit code 2:", "metrics.csv has no ", NOT_VALIDATED)
"""Beginnings of the reasons of failures that affect every trial."""

_SAME_FAILURES = 3
"""The sweep stops if this many first trials all fail because of invalid input."""


class Worker(Trials[SweepProcess | EvaluationProcess]):
    """Trains the trials of a sweep in their own processes, and evaluates finished trials.

    Args:
        queue: queue of the sweep.
        slots: environment variables of each trial that may run at the same time.
        waits: wait while other workers have trials, to continue those whose worker dies.
    """

    def __init__(self, queue: Queue, slots: Sequence[Mapping[str, str]], *, waits: bool = True) -> None:
        self.queue, self.slots, self.waits = queue, slots, waits
        self.evaluations = Evaluations(queue)
        self._notes: list[str] = []
        self._any_finished = any(record.state == "finished" for record in queue.records())
        self._announced = False

    def work(self) -> int:
        """Run until no trial is left or a signal is received, and return the number of the signal or 0.

        Raises:
            InputError: the first trials all failed because of invalid input, or the database cannot be
                written.
        """
        try:
            number = Runner(self, self.slots).run()
        except StorageInternalError as error:
            cause = one_line(str(error.__cause__ or error))
            raise InputError(
                f"the sweep's database cannot be written ({cause}); repeat the command to continue"
            ) from error
        if self._wrong:
            raise InputError(
                f"the first {_SAME_FAILURES} trials failed in the same way; "
                f"the last line: {self._notes[_SAME_FAILURES - 1]}"
            )
        return number

    @property
    def _wrong(self) -> bool:
        first = self._notes[:_SAME_FAILURES]
        alike = len(first) == _SAME_FAILURES and all(note.startswith(_INPUT_FAILURES) for note in first)
        return alike and not self._any_finished

    def start(self, environment: Mapping[str, str]) -> SweepProcess | EvaluationProcess | None:
        """Claim a trial and start its evaluation or training."""
        if (evaluation := self.evaluations.start(environment)) is not None:
            return evaluation
        claim = None if self._wrong else self.queue.claim()
        if claim is None:
            return None
        try:
            return SweepProcess(self.queue.plan, claim, environment)
        except BaseException:
            claim.release()
            raise

    def watch(self, process: SweepProcess | EvaluationProcess) -> None:
        """Terminate a trial early if it is not among the best."""
        if isinstance(process, EvaluationProcess):
            return
        if self.queue.file.early is None or process.pruned is not None:
            return
        values = process.new_values()
        if values and (bracket := self.queue.ends_at(process.claim, values)):
            process.pruned = bracket
            process.stop()

    def end(self, process: SweepProcess | EvaluationProcess, code: int, *, stopping: bool) -> int:
        """Record and print the result of a process; trials that a signal ended remain for the next start."""
        if isinstance(process, EvaluationProcess):
            if code and stopping:
                process.claim.release()
            else:
                self._print(process, self.evaluations.end(process, code))
            return 0
        value: float | None
        if code and process.pruned:
            state, value, note = "pruned", process.pruned[1], f"at value {process.pruned[0]}"
        elif code and stopping:
            process.claim.release()
            return 0
        else:
            state, value, note = process.outcome(code)
        self.queue.finish(process.claim, state, value, note)
        self._notes.append(note)
        self._print(process, self._outcome(process, state, value, note))
        return 0

    def more(self) -> bool:
        """True while other workers have trials."""
        ended, count = self.queue.left()
        if not self.waits or self._wrong or (ended >= count and not self.evaluations.left()):
            return False
        if not self._announced:
            self._announced = True
            print(f"waiting for trials of other workers: {max(1, count - ended)}", flush=True)
        return True

    def _outcome(self, process: SweepProcess, state: str, value: float | None, note: str) -> str:
        run = Run(self.queue.plan.folder / process.claim.trial.name)
        name = self.queue.file.metric.name
        parts = [] if value is None else [f"{name} {description_of(name).text(value, '.4g')}"]
        parts += [note] if note else []
        if run.log_damage is None and run.seconds is not None:
            parts.append(f"{epochs_text(run.epoch)}, {run.seconds:.0f} s")
        prefix = f"{state}: " if state != "finished" else ""
        return f"{prefix}{'; '.join(parts)}"

    def _print(self, process: SweepProcess | EvaluationProcess, outcome: str) -> None:
        ended, count = self.queue.left()
        print(f"{ended}/{count} {process.claim.trial.name}: {outcome}", flush=True)
