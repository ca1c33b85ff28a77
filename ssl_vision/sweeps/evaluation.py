"""Evaluation of the finished trials of a sweep."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ssl_vision.descriptions import description_of, layer_of
from ssl_vision.errors import InputError
from ssl_vision.runs.evaluation_file import rows_of_own_data
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.evaluate_arguments import evaluate_arguments
from ssl_vision.sweeps.queue import Queue
from ssl_vision.sweeps.results_table import baseline_rows
from ssl_vision.sweeps.sweep_plan import Plan
from ssl_vision.sweeps.sweep_process import ClaimedProcess, command_line, ending
from ssl_vision.sweeps.trials import Trial


def evaluation_line(plan: Plan, trial: Trial, protocols: Sequence[str], *, baselines: bool) -> list[str]:
    """Return the command that evaluates a trial, and if needed the baselines, under some protocols."""
    fit = command_line(plan, trial)
    words = evaluate_arguments(plan.folder / trial.name, protocols, fit=fit, baselines=baselines)
    return [sys.executable, "-m", "ssl_vision", *words, "--report=false"]


class EvaluationProcess(ClaimedProcess):
    """The process that evaluates a finished trial."""


class Evaluations:
    """The finished trials of a sweep that are not yet evaluated under each of its protocols.

    Missing measurements are determined from evaluation.json, so a trial is evaluated once, even if
    ``ssl-vision evaluate`` was called manually. A failed evaluation is repeated at the next start. The first
    trial is evaluated with the baselines, which do not depend on training.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue, self.plan = queue, queue.plan
        self.failed: dict[str, str] = {}
        """Reasons of failures by the name of the trial."""
        self._done: set[str] = set()
        self._baselines_started = False

    def missing(self, trial: Trial) -> list[str]:
        """List the protocols for which a trial has no row of its last epoch."""
        run = Run(self.plan.folder / trial.name)
        rows = rows_of_own_data(run.evaluation, run.config, epoch=run.epoch)
        measured = {row.get("protocol") for row in rows}
        return [protocol for protocol in self.plan.evaluate if Path(protocol).stem not in measured]

    def start(self, environment: Mapping[str, str]) -> EvaluationProcess | None:
        """Claim a trial and start its evaluation; None if there is nothing to start now."""
        claim = self.queue.claim_finished(self._open) if self.plan.evaluate else None
        if claim is None:
            return None
        try:
            protocols = self.missing(claim.trial)
            needed = not self._baselines_started and self._lacks_baselines(protocols)
            self._baselines_started |= needed
            line = evaluation_line(self.plan, claim.trial, protocols, baselines=needed)
            return EvaluationProcess(self.plan, claim, line, environment)
        except BaseException:
            claim.release()
            raise

    def end(self, process: EvaluationProcess, code: int) -> str:
        """Record the result of an evaluation, release the trial, and describe the measurements."""
        trial = process.claim.trial
        try:
            missing = self.missing(trial)
        except InputError as error:
            missing = [str(error)]
        if code:
            self.failed[trial.name] = f"{ending(code)}: {process.last_line()}"
        elif missing:
            self.failed[trial.name] = f"no measurement under {', '.join(missing)}"
        process.claim.release()
        if trial.name in self.failed:
            return f"evaluation failed: {self.failed[trial.name]}"
        values = Run(self.plan.folder / trial.name).test_metrics
        return ", ".join(
            f"{name} {description_of(name).text(value)}"
            for name, value in values.items()
            if description_of(name).percent and not layer_of(name)[1]
        )

    def left(self) -> bool:
        """Return True if trials remain to be evaluated by this or another process."""
        return any(name not in self.failed for name in self.unevaluated())

    def unevaluated(self) -> list[str]:
        """List the names of finished trials with missing measurements."""
        if not self.plan.evaluate:
            return []
        finished = [record.trial for record in self.queue.records() if record.state == "finished"]
        return [trial.name for trial in finished if self._open(trial) or trial.name in self.failed]

    def _lacks_baselines(self, protocols: Sequence[str]) -> bool:
        """Return True if no trial has rows of the untrained network under one of the protocols."""
        measured = {
            row.get("protocol")
            for record in self.queue.records()
            for row in baseline_rows(Run(self.plan.folder / record.trial.name), "untrained")
        }
        return not {Path(protocol).stem for protocol in protocols} <= measured

    def _open(self, trial: Trial) -> bool:
        """Return True if this process should evaluate a trial."""
        if trial.name in self._done or trial.name in self.failed:
            return False
        try:
            missing = self.missing(trial)
        except InputError as error:
            self.failed[trial.name] = str(error)
            return False
        if not missing:
            self._done.add(trial.name)
        return bool(missing)
