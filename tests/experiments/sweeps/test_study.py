"""Tests of the progress of trials: claims, and behaviour that an Optuna study does not have by itself."""

import dataclasses
import errno
import math
import multiprocessing
import os
import signal

import optuna
import pytest

from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.study import SweepStudy
from ssl_vision.experiments.sweeps.trials import Plan

FORK = multiprocessing.get_context("fork")
GRID = {"x": {"values": [1, 2, 3]}}


@pytest.fixture
def plan(tmp_path, sweep_text):
    def make_plan(parameters=GRID, *, options=(), cap=None, seed=0, name="sweep", **others):
        return Plan(tmp_path / name, sweep_text(parameters, **others), cap, options, seed)

    return make_plan


def states(study):
    return {record.trial.name: record.state for record in study.records()}


def finish(study, claim, state="finished", value=None, note=""):
    """Write metrics as a trial does, and record its result."""
    (study.plan.folder / claim.trial.name / "metrics.csv").write_text("step,score\n")
    study.finish(claim, state, value, note)
    claim.lock.release()


def finish_all(study, value=lambda trial: 1.0):
    while claim := study.claim():
        finish(study, claim, value=value(claim.trial))


def run_in_killed_process(function):
    """Call the function in a process that is then killed by SIGKILL."""

    def run_and_die():
        function()
        os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=run_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_every_trial_is_claimed_once_and_recorded(plan):
    study = SweepStudy(plan())
    claims = [study.claim() for _ in range(3)]
    assert [claim.trial.name for claim in claims] == ["x=1", "x=2", "x=3"]
    assert study.claim() is None
    assert SweepStudy(plan()).claim() is None
    assert states(study) == dict.fromkeys(["x=1", "x=2", "x=3"], "running")
    finish(study, claims[0], value=0.5)
    finish(study, claims[1], "failed", None, "exit code 1: why")
    finish(study, claims[2], "pruned", None, "at value 3")
    outcomes = {record.trial.name: (record.state, record.value, record.note) for record in study.records()}
    assert outcomes == {
        "x=1": ("finished", 0.5, ""),
        "x=2": ("failed", None, "exit code 1: why"),
        "x=3": ("pruned", None, "at value 3"),
    }
    assert study.left() == (3, 3)


def test_failed_trial_is_retried_once_per_start_up_to_attempts(plan):
    for _ in range(3):
        study, other = SweepStudy(plan()), SweepStudy(plan())
        claim = study.claim()
        assert claim.trial.name == "x=1"
        finish(study, claim, "failed", None, "why")
        for each in (study, other):  # neither retries it at this start
            while claim := each.claim():
                assert claim.trial.name != "x=1"
                finish(each, claim, value=1.0)
    study = SweepStudy(plan())
    assert study.claim() is None
    assert states(study) == {"x=1": "failed", "x=2": "finished", "x=3": "finished"}


def test_trial_of_killed_process_is_continued_first(plan):
    study = SweepStudy(plan())

    def begin():
        SweepStudy(plan()).claim()
        (study.plan.folder / "x=1" / "metrics.csv").touch()

    run_in_killed_process(begin)
    assert states(study)["x=1"] == "interrupted"
    claim = study.claim()
    assert claim.trial.name == "x=1"
    assert states(study)["x=1"] == "running"
    finish(study, claim, value=0.5)
    assert len(study._study.trials) == 1


def test_reason_of_killed_worker_is_cleared_when_trial_finishes(plan):
    study = SweepStudy(plan())
    claim = study.claim()
    study._attempt(claim.trial).set_user_attr("note", "exit code 1: why")
    claim.lock.release()
    finish(study, study.claim(), value=0.5)
    assert (study.records()[0].state, study.records()[0].note) == ("finished", "")


def test_trials_continue_from_their_directories_without_the_study(plan):
    study = SweepStudy(plan())
    finish(study, study.claim(), value=0.5)
    (study.plan.folder / "sweep.journal").unlink()
    again = SweepStudy(plan())
    assert states(again) == {"x=1": "interrupted", "x=2": "waiting", "x=3": "waiting"}
    assert again.claim().trial.name == "x=1"


def test_damaged_study_raises_input_error_that_says_what_to_do(plan):
    journal = SweepStudy(plan()).plan.folder / "sweep.journal"
    journal.write_text("no journal\n" + journal.read_text())
    with pytest.raises(InputError, match=r"sweep\.journal is damaged .*: delete it; trials continue from"):
        SweepStudy(plan())


