"""The process of a trial of a sweep, with its command, logged values and result."""

import json
import math
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.runs.atomic_files import write_text
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.macros import expanded, is_fit, runs_fit, yaml_text
from ssl_vision.sweeps.process import TrialProcess
from ssl_vision.sweeps.sweep_plan import Claim, Plan
from ssl_vision.sweeps.trials import Trial

NOT_VALIDATED = "the trial ended before its first validation"
"""Beginning of the reason why a trial without validation metrics failed."""


def command_line(plan: Plan, trial: Trial) -> list[str]:
    """Return the command of a trial.

    If it is ``ssl-vision fit``, it uses the run directory of the trial and resumes from its last checkpoint.
    Only an option after the sweep file enables W&B.

    Raises:
        InputError: an environment variable in the command is not set.
    """
    file = plan.file
    as_text = yaml_text if runs_fit(file.command, file.program) else str
    words = expanded(
        file.command,
        trial.parameters,
        program=file.program,
        json_file=_json_file(plan, trial),
        as_text=as_text,
    )
    options = [*plan.options]
    if is_fit(words):
        options = ["--wandb=false", "--report=false", "--trainer.enable_progress_bar=false", *plan.options]
        options += [f"--runs_dir={plan.folder}", f"--name={trial.name}", "--ckpt_path=last"]
    return [*words, *options]


class ClaimedProcess(TrialProcess):
    """A process that works on a claimed trial.

    Args:
        plan: plan of the sweep.
        claim: claim on the trial, whose lock the process inherits.
        command: program and arguments.
        environment: environment variables in addition to those of this process.

    Raises:
        InputError: the command cannot be started.
    """

    def __init__(
        self, plan: Plan, claim: Claim, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.claim = claim
        log = plan.folder / "logs" / f"{claim.trial.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        additional = {"WANDB_RUN_GROUP": plan.name, **environment}
        super().__init__(command, log, additional, inherited=[claim.lock.fileno()])


class SweepProcess(ClaimedProcess):
    """The process that trains a claimed trial; see `ClaimedProcess` for its arguments."""

    def __init__(self, plan: Plan, claim: Claim, environment: Mapping[str, str]) -> None:
        self.pruned: tuple[int, float] | None = None
        """Bracket of early termination, and the value there."""
        self._metric, self._run = plan.file.metric.name, plan.folder / claim.trial.name
        self._metrics_size = -1
        if "${args_json_file}" in plan.file.command:
            write_text(_json_file(plan, claim.trial), json.dumps(dict(claim.trial.parameters)))
        command = command_line(plan, claim.trial)
        super().__init__(plan, claim, command, {"SSL_VISION_TRIAL": str(self._run), **environment})

    def new_values(self) -> list[float] | None:
        """Read all values of the metric so far; None if metrics.csv has not grown since the last call."""
        run = Run(self._run)
        try:
            size = run.folder.metrics_file.stat().st_size
        except OSError:
            return None
        if size == self._metrics_size:
            return None
        self._metrics_size = size
        if run.log_damage is not None:
            return None
        return [value for _, _, value in run.curve(self._metric)]

    def outcome(self, code: int) -> tuple[str, float | None, str]:
        """Return the state of a trial, the last value of its metric, and the reason of a failure."""
        run = Run(self._run)
        if code:
            return "failed", None, f"{ending(code)}: {self.last_line()}"
        if run.log_damage is not None:
            return "failed", None, str(run.log_damage)
        value = run.last(self._metric)
        if value is None:
            return "failed", None, _absent(self._metric, run)
        if not math.isfinite(value):
            return "failed", None, f"{self._metric} is {value}"
        return "finished", value, ""


def _json_file(plan: Plan, trial: Trial) -> Path:
    return plan.folder / "logs" / f"{trial.name}.json"


def _absent(metric: str, run: Run) -> str:
    names = sorted({name for row in run.history for name in row} - {"step", "epoch"})
    if not names:
        return f"no metric was written to {run.folder.metrics_file}"
    if metric.startswith("val/") and not any(name.startswith("val/") for name in names):
        return f"{NOT_VALIDATED}, or validation is off: set --trainer.check_val_every_n_epoch 1"
    return f"metrics.csv has no '{metric}'{closest_match(metric, names)}"


def ending(code: int) -> str:
    """Describe an exit code."""
    return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
