"""The queue and results of a sweep's trials: an Optuna study, and a lock for each trial.

Each attempt at a trial is an entry of the study, and the state of a trial is that of its last entry. The
database does not record which process works on a trial. It is the one that holds the lock file of the trial,
which the kernel releases when that process dies. The process of the trial inherits the lock, so that a trial
whose worker was killed is not started again while it is still running. Another lock ensures that one process
at a time changes the study, because Optuna does not ensure this on SQLite.
"""

import fcntl
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import appended, write_text
from ssl_vision.sweeps.parameters import from_optuna, optuna_distribution, size, to_optuna
from ssl_vision.sweeps.sweep_file import changed_keys, read_sweep_file
from ssl_vision.sweeps.sweep_plan import ATTEMPTS, Claim, Plan, Record, check_folder
from ssl_vision.sweeps.trials import Trial, named_trial, trials_of

_REPEATS = 5
"""Number of proposals of Optuna's sampler before a trial is drawn at random."""
_DRAWS = 1000
"""Number of random trials among which a new one is searched."""
_COMBINATIONS = 100_000
"""Largest discrete space of which every combination is considered."""
_STATES = {
    TrialState.WAITING: "waiting",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Queue:
    """The trials of a sweep, shared by any number of processes.

    Args:
        plan: plan of the sweep.
        retry: add failed trials to the queue again, up to `ATTEMPTS` attempts.

    Raises:
        InputError: the directory contains another sweep or other files.
    """

    def __init__(self, plan: Plan, *, retry: bool = False) -> None:
        self.plan, self.file = plan, plan.file
        self._locks = plan.folder / ".locks"
        check_folder(plan.folder)
        self._locks.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        database = (plan.folder / "sweep.db").resolve()
        with self._alone():
            try:
                self._storage = optuna.storages.get_storage(_sqlite_url(database))
                self._study = self._opened()
            except (InputError, OSError):
                raise
            except Exception as error:  # of SQLAlchemy
                raise InputError(f"{database} cannot be used as a database ({error})") from error
            self._fill(retry=retry)

    def claim(self) -> Claim | None:
        """Claim a trial to train, or to continue because its process died; None if there is none now."""
        with self._alone():
            entries = self._within_cap(self._latest())
            waits = not self._over(entries)
            for state in (TrialState.RUNNING, TrialState.WAITING) if waits else (TrialState.RUNNING,):
                for entry in entries.values():
                    if entry.state is state and (claim := self._taken(entry)) is not None:
                        return claim
            return self._asked(entries) if waits and self.file.method == "bayes" else None

    def claim_finished(self, wanted: Callable[[Trial], bool]) -> Claim | None:
        """Claim a finished trial that no other process holds; None if there is none now.

        Args:
            wanted: function that selects trials, called before and after the lock is acquired, because
                another process may have held it.
        """
        with self._alone():
            for entry in self._latest().values():
                if entry.state is not TrialState.COMPLETE or not wanted(_trial(entry)):
                    continue
                if (claim := self._locked(entry)) is not None:
                    if wanted(claim.trial):
                        return claim
                    claim.release()
        return None

    def finish(self, claim: Claim, state: str, value: float | None, note: str = "") -> None:
        """Record the result of a trial and release it."""
        with self._alone():
            self._end(claim.entry, state, value, note)
        claim.release()

    def ends_at(self, claim: Claim, values: list[float]) -> tuple[int, float] | None:
        """Return the bracket at which a trial is terminated early and its value there, or None to continue.

        A trial is judged once at each bracket. The decision is recorded before it takes effect.
        """
        early, sign = self.file.early, self.file.metric.sign
        if early is None:
            return None
        with self._alone():
            entries = self._latest()
            judged = entries[claim.trial.name].intermediate_values
            for bracket in (b for b in early.brackets(len(values)) if b not in judged):
                value = early.value(values, bracket, sign)
                others = [
                    entry.intermediate_values[bracket]
                    for name, entry in entries.items()
                    if name != claim.trial.name and bracket in entry.intermediate_values
                ]
                ends = not early.goes_on(value, others, sign)
                if ends:
                    self._storage.set_trial_user_attr(claim.entry, "stopped", bracket)
                self._storage.set_trial_intermediate_value(claim.entry, bracket, value)
                if ends:
                    return bracket, value
        return None

    def records(self) -> list[Record]:
        """Return all trials in the order of their creation."""
        with self._alone():
            return [
                Record(
                    _trial(entry),
                    self._state(entry),
                    entry.value if entry.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
                    str(entry.user_attrs.get("note", "")),
                )
                for entry in self._latest().values()
            ]

    def left(self) -> tuple[int, int]:
        """Return the number of trials that have ended and the total number."""
        with self._alone():
            entries = self._within_cap(self._latest())
            ended = sum(entry.state.is_finished() for entry in entries.values())
            if self._over(entries):
                return ended, sum(entry.state is not TrialState.WAITING for entry in entries.values())
            more = self.file.method == "bayes" and not self._exhausted
            return ended, max(len(entries), (self.plan.cap or 0) if more else 0)

    @property
    def _exhausted(self) -> bool:
        """True if no trial below the cap was left at an earlier call."""
        return int(self._study.user_attrs.get("exhausted", 0)) >= (self.plan.cap or 0)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with appended(self._locks / "queue") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _opened(self) -> optuna.Study:
        """Open or create the study; a study of another plan is replaced if none of its trials has begun.

        A renamed directory keeps its study, which has the former name.
        """
        plan, copy = self.plan, self.plan.folder / "sweep.yaml"
        names = optuna.get_all_study_names(self._storage)
        study_name = names[0] if names else plan.name
        if names:
            self._study = optuna.load_study(study_name=study_name, storage=self._storage)
            changed = self._changed(copy) if copy.exists() else []
            if changed and any(self._begun(entry) for entry in self._latest().values()):
                raise InputError(
                    f"{plan.folder} contains a different sweep ({'; '.join(changed)}): choose another --name"
                )
            if changed:
                optuna.delete_study(study_name=study_name, storage=self._storage)
        study = optuna.create_study(
            study_name=study_name,
            storage=self._storage,
            direction="maximize" if self.file.metric.sign > 0 else "minimize",
            load_if_exists=True,
        )
        study.set_user_attr("options", list(plan.options))
        study.set_user_attr("seed", plan.seed)
        write_text(copy, plan.text)
        return study

    def _changed(self, copy: Path) -> list[str]:
        """List the differences between this sweep and the one in the directory."""
        before = read_sweep_file(copy)
        attributes = self._study.user_attrs
        differences = changed_keys(before.content, self.file.content)
        added = differences and all(key.startswith("parameters.") for key in differences)
        if self.file.method == "grid" and added:
            new = {trial.name: trial.parameters for trial in trials_of(self.file, cap=None, seed=0)}
            old = {name: entry.user_attrs["parameters"] for name, entry in self._latest().items()}
            differences = [] if all(new.get(name) == each for name, each in old.items()) else differences
        for key, requested in (("options", list(self.plan.options)), ("seed", self.plan.seed)):
            if attributes.get(key, requested) != requested and (key != "seed" or self.file.method != "grid"):
                differences.append(f"{key}: {_shown(attributes[key])} there, {_shown(requested)} here")
        return differences

    def _begun(self, entry: FrozenTrial) -> bool:
        folder = self.plan.folder / entry.user_attrs["cell"]
        return folder.exists() or self._state(entry) in ("running", "finished", "pruned")

    def _fill(self, *, retry: bool) -> None:
        """Add missing trials and, with ``retry``, failed ones."""
        entries = self._latest()
        for trial in trials_of(self.file, cap=self.plan.cap, seed=self.plan.seed):
            if trial.name not in entries:
                self._add(trial)
        for entry in entries.values() if retry else ():
            attempt = entry.user_attrs["attempt"]
            if entry.state is TrialState.FAIL and attempt < ATTEMPTS:
                self._add(
                    _trial(entry),
                    attempt + 1,
                    params=entry.params,
                    distributions=entry.distributions,
                    intermediate_values=dict(entry.intermediate_values),  # of brackets that it has passed
                )

    def _add(self, trial: Trial, attempt: int = 1, **earlier: Any) -> None:
        attributes = _attributes(trial, attempt)
        self._study.add_trial(create_trial(state=TrialState.WAITING, user_attrs=attributes, **earlier))

    def _latest(self) -> dict[str, FrozenTrial]:
        """Return the last entry of each trial.

        An entry without a trial comes from a process that died during sampling; it is marked as failed.
        """
        latest: dict[str, FrozenTrial] = {}
        for entry in self._study.get_trials(deepcopy=False):
            if "cell" in entry.user_attrs:
                latest[entry.user_attrs["cell"]] = entry
            elif not entry.state.is_finished():
                self._storage.set_trial_state_values(entry._trial_id, TrialState.FAIL)
        return latest

    def _within_cap(self, entries: Mapping[str, FrozenTrial]) -> dict[str, FrozenTrial]:
        """Leave out trials above the cap that were added without it, unless they have begun."""
        new = [
            name
            for name, entry in entries.items()
            if entry.state is TrialState.WAITING and entry.user_attrs["attempt"] == 1
        ]
        begun = len(entries) - len(new)
        excess = set() if self.plan.cap is None else set(new[max(self.plan.cap - begun, 0) :])
        return {name: entry for name, entry in entries.items() if name not in excess}

    def _over(self, entries: Mapping[str, FrozenTrial]) -> bool:
        """True if a trial has reached the metric's target."""
        reached = self.file.metric.reached
        values = (t.value for t in entries.values() if t.state is TrialState.COMPLETE)
        return any(value is not None and reached(value) for value in values)

    def _taken(self, entry: FrozenTrial) -> Claim | None:
        """Claim the trial of an entry; None if another process holds it or early termination ended it."""
        claim = self._locked(entry)
        if claim is None:
            return None
        if (bracket := entry.user_attrs.get("stopped")) is not None:
            value = entry.intermediate_values.get(bracket)
            self._end(entry._trial_id, "pruned", value, f"at value {bracket}")
            claim.release()
            return None
        if entry.state is TrialState.WAITING:
            self._storage.set_trial_state_values(entry._trial_id, TrialState.RUNNING)
        return claim

    def _locked(self, entry: FrozenTrial) -> Claim | None:
        """Claim the trial of an entry; None if another process holds it."""
        lock = self._lock(entry.user_attrs["cell"])
        if lock is None:
            return None
        return Claim(_trial(entry), entry._trial_id, entry.user_attrs["attempt"], lock)

    def _asked(self, entries: Mapping[str, FrozenTrial]) -> Claim | None:
        """Claim a new trial from the sampler, whose seed depends on the number of entries.

        If the sampler only proposes trials that exist, as it does when few are left, one is drawn at random.
        """
        if len(entries) >= (self.plan.cap or 0) or self._exhausted:
            return None
        parameters = self.file.parameters
        distributions = {".".join(path): optuna_distribution(each) for path, each in parameters.items()}
        for _ in range(_REPEATS):
            number = len(self._study.get_trials(deepcopy=False))
            seed = random.Random(f"{self.plan.seed}/{number}").getrandbits(32)
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            entry = self._study.ask(distributions)
            values = {
                path: from_optuna(each, entry.params[".".join(path)]) for path, each in parameters.items()
            }
            trial = named_trial(self.file, values)
            lock = None if trial.name in entries else self._lock(trial.name)
            if lock is None:
                self._storage.set_trial_state_values(entry._trial_id, TrialState.FAIL)
                continue
            for key, value in _attributes(trial, 1).items():
                self._storage.set_trial_user_attr(entry._trial_id, key, value)
            return Claim(trial, entry._trial_id, 1, lock)
        for quantiles in self._quantiles(random.Random(f"{self.plan.seed}/{number}")):
            drawn = {
                path: to_optuna(each, quantile)
                for (path, each), quantile in zip(parameters.items(), quantiles, strict=True)
            }
            trial = named_trial(
                self.file, {path: from_optuna(parameters[path], value) for path, value in drawn.items()}
            )
            if trial.name not in entries:
                params = {".".join(path): value for path, value in drawn.items()}
                self._add(trial, params=params, distributions=distributions)
                return self._taken(self._latest()[trial.name])
        self._study.set_user_attr("exhausted", self.plan.cap)
        return None

    def _quantiles(self, generator: random.Random) -> Iterator[tuple[float, ...]]:
        """Iterate over quantiles of the parameters: all combinations in random order if they are few."""
        sizes = [size(each) for each in self.file.parameters.values()]
        if math.prod(sizes) > _COMBINATIONS:
            for _ in range(_DRAWS):
                yield tuple(generator.random() for _ in sizes)
            return
        values = [[(i + 0.5) / count for i in range(int(count))] for count in sizes]
        combinations = list(itertools.product(*values))
        generator.shuffle(combinations)
        yield from combinations

    def _end(self, entry: int, state: str, value: float | None, note: str) -> None:
        self._storage.set_trial_user_attr(entry, "note", note)
        ended = next(key for key, name in _STATES.items() if name == state)
        self._storage.set_trial_state_values(entry, ended, None if value is None else [value])

    def _state(self, entry: FrozenTrial) -> str:
        if entry.state is not TrialState.RUNNING:
            return _STATES[entry.state]
        lock = self._lock(entry.user_attrs["cell"])
        if lock is None:
            return "running"
        lock.close()
        return "interrupted"

    def _lock(self, name: str) -> BinaryIO | None:
        """Acquire the lock of a trial; None if another process holds it."""
        file = appended(self._locks / f"{name}.cell")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file


def _sqlite_url(file: Path) -> str:
    """Return the URL of an SQLite database, which Optuna formats with the version of its schema.

    Raises:
        InputError: the path contains a question mark, at which SQLAlchemy would end it.
    """
    if "?" in str(file):
        raise InputError(f"{file.parent}: a sweep cannot be in a directory whose path contains '?'")
    return f"sqlite:///{file}".replace("{", "{{").replace("}", "}}")


def _attributes(trial: Trial, attempt: int) -> dict[str, Any]:
    """Return the attributes of an entry; the name is last, because it makes the entry a trial."""
    values = {"attempt": attempt, "varied": dict(trial.varied), "parameters": dict(trial.parameters)}
    return {**values, "cell": trial.name}


def _trial(entry: FrozenTrial) -> Trial:
    attributes = entry.user_attrs
    if Path(attributes["cell"]).name != attributes["cell"]:  # it becomes the name of a directory
        raise InputError(
            f"the sweep's database names a trial {attributes['cell']}, which is a path: delete it"
        )
    return Trial(attributes["cell"], attributes["parameters"], attributes["varied"])


def _shown(value: Any) -> str:
    return " ".join(value) or "none" if isinstance(value, list) else str(value)