@pytest.mark.filterwarnings("ignore:The value of `grace_period`")
def test_lock_of_a_process_killed_while_writing_is_released(plan, monkeypatch):
    monkeypatch.setattr("ssl_vision.experiments.sweeps.study._GRACE", 1)
    (SweepStudy(plan()).plan.folder / "sweep.journal.lock").touch()
    assert SweepStudy(plan()).claim().trial.name == "x=1"


def test_file_system_without_locks_raises_input_error(plan, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    study = SweepStudy(plan())
    monkeypatch.setattr("ssl_vision.runs.lock.fcntl.flock", fail)
    with (
        pytest.warns(UserWarning, match="cannot be locked"),
        pytest.raises(InputError, match="needs a file system with locks"),
    ):
        study.claim()


def test_concurrent_processes_create_and_share_one_study(plan):
    barrier, claimed = FORK.Barrier(8), FORK.Queue()
    grid = {"x": {"values": list(range(24))}}

    def worker():
        barrier.wait()
        study = SweepStudy(plan(grid))
        while claim := study.claim():
            claimed.put(claim.trial.name)
            finish(study, claim, value=1.0)
        claimed.put(None)

    processes = [FORK.Process(target=worker) for _ in range(8)]
    for process in processes:
        process.start()
    names, ended = [], 0
    while ended < 8:
        name = claimed.get(timeout=100)
        ended += name is None
        names += [name] if name else []
    for process in processes:
        process.join()
    assert sorted(names) == sorted(f"x={i}" for i in range(24))
    assert list(states(SweepStudy(plan(grid))).values()) == ["finished"] * 24


def test_bayes_trains_every_combination_of_a_discrete_space(plan):
    """After ten trials, Optuna's sampler mostly proposes those that exist."""
    space = {"x": {"values": [1, 2, 3]}, "y": {"values": [1, 2]}, "z": {"min": 1, "max": 3}}
    for cap, trained in ((15, 15), (40, 18)):
        study = SweepStudy(plan(space, method="bayes", cap=cap))
        finish_all(study, lambda trial: float(trial.parameters["x"]))
        assert study.left() == (trained, trained)
    assert len(states(study)) == 18


def test_bayes_is_reproducible_by_seed_and_approaches_optimum(plan):
    def proposed_values(name, seed, cap=40):
        space = {"x": {"min": 0.0, "max": 1.0}}
        study = SweepStudy(plan(space, method="bayes", cap=cap, seed=seed, name=name))
        finish_all(study, lambda trial: -abs(trial.parameters["x"] - 0.8))
        return [record.trial.parameters["x"] for record in study.records()]

    first, other = proposed_values("one", 0), proposed_values("other", 1)
    assert proposed_values("two", 0, cap=15) == first[:15]
    assert first != other
    for xs in (first, other):
        near = [sum(abs(x - 0.8) < 0.1 for x in part) for part in (xs[:10], xs[-20:])]
        assert near[1] > 2 * near[0]


def test_trial_of_process_killed_while_asking_is_not_lost(plan):
    sweep_plan = plan({"x": {"min": 0.0, "max": 1.0}}, method="bayes", cap=2)
    run_in_killed_process(lambda: SweepStudy(sweep_plan)._study.ask())  # before it has parameters
    run_in_killed_process(lambda: SweepStudy(sweep_plan)._study.ask(sweep_plan.file.distributions))
    study = SweepStudy(sweep_plan)
    (record,) = study.records()
    claims = [study.claim() for _ in range(3)]
    assert claims[0].trial == record.trial
    assert claims[2] is None
    assert study.left() == (0, 2)


def test_no_new_trial_begins_after_target_is_reached(plan):
    study = SweepStudy(plan(metric={"name": "score", "goal": "minimize", "target": 0.1}))
    first, second = study.claim(), study.claim()
    finish(study, first, value=0.05)
    assert study.claim() is None
    assert study.left() == (1, 2)
    (study.plan.folder / "x=2" / "metrics.csv").touch()
    second.lock.release()
    assert study.claim().trial == second.trial


def test_best_third_passes_a_bracket_and_decisions_are_recorded_at_once(plan):
    early = {"type": "hyperband", "min_iter": 1, "eta": 3}
    study = SweepStudy(plan({"x": {"values": [1, 2, 3, 4]}}, early_terminate=early))
    claims = [study.claim() for _ in range(4)]
    assert not study.ends_early(claims[0], [0.5])  # the first to reach the bracket
    assert not study.ends_early(claims[1], [0.9])
    assert not study.ends_early(claims[0], [0.5])  # already compared, no matter which trials followed
    assert study.ends_early(claims[2], [math.nan]) == "at value 1"
    assert study.ends_early(claims[3], [0.8]) == "at value 1"
    for claim in claims:
        claim.lock.release()  # as if killed before they ended
    assert list(states(SweepStudy(study.plan)).values()) == ["waiting", "waiting", "pruned", "pruned"]
    assert study.records()[3].value == 0.8
    again = study.claim()
    assert again.trial == claims[0].trial
    assert not study.ends_early(again, [0.5, 0.6])
    assert not study.ends_early(again, [0.5, 0.6, 0.7])  # the first to reach the third value


def test_retried_trial_is_not_compared_again_at_earlier_brackets(plan):
    sweep_plan = plan(
        {"x": {"values": [1, 2, 3, 4]}}, early_terminate={"type": "hyperband", "min_iter": 1, "eta": 3}
    )
    study = SweepStudy(sweep_plan)
    first, second = study.claim(), study.claim()
    assert not study.ends_early(first, [0.5])
    finish(study, first, "failed", None, "why")
    study.ends_early(second, [0.9])
    retried = SweepStudy(sweep_plan)
    while (claim := retried.claim()).trial != first.trial:
        pass
    assert not retried.ends_early(claim, [0.5])


def test_lower_cap_limits_trials(plan):
    study = SweepStudy(plan())
    finish(study, study.claim(), value=1.0)
    capped = SweepStudy(plan(cap=2))
    assert capped.left() == (1, 2)
    finish_all(capped)
    assert states(SweepStudy(plan(cap=1))) == {"x=1": "finished", "x=2": "finished"}
    assert SweepStudy(plan()).claim().trial.name == "x=3"


def test_trials_can_be_added_to_grid(plan):
    study = SweepStudy(plan())
    finish(study, study.claim(), value=1.0)
    extended = SweepStudy(plan({"x": {"values": [1, 2, 3, 4]}}))
    assert [record.trial.name for record in extended.records()] == ["x=1", "x=2", "x=3", "x=4"]
    assert extended.records()[0].state == "finished"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"parameters": {"x": {"values": [2, 3]}}}, "parameters.x"),
        ({"parameters": GRID | {"y": {"value": 1}}}, "parameters.y"),
        ({"metric": {"name": "other"}}, "metric"),
        ({"options": ("--a=1",)}, "options: none there, --a=1 here"),
    ],
)
def test_different_sweep_of_same_name_raises_input_error(change, line, plan):
    study = SweepStudy(plan())
    finish(study, study.claim(), value=1.0)
    with pytest.raises(InputError) as error:
        SweepStudy(plan(**change))
    assert f"contains a different sweep ({line})" in str(error.value)
    assert len(study.records()) == 3


