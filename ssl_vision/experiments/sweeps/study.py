"""The progress of a sweep's trials: an Optuna study of those that have begun, and their run directories.

An attempt at a trial is a trial of the study, which stores its parameters, result and values at the brackets
of early termination. Which process works on a trial is not stored: it holds the lock of the run directory.
A trial without a result continues from its run directory, so that nothing is lost without the study either.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.trials import Plan, Trial
from ssl_vision.runs.files import read_text, write_text
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.lock import Lock

ATTEMPTS = 3
"""Maximum number of attempts at a trial that fails."""

_REPEATS = 5
"""Number of proposals of Optuna's sampler before a trial is drawn at random."""

_GRACE = 10
"""Seconds after which the lock of the journal, held for one write at a time, is that of a killed process."""

_STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class Record:
    """The progress of a trial.

    The state is ``waiting``, ``running``, ``interrupted``, ``finished``, ``pruned`` or ``failed``.
    """

    trial: Trial
    state: str
    value: float | None = None
    note: str = ""
    """Reason of a failure, or the bracket of early termination."""


@dataclass(frozen=True)
class Claim:
    """Exclusive right of this process to train or evaluate a trial, until its lock is released."""

    trial: Trial
    lock: Lock


class SweepStudy:
    """The trials of a sweep, shared by any number of processes.

    Args:
        plan: plan of the sweep.

    Raises:
        InputError: the directory contains another sweep or other files.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.file = plan, plan.file
        plan.folder.mkdir(parents=True, exist_ok=True)
        others = [file for file in plan.folder.iterdir() if not file.name.startswith((".", "sweep."))]
        if others and not plan.adopts_runs and not (plan.folder / "sweep.yaml").exists():
            raise InputError(f"{plan.folder} exists and is not a sweep: choose another --name")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal = plan.folder / "sweep.journal"
        try:
            lock = JournalFileOpenLock(str(journal), _GRACE)
            self._storage = JournalStorage(JournalFileBackend(str(journal), lock))
        except (ValueError, KeyError) as error:
            raise InputError(
                f"{journal} is damaged ({error}): delete it; trials continue from their run directories"
            ) from error
        self._study = self._opened()
        self._failures = self._failed_attempts()

    def records(self) -> list[Record]:
        """Return all trials, those that are known before training first."""
        attempts = self._attempts()
        trials = {trial.name: trial for trial in self.plan.trials}
        if not self.plan.adopts_runs:
            trials = {**trials, **{name: trial for name, trial in self.begun().items() if name not in trials}}
        return [self._record(trial, attempts.get(name)) for name, trial in trials.items()]

    def begun(self) -> dict[str, Trial]:
        """Return the trials that have begun, by name, with the parameters of their last attempts."""
        attempts = self._attempts().items()
        return {name: self.plan.trial(attempt.params) for name, attempt in attempts}

    def left(self) -> tuple[int, int]:
        """Return the number of trials that have ended and the total number."""
        records = self.records()
        ended = sum(record.state in _STATES.values() for record in records)
        if self._reached(records):
            return ended, sum(record.state != "waiting" for record in records)
        return ended, max(len(records), self._proposals)

    def claim(self) -> Claim | None:
        """Claim a trial to train, or to continue because its process died; None if there is none now."""
        records, failures = self.records(), self._failed_attempts()
        reached = self._reached(records)
        for record in sorted(records, key=lambda record: record.state != "interrupted"):
            name = record.trial.name
            again = record.state == "failed" and failures[name] == self._failures[name] < ATTEMPTS
            new = (record.state == "waiting" or again) and not reached
            if (new or record.state == "interrupted") and (claim := self._claimed(record.trial, again=again)):
                return claim
        return None if reached else self._proposed(records)

    def lock(self, trial: Trial) -> Lock | None:
        """Acquire the lock of a trial's run directory; None if another process holds it.

        Raises:
            InputError: the lock cannot be used.
        """
        lock = RunFolder(self.plan.folder / trial.name).lock
        try:
            lock.take()
        except InputError as error:
            if isinstance(error.__cause__, BlockingIOError):
                return None
            raise
        if not lock.held:
            raise InputError(f"{lock.path}: a sweep needs a file system with locks")
        return lock

    def finish(self, claim: Claim, state: str, value: float | None = None, note: str = "") -> None:
        """Record the result of a trial."""
        attempt = self._attempt(claim.trial)
        attempt.set_user_attr("note", note)
        ended = next(key for key, name in _STATES.items() if name == state)
        self._study.tell(attempt, value if state == "finished" else None, ended)

    def ends_early(self, claim: Claim, values: list[float]) -> str:
        """Record the values of a trial so far; return where it ends if it is not among the best, else ""."""
        attempt = self._attempt(claim.trial)
        recorded = self._attempts()[claim.trial.name].last_step or 0
        for step, value in enumerate(values[recorded:], recorded + 1):
            attempt.report(value, step)
            if attempt.should_prune():
                self.finish(claim, "pruned", note=f"at value {step}")
                return f"at value {step}"
        return ""

    @property
    def _proposals(self) -> int:
        """Number of trials that the method bayes proposes."""
        return int(min(self.file.run_cap or 0, self.file.most)) if self.file.method == "bayes" else 0

    def _opened(self) -> optuna.Study:
        """Open or create the study."""
        plan, copy, early = self.plan, self.plan.folder / "sweep.yaml", self.file.early_terminate
        settings = {"options": " ".join(plan.options), "seed": plan.seed}
        if copy.exists():
            self._compare(copy, settings)
        study = optuna.create_study(
            study_name="sweep",
            storage=self._storage,
            direction=self.file.metric.goal,
            pruner=SuccessiveHalvingPruner(early.first, early.eta) if early else None,
            load_if_exists=True,
        )
        for key, value in settings.items():
            study.set_user_attr(key, value)
        write_text(copy, plan.text)
        return study

    def _compare(self, copy: Path, settings: Mapping[str, object]) -> None:
        """Compare the plan with that in the directory, of which the study is deleted if no trial has begun.

        Raises:
            InputError: a trial of another plan has begun.
        """
        plan, before = self.plan, Plan(self.plan.folder, read_text(copy), self.file.run_cap)
        begun = [folder.name for folder in plan.folder.glob("*/") if self._has_files(folder.name)]
        changed = plan.changes(before, begun)
        studies = optuna.get_all_study_summaries(self._storage)
        for key, value in settings.items() if studies else ():
            other = studies[0].user_attrs.get(key, value)
            if other != value and (key != "seed" or self.file.method != "grid"):
                changed.append(f"{key}: {other or 'none'} there, {value or 'none'} here")
        if changed and begun:
            raise InputError(
                f"{plan.folder} contains a different sweep ({'; '.join(changed)}): choose another --name"
            )
        if changed and studies:
            optuna.delete_study(study_name="sweep", storage=self._storage)

    def _has_files(self, name: str) -> bool:
        """Return True if the run directory of a trial has files other than its lock."""
        folder = self.plan.folder / name
        return name != "logs" and folder.is_dir() and any(file.name != ".lock" for file in folder.iterdir())

    def _record(self, trial: Trial, attempt: FrozenTrial | None) -> Record:
        if attempt is not None and attempt.state in _STATES:
            return Record(trial, _STATES[attempt.state], attempt.value, attempt.user_attrs["note"])
        if RunFolder(self.plan.folder / trial.name).lock.held:
            return Record(trial, "running")
        return Record(trial, "interrupted" if self._has_files(trial.name) else "waiting")

    def _all(self) -> list[tuple[str, FrozenTrial]]:
        """Return each attempt with the name of its trial, without proposals that repeat a trial."""
        count = len(self.file.parameters)
        named = [
            (self.plan.trial(each.params).name, each)
            for each in self._study.get_trials(deepcopy=False)
            if len(each.params) == count  # else killed while it was proposed
            and (each.state is not TrialState.FAIL or "note" in each.user_attrs)
        ]
        if not self.plan.adopts_runs:
            return named
        ended = TrialState.COMPLETE
        return [(name, each) for name, each in named if each.state is not ended or self._has_files(name)]

    def _attempts(self) -> dict[str, FrozenTrial]:
        """Return the last attempt at each trial, or the one that gave its result."""
        last: dict[str, FrozenTrial] = {}
        for name, attempt in self._all():
            ended = name in last and last[name].state in (TrialState.COMPLETE, TrialState.PRUNED)
            if not ended or self.plan.adopts_runs:  # whose directory may have been deleted since
                last[name] = attempt
        return last

    def _failed_attempts(self) -> Counter[str]:
        return Counter(name for name, attempt in self._all() if attempt.state is TrialState.FAIL)

    def _attempt(self, trial: Trial) -> optuna.Trial:
        study = self._storage.get_study_id_from_name("sweep")
        number = self._attempts()[trial.name].number
        return optuna.Trial(self._study, self._storage.get_trial_id_from_study_id_trial_number(study, number))

    def _reached(self, records: list[Record]) -> bool:
        """Return True if a trial has reached the metric's target."""
        values = (record.value for record in records if record.state == "finished")
        return any(value is not None and self.file.metric.reached(value) for value in values)

    def _claimed(self, trial: Trial, *, again: bool = False) -> Claim | None:
        """Claim a trial, unless another process holds it or has given it a result meanwhile."""
        if (lock := self.lock(trial)) is None:
            return None
        last = self._attempts().get(trial.name)
        ended = last is not None and last.state in _STATES
        if ended and not (again and self._failed_attempts()[trial.name] == self._failures[trial.name]):
            lock.release()
            return None
        if last is None or ended or last.params != trial.params:
            attempt = create_trial(
                state=TrialState.RUNNING,
                params=dict(trial.params),
                distributions=self.file.distributions,
                intermediate_values=last.intermediate_values if last else {},
                system_attrs=last.system_attrs if last else {},  # at which brackets it was compared
            )
            self._study.add_trial(attempt)
        return Claim(trial, lock)

    def _proposed(self, records: list[Record]) -> Claim | None:
        """Claim a new trial from the sampler, whose seed depends on the number of trials.

        If it repeats trials, as it does when few are left, a new trial is drawn at random.
        """
        names = {record.trial.name for record in records}
        if len(names) >= self._proposals:
            return None
        for repeat in range(_REPEATS):
            seed = random.Random(f"{self.plan.seed}/{len(names)}/{repeat}").getrandbits(32)
            self._study.sampler = TPESampler(seed=seed)
            proposal = self._study.ask(self.file.distributions)
            trial = self.plan.trial(proposal.params)
            if trial.name not in names:
                return self._claimed(trial)
            self._study.tell(proposal, state=TrialState.FAIL)
        drawn = self.plan.random_trials()
        return self._claimed(next(trial for trial in drawn if trial.name not in names))
