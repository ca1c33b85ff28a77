"""A worker that trains and evaluates the trials of a sweep in parallel until none is left."""

import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import description_of, layer_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.launcher import Process, slots
from ssl_vision.experiments.sweeps.study import ATTEMPTS, Claim, SweepStudy
from ssl_vision.experiments.sweeps.sweep_results import baseline_rows
from ssl_vision.experiments.sweeps.trials import Plan, Trial
from ssl_vision.optional import needed
from ssl_vision.progress import epochs_text
from ssl_vision.runs.evaluation_file import rows_of_own_data
from ssl_vision.runs.registry import Run

_POLL, _IDLE = 0.1, 1.0
"""Seconds between two checks of the processes, and of the trials if there is none to start."""

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_INPUT_FAILURES = ("exit code 2:", "metrics.csv has no ")
"""Beginnings of the reasons of failures that affect every trial."""

_SAME_FAILURES = 3
"""The sweep stops if this many first trials all fail because of invalid input."""


class TrialProcess(Process):
    """The process that trains a claimed trial, or evaluates it under some protocols.

    It shares the lock of the run directory, so that a trial whose worker was killed is not started again
    while it is still saving.
    """

    def __init__(
        self, plan: Plan, claim: Claim, environment: Mapping[str, str], protocols: Sequence[str] = (),
        *, baselines: bool = False,
    ) -> None:  # fmt: skip
        self.claim, self.protocols, self.pruned, self.metrics_size = claim, protocols, "", 0
        run, log = plan.folder / claim.trial.name, plan.folder / "logs" / f"{claim.trial.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = plan.train_command(claim.trial)
        if protocols:
            command = plan.evaluate_command(claim.trial, protocols, baselines=baselines)
        trial = {"SSL_VISION_TRIAL": str(run), **plan.environment, **environment}
        super().__init__(command, log, trial, lock=claim.lock)