def test_sweep_that_has_not_begun_is_replaced(plan):
    study = SweepStudy(plan())
    claim = study.claim()
    study.finish(claim, "failed", None, "exit code 2: a typo")
    claim.lock.release()
    other = SweepStudy(plan({"y": {"values": [7, 8]}}))
    assert states(other) == {"y=7": "waiting", "y=8": "waiting"}


def test_renamed_directory_keeps_its_results(plan):
    study = SweepStudy(plan())
    finish(study, study.claim(), value=0.5)
    renamed = study.plan.folder.rename(study.plan.folder.with_name("archived"))
    moved = SweepStudy(dataclasses.replace(study.plan, folder=renamed))
    assert states(moved) == {"x=1": "finished", "x=2": "waiting", "x=3": "waiting"}
    assert moved.claim().trial.name == "x=2"


@pytest.mark.parametrize("there", ["config.yaml", "notes"])
def test_directory_that_is_not_a_sweep_is_left_unchanged(there, plan):
    folder = plan().folder
    folder.mkdir()
    (folder / there).write_text("mine")
    with pytest.raises(InputError, match="exists and is not a sweep"):
        SweepStudy(plan())
    assert [file.name for file in folder.iterdir()] == [there]


def test_params_of_the_study_are_those_of_the_trials(plan):
    study = SweepStudy(plan({"x": {"values": [[1], None]}}))
    finish_all(study)
    stored = optuna.load_study(study_name="sweep", storage=study._storage)
    assert [trial.params for trial in stored.trials] == [{"x": "[1]"}, {"x": "null"}]
