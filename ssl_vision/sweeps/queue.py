"""The queue of a sweep's cells and the record of how they ended: an Optuna study, and a lock for each cell.

A trial is a cell, and the states of trials are those of cells. Who has a cell is not in the database: it is
whoever holds the cell's lock file, which the kernel takes from a process that dies. The cell's own process
inherits the lock, so that a cell whose worker was killed is not taken up again while it still runs. Every
change of the study is made under one more lock, by one process at a time, which Optuna alone does not
ensure on SQLite.
"""

import fcntl
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import appended, atomic_write
from ssl_vision.sweeps.parameters import from_optuna, optuna_distribution
from ssl_vision.sweeps.sweep_file import changed_keys, read_sweep_file
from ssl_vision.sweeps.sweep_plan import Claim, Plan, Record, check_folder
from ssl_vision.sweeps.trials import Cell, cells_of, named_cell

_CELL = ("cell", "parameters", "varied", "attempt")
_REPEATS = 100
_STATES = {
    TrialState.WAITING: "waiting",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Queue:
    """The cells of a sweep, for as many processes as like to work on them.

    Args:
        plan: of the sweep.
        retry: cells that failed before are put in the queue again, as often as the plan says.

    Raises:
        InputError: the folder holds another sweep, or something else.
    """

    def __init__(self, plan: Plan, *, retry: bool = False) -> None:
        self.plan, self.file = plan, plan.file
        self._locks = plan.folder / ".locks"
        check_folder(plan.folder)
        self._locks.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        url = plan.storage or f"sqlite:///{(plan.folder / 'sweep.db').resolve()}"
        with self._alone():
            try:
                self._storage = optuna.storages.get_storage(url)
                self._study = self._opened()
            except (InputError, OSError):
                raise
            except Exception as error:  # SQLAlchemy's, and those of whatever driver the URL names
                shown = re.sub("//.*@", "//", url)  # without a password
                raise InputError(f"{shown} cannot be used as a database ({error})") from error
            self._fill(retry=retry)

    def claim(self) -> Claim | None:
        """A cell to be trained, or to be continued where its process died; None where there is none now."""
        with self._alone():
            trials = self._latest()
            waits = not self._over(trials)
            for state in (TrialState.RUNNING, TrialState.WAITING) if waits else (TrialState.RUNNING,):
                for trial in trials.values():
                    if trial.state is state and (claim := self._taken(trial)) is not None:
                        return claim
            return self._asked(trials) if waits and self.file.method == "bayes" else None

    def finish(self, claim: Claim, state: str, value: float | None, note: str = "") -> None:
        """Records how a cell ended and releases it."""
        with self._alone():
            self._end(claim.trial, state, value, note)
        claim.release()

    def ends_at(self, claim: Claim, values: list[float]) -> tuple[int, float] | None:
        """Where early termination ends a cell that has logged these values: the bracket, and its value there.

        A cell is judged once at each bracket; that it is to end is on record before it is told so.
        """
        early, sign = self.file.early, self.file.metric.sign
        if early is None:
            return None
        with self._alone():
            trials = self._latest()
            judged = trials[claim.cell.name].intermediate_values
            for bracket in (b for b in early.brackets(len(values)) if b not in judged):
                value = early.value(values, bracket, sign)
                others = [
                    trial.intermediate_values[bracket]
                    for name, trial in trials.items()
                    if name != claim.cell.name and bracket in trial.intermediate_values
                ]
                ends = not early.goes_on(value, others, sign)
                if ends:
                    self._storage.set_trial_user_attr(claim.trial, "stopped", bracket)
                self._storage.set_trial_intermediate_value(claim.trial, bracket, value)
                if ends:
                    return bracket, value
        return None

    def records(self) -> list[Record]:
        """All cells there are, in the order in which they were made."""
        with self._alone():
            return [
                Record(
                    _cell(trial),
                    self._state(trial),
                    trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
                    str(trial.user_attrs.get("note", "")),
                )
                for trial in self._latest().values()
            ]

    def left(self) -> tuple[int, int]:
        """How many cells have ended, and how many there are to be."""
        with self._alone():
            trials = self._latest()
            ended = sum(trial.state.is_finished() for trial in trials.values())
            if self._over(trials):
                return ended, sum(trial.state is not TrialState.WAITING for trial in trials.values())
            more = self.file.method == "bayes" and not self._study.user_attrs.get("exhausted")
            return ended, max(len(trials), (self.plan.cap or 0) if more else 0)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with appended(self._locks / "queue") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _opened(self) -> optuna.Study:
        """The study of this plan; that of another plan goes, as long as none of its cells has begun."""
        plan, copy = self.plan, self.plan.folder / "sweep.yaml"
        names = optuna.get_all_study_names(self._storage)
        if plan.name in names:
            self._study = optuna.load_study(study_name=plan.name, storage=self._storage)
            if not copy.exists() and self._study.get_trials(deepcopy=False):
                raise InputError(
                    f"{plan.folder} has no sweep.yaml, but the database has a sweep '{plan.name}', of "
                    "another folder: give this one another --name"
                )
            changed = self._changed(copy) if copy.exists() else []
            if changed and any(self._begun(trial) for trial in self._latest().values()):
                raise InputError(
                    f"{plan.folder} holds a sweep that differs ({'; '.join(changed)}): "
                    "give this one another --name"
                )
            if changed:
                optuna.delete_study(study_name=plan.name, storage=self._storage)
        study = optuna.create_study(
            study_name=plan.name,
            storage=self._storage,
            direction="maximize" if self.file.metric.sign > 0 else "minimize",
            load_if_exists=True,
        )
        study.set_user_attr("options", list(plan.options))
        study.set_user_attr("seed", plan.seed)
        with atomic_write(copy) as partial:
            partial.write_text(plan.text, encoding="utf-8")
        return study

    def _changed(self, copy: Path) -> list[str]:
        """What makes this another sweep than the folder's."""
        before = read_sweep_file(copy)
        attributes = self._study.user_attrs
        found = changed_keys(before.content, self.file.content)
        if self.file.method == "grid" and all(key.startswith("parameters.") for key in found):
            now = {cell.name: cell.parameters for cell in cells_of(self.file, cap=None, seed=0)}
            there = {name: trial.user_attrs["parameters"] for name, trial in self._latest().items()}
            found = [] if all(now.get(name) == each for name, each in there.items()) else found
        for key, given in (("options", list(self.plan.options)), ("seed", self.plan.seed)):
            if attributes.get(key, given) != given and (key != "seed" or self.file.method != "grid"):
                found.append(f"{key}: {_said(attributes[key])} there, {_said(given)} here")
        return found

    def _begun(self, trial: FrozenTrial) -> bool:
        folder = self.plan.folder / trial.user_attrs["cell"]
        return folder.exists() or self._state(trial) in ("running", "finished", "pruned")

    def _fill(self, *, retry: bool) -> None:
        """Puts every cell in the queue that is not there, and those that are to be tried again."""
        trials = self._latest()
        for cell in cells_of(self.file, cap=self.plan.cap, seed=self.plan.seed):
            if cell.name not in trials:
                self._add(cell)
        for trial in trials.values() if retry else ():
            attempt = trial.user_attrs["attempt"]
            if trial.state is TrialState.FAIL and attempt < self.plan.attempts:
                self._add(_cell(trial), attempt + 1, params=trial.params, distributions=trial.distributions)

    def _add(self, cell: Cell, attempt: int = 1, **sampled: Any) -> None:
        attributes = _attributes(cell, attempt)
        self._study.add_trial(create_trial(state=TrialState.WAITING, user_attrs=attributes, **sampled))

    def _latest(self) -> dict[str, FrozenTrial]:
        """The last trial of each cell.

        A trial without a cell was being asked for when its process died; one that is ended so is forgotten.
        """
        found: dict[str, FrozenTrial] = {}
        for trial in self._study.get_trials(deepcopy=False):
            if "cell" in trial.user_attrs:
                found[trial.user_attrs["cell"]] = trial
            elif not trial.state.is_finished():
                self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        return found

    def _over(self, trials: Mapping[str, FrozenTrial]) -> bool:
        """Whether a cell has reached the metric's target."""
        reached = self.file.metric.reached
        values = (t.value for t in trials.values() if t.state is TrialState.COMPLETE)
        return any(value is not None and reached(value) for value in values)

    def _taken(self, trial: FrozenTrial) -> Claim | None:
        """The claim on a trial's cell, unless another process has it, or it is only yet to be ended."""
        lock = self._lock(trial.user_attrs["cell"])
        if lock is None:
            return None
        if (bracket := trial.user_attrs.get("stopped")) is not None:
            value = trial.intermediate_values.get(bracket)
            self._end(trial._trial_id, "pruned", value, f"at value {bracket}")
            lock.close()
            return None
        if trial.state is TrialState.WAITING:
            self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        return Claim(_cell(trial), trial._trial_id, trial.user_attrs["attempt"], lock)

    def _asked(self, trials: Mapping[str, FrozenTrial]) -> Claim | None:
        """A new cell from the sampler, which is seeded by the number of trials before."""
        if len(trials) >= (self.plan.cap or 0) or self._study.user_attrs.get("exhausted"):
            return None
        parameters = self.file.parameters
        distributions = {".".join(path): optuna_distribution(each) for path, each in parameters.items()}
        for _ in range(_REPEATS):
            number = len(self._study.get_trials(deepcopy=False))
            seed = random.Random(f"{self.plan.seed}/{number}").getrandbits(32)
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            trial = self._study.ask(distributions)
            values = {
                path: from_optuna(each, trial.params[".".join(path)]) for path, each in parameters.items()
            }
            cell = named_cell(self.file, values)
            lock = None if cell.name in trials else self._lock(cell.name)
            if lock is None:
                self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
                continue
            attributes = _attributes(cell, 1)
            for key in reversed(_CELL):  # the name last: with it the trial is a cell
                self._storage.set_trial_user_attr(trial._trial_id, key, attributes[key])
            return Claim(cell, trial._trial_id, 1, lock)
        self._study.set_user_attr("exhausted", True)
        return None

    def _end(self, trial: int, state: str, value: float | None, note: str) -> None:
        self._storage.set_trial_user_attr(trial, "note", note)
        ended = next(key for key, name in _STATES.items() if name == state)
        self._storage.set_trial_state_values(trial, ended, None if value is None else [value])

    def _state(self, trial: FrozenTrial) -> str:
        if trial.state is not TrialState.RUNNING:
            return _STATES[trial.state]
        lock = self._lock(trial.user_attrs["cell"])
        if lock is None:
            return "running"
        lock.close()
        return "interrupted"

    def _lock(self, name: str) -> BinaryIO | None:
        """The cell's lock, or None where another process has it."""
        file = appended(self._locks / f"{name}.cell")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file


def _attributes(cell: Cell, attempt: int) -> dict[str, Any]:
    found = {"parameters": dict(cell.parameters), "varied": dict(cell.varied)}
    return {"cell": cell.name, **found, "attempt": attempt}


def _cell(trial: FrozenTrial) -> Cell:
    attributes = trial.user_attrs
    if Path(attributes["cell"]).name != attributes["cell"]:  # it becomes the name of a folder
        raise InputError(
            f"the sweep's database names a cell {attributes['cell']}, which is a path: delete it"
        )
    return Cell(attributes["cell"], attributes["parameters"], attributes["varied"])


def _said(value: Any) -> str:
    return " ".join(value) or "none" if isinstance(value, list) else str(value)