class Worker:
    """Trains the trials of a sweep in their own processes, and evaluates finished trials.

    Missing measurements are determined from evaluation.json, so a trial is evaluated once, even if
    ``ssl-vision evaluate`` was called manually. The first trial is evaluated with the baselines, which do not
    depend on training.

    Args:
        study: the trials.
        slots: environment variables of each trial that may run at the same time.
        waits: wait while other workers have trials, to continue those whose worker dies.
    """

    def __init__(self, study: SweepStudy, slots: Sequence[Mapping[str, str]], *, waits: bool = True) -> None:
        self.study, self.plan, self.slots, self.waits = study, study.plan, slots, waits
        self.signal = 0
        """Number of the signal that asked all processes to save and end, or 0."""
        self._running: dict[int, TrialProcess] = {}
        self._next_start = 0.0
        self.not_evaluated: dict[str, str] = {}
        """Reasons why evaluations failed, by the name of the trial."""
        self._baselines_started = self._announced = False
        self._notes: list[str] = []
        self._any_finished = any(record.state == "finished" for record in study.records())

    def work(self) -> int:
        """Run until no trial is left or a signal is received, and return the number of the signal or 0.

        After a signal, each process saves and ends, and continues at the next start. A second signal kills
        them.

        Raises:
            InputError: the first trials all failed because of invalid input.
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
        if self._wrong:
            raise InputError(
                f"the first {_SAME_FAILURES} trials failed in the same way; "
                f"the last line: {self._notes[_SAME_FAILURES - 1]}"
            )
        return self.signal

    def _step(self) -> bool:
        """Check all slots once; return False at the end."""
        for slot, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                self._next_start = 0.0
                self._end(process, code)
            elif self.signal:
                process.stop()
            else:
                self._watch(process)
        for slot, environment in enumerate(self.slots):
            if slot not in self._running and not self.signal and time.monotonic() >= self._next_start:
                if (started := self._start(environment)) is not None:
                    self._running[slot] = started
                else:
                    self._next_start = time.monotonic() + _IDLE
        return bool(self._running) or (not self.signal and self._more())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self.signal = bool(self.signal), number
        if not again:
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: the runs save and end; a second signal kills them\n".encode())
        for process in self._running.values() if again else ():
            process.stop(signal.SIGKILL)

    @property
    def _wrong(self) -> bool:
        first = self._notes[:_SAME_FAILURES]
        alike = len(first) == _SAME_FAILURES and all(note.startswith(_INPUT_FAILURES) for note in first)
        return alike and not self._any_finished

    def _start(self, environment: Mapping[str, str]) -> TrialProcess | None:
        """Claim a trial and start its evaluation or training."""
        claim, protocols = self._claim_finished(), list[str]()
        if claim is not None:
            protocols = self._missing(claim.trial)
        elif self._wrong or (claim := self.study.claim()) is None:
            return None
        baselines = bool(protocols) and not self._baselines_started and self._lacks_baselines(protocols)
        self._baselines_started |= baselines
        try:
            return TrialProcess(self.plan, claim, environment, protocols, baselines=baselines)
        except BaseException:
            claim.lock.release()
            raise

    def _watch(self, process: TrialProcess) -> None:
        """Terminate a trial early if it is not among the best."""
        run = Run(self.plan.folder / process.claim.trial.name)
        if self.study.file.early_terminate is None or process.protocols or process.pruned:
            return
        size = run.folder.metrics_file.stat().st_size if run.folder.metrics_file.exists() else 0
        if size > process.metrics_size:
            process.metrics_size = size
            values = [value for step, _, value in run.curve(self.study.file.metric.name) if step >= 0]
            process.pruned = self.study.ends_early(process.claim, values)
            if process.pruned:
                process.stop()

    def _end(self, process: TrialProcess, code: int) -> None:
        """Record and print the result of a process; trials that a signal ended remain for the next start."""
        trial, name = process.claim.trial, self.study.file.metric.name
        run = Run(self.plan.folder / trial.name)
        outcome = ""
        if process.protocols:
            outcome = "" if code and self.signal else self._evaluation(process, code, run)
        elif not (code and self.signal) or process.pruned:
            state, value, note = "pruned", None, process.pruned
            if not process.pruned:
                state, value, note = _outcome(run, name, code, process.last_line() if code else "")
                self.study.finish(process.claim, state, value, note)
            self._notes.append(note)
            parts = [] if value is None else [f"{name} {description_of(name).text(value, '.4g')}"]
            parts += [note] if note else []
            if run.seconds is not None:
                parts.append(f"{epochs_text(run.epoch)}, {run.seconds:.0f} s")
            outcome = f"{state}: " * (state != "finished") + "; ".join(parts)
        process.claim.lock.release()
        if outcome:
            ended, count = self.study.left()
            print(f"{ended}/{count} {trial.name}: {outcome}", flush=True)

    def _more(self) -> bool:
        """True while other workers have trials."""
        ended, count = self.study.left()
        evaluated = all(name in self.not_evaluated for name in self.unevaluated())
        if not self.waits or self._wrong or (ended >= count and evaluated):
            return False
        if not self._announced:
            self._announced = True
            print(f"waiting for trials of other workers: {max(1, count - ended)}", flush=True)
        return True

    def unevaluated(self) -> list[str]:
        """List the names of finished trials with missing measurements."""
        return [trial.name for trial in self._finished() if self._missing(trial)]

    def conclude(self, problems: Sequence[str] = ()) -> None:
        """End this process with an exit code unless every trial is trained and evaluated.

        Args:
            problems: other problems.

        Raises:
            SystemExit: there was a signal or a problem.
        """
        if self.signal:
            print(f"{signal.Signals(self.signal).name}: repeat the command to continue", file=sys.stderr)
            raise SystemExit(128 + self.signal)
        states = [record.state for record in self.study.records()]
        problems, logs = list(problems), self.plan.folder / "logs"
        if failed := states.count("failed"):
            problems.append(
                f"{failed} of {len(states)} trials failed: see {logs}; "
                f"the same command retries them, up to {ATTEMPTS} attempts each"
            )
        for name in self.unevaluated():
            reason = self.not_evaluated.get(name, f"see {logs}")
            problems.append(f"{name} is not evaluated: {reason}; the same command retries it")
        for problem in problems:
            print(problem, file=sys.stderr)
        if problems:
            raise SystemExit(1)

    def _finished(self) -> list[Trial]:
        records = self.study.records() if self.plan.evaluate else []
        return [record.trial for record in records if record.state == "finished"]

    def _claim_finished(self) -> Claim | None:
        """Claim a finished trial that is not evaluated yet; None if there is none now."""

        def wanted(trial: Trial) -> bool:
            return bool(self._missing(trial)) and trial.name not in self.not_evaluated

        for trial in filter(wanted, self._finished()):
            if (lock := self.study.lock(trial)) is not None:
                if wanted(trial):  # still, now that no other process can evaluate it
                    return Claim(trial, lock)
                lock.release()
        return None

    def _missing(self, trial: Trial) -> list[str]:
        """List the protocols for which a trial has no row of its last epoch."""
        run = Run(self.plan.folder / trial.name)
        try:
            rows = rows_of_own_data(run.evaluation, run.config, epoch=run.epoch)
        except InputError as error:
            self.not_evaluated[trial.name] = str(error)
            return list(self.plan.evaluate)
        measured = {row.get("protocol") for row in rows}
        return [protocol for protocol in self.plan.evaluate if Path(protocol).stem not in measured]

    def _lacks_baselines(self, protocols: Sequence[str]) -> bool:
        """Return True if no trial has rows of the untrained network under one of the protocols."""
        measured = {
            row.get("protocol")
            for record in self.study.records()
            for row in baseline_rows(Run(self.plan.folder / record.trial.name), "untrained")
        }
        return not {Path(protocol).stem for protocol in protocols} <= measured

    def _evaluation(self, process: TrialProcess, code: int, run: Run) -> str:
        """Describe the measurements of an evaluation, or why it failed."""
        trial = process.claim.trial
        missing = self._missing(trial)
        if code:
            self.not_evaluated[trial.name] = f"{_ending(code)}: {process.last_line()}"
        elif missing:
            self.not_evaluated.setdefault(trial.name, f"no measurement under {', '.join(missing)}")
        if trial.name in self.not_evaluated:
            return f"evaluation failed: {self.not_evaluated[trial.name]}"
        return ", ".join(
            f"{name} {description_of(name).text(value)}"
            for name, value in run.test_metrics.items()
            if description_of(name).percent and not layer_of(name)[1]
        )


def _outcome(run: Run, metric: str, code: int, last_line: str) -> tuple[str, float | None, str]:
    """Return the state of a trial, the last value of its metric, and the reason of a failure."""
    if code:
        return "failed", None, f"{_ending(code)}: {last_line}"
    value = run.last(metric)
    if value is not None:
        finite = math.isfinite(value)
        return ("finished", value, "") if finite else ("failed", None, f"{metric} is {value}")
    names = sorted({name for row in run.history for name in row} - {"step", "epoch"})
    return "failed", None, f"metrics.csv has no '{metric}'{closest_match(metric, names)}"


def _ending(code: int) -> str:
    """Describe an exit code."""
    return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"


@dataclass(frozen=True)
class SlurmJob:
    """A worker that runs as a cluster job."""

    plan: Plan
    workers: int | None

    def __call__(self) -> int:
        """Run until there is no trial to start, and return the number of a received signal or 0."""
        return Worker(SweepStudy(self.plan), slots(self.workers), waits=False).work()

    def checkpoint(self) -> Any:
        """Return the job that submitit queues again at the time limit, when the trials save and end."""
        return needed("submitit", extra="sweep").helpers.DelayedSubmission(self)
