"""Tests of the queue of trials: claims, and behaviour that an Optuna study does not have by itself."""

import dataclasses
import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import optuna
import pytest

from ssl_vision.errors import InputError
from ssl_vision.sweeps.queue import Queue
from ssl_vision.sweeps.sweep_plan import Plan, check_folder
from ssl_vision.sweeps.trials import trials_of

FORK = multiprocessing.get_context("fork")
GRID = {"x": {"values": [1, 2, 3]}}


@pytest.fixture
def plan(tmp_path, sweep_text):
    def make_plan(parameters=GRID, *, options=(), cap=None, seed=0, **others):
        text = sweep_text(parameters, **others)
        return Plan(tmp_path / "sweep", text, cap, options, seed)

    return make_plan


def states(queue):
    return {record.trial.name: record.state for record in queue.records()}


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
    queue = Queue(plan())
    claims = [queue.claim() for _ in range(3)]
    assert [claim.trial.name for claim in claims] == ["x=1", "x=2", "x=3"]
    assert queue.claim() is None
    assert states(queue) == dict.fromkeys(["x=1", "x=2", "x=3"], "running")
    queue.finish(claims[0], "finished", 0.5)
    queue.finish(claims[1], "failed", None, "exit code 1: why")
    queue.finish(claims[2], "pruned", 0.2, "at value 3")
    outcomes = {record.trial.name: (record.state, record.value, record.note) for record in queue.records()}
    assert outcomes == {
        "x=1": ("finished", 0.5, ""),
        "x=2": ("failed", None, "exit code 1: why"),
        "x=3": ("pruned", 0.2, "at value 3"),
    }
    assert queue.left() == (3, 3)


def test_reopened_queue_repeats_no_trial(plan):
    """Optuna's own GridSampler would run one more trial each time."""
    queue = Queue(plan())
    while claim := queue.claim():
        queue.finish(claim, "finished", 1.0)
    reopened = Queue(plan(), retry=True)
    assert reopened.claim() is None
    assert len(reopened.records()) == 3


def test_failed_trial_is_retried_once_per_start_up_to_attempts(plan):
    """Optuna's skip_if_exists treats a failed trial as finished."""
    for start in (1, 2, 3):
        queue = Queue(plan(), retry=True)
        claim = queue.claim()
        assert (claim.trial.name, claim.attempt) == ("x=1", start)
        queue.finish(claim, "failed", None, "why")
        while claim := queue.claim():
            assert claim.trial.name != "x=1"  # not again at this start
            queue.finish(claim, "finished", 1.0)
    queue = Queue(plan(), retry=True)
    assert queue.claim() is None
    assert states(queue) == {"x=1": "failed", "x=2": "finished", "x=3": "finished"}


def test_trial_of_killed_worker_is_claimed_next(plan):
    """In Optuna's ask-and-tell interface, such a trial stays RUNNING for ever."""
    queue = Queue(plan())
    run_in_killed_process(lambda: Queue(plan()).claim())
    assert states(queue)["x=1"] == "interrupted"
    claim = queue.claim()
    assert (claim.trial.name, claim.attempt) == ("x=1", 1)
    assert states(queue)["x=1"] == "running"


def test_note_of_killed_worker_is_cleared_when_trial_finishes(plan):
    queue = Queue(plan())
    claim = queue.claim()
    queue._storage.set_trial_user_attr(claim.entry, "note", "exit code 1: why")
    claim.release()
    queue.finish(queue.claim(), "finished", 0.5)
    assert (queue.records()[0].state, queue.records()[0].note) == ("finished", "")


def test_trial_of_killed_worker_waits_for_its_child_process(plan):
    queue = Queue(plan())
    begun, end = FORK.Event(), FORK.Event()

    def worker():
        claim = Queue(plan()).claim()
        if os.fork() == 0:
            begun.set()
            end.wait()
            os._exit(0)
        assert claim

    run_in_killed_process(worker)
    begun.wait()
    assert states(queue)["x=1"] == "running"
    assert queue.claim().trial.name == "x=2"
    end.set()
    deadline = time.monotonic() + 30
    while states(queue)["x=1"] != "interrupted" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert queue.claim().trial.name == "x=1"


def test_concurrent_processes_create_and_share_one_queue(plan):
    """Two processes that create the same SQLite file race in SQLAlchemy."""
    barrier, claimed = FORK.Barrier(8), FORK.Queue()

    def worker():
        barrier.wait()
        queue = Queue(plan({"x": {"values": list(range(24))}}), retry=True)
        while claim := queue.claim():
            claimed.put(claim.trial.name)
            queue.finish(claim, "finished", 1.0)
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
    assert list(states(Queue(plan({"x": {"values": list(range(24))}}))).values()) == ["finished"] * 24


def test_check_folder_accepts_sweep_directory_created_meanwhile(tmp_path, monkeypatch):
    folder, original_iterdir = tmp_path / "sweep", Path.iterdir
    folder.mkdir()

    def create_and_list(path):
        (folder / ".locks").mkdir()
        return original_iterdir(path)

    monkeypatch.setattr(Path, "iterdir", create_and_list)
    check_folder(folder)


def test_bayes_proposes_distinct_trials_up_to_cap(plan, tmp_path):
    space = {"x": {"min": 0.0, "max": 1.0}, "k": {"values": ["a", "b"]}}
    queue = Queue(plan(space, method="bayes", cap=6))
    while claim := queue.claim():
        queue.finish(claim, "finished", claim.trial.parameters["x"])
    assert len(queue.records()) == 6
    text = plan(space | {"x": {"min": 0, "max": 1}}, method="bayes").text
    small_queue = Queue(Plan(tmp_path / "few", text, 50))
    while claim := small_queue.claim():
        small_queue.finish(claim, "finished", float(claim.trial.parameters["x"]))
    assert sorted(states(small_queue)) == ["k=a,x=0", "k=a,x=1", "k=b,x=0", "k=b,x=1"]
    assert small_queue.left() == (4, 4)


def test_bayes_trains_every_combination_of_a_discrete_space(plan, tmp_path):
    """After ten trials, Optuna's sampler mostly proposes those that exist."""
    space = {"x": {"values": [1, 2, 3]}, "y": {"values": [1, 2]}, "z": {"min": 1, "max": 3}}
    text = plan(space, method="bayes").text
    queue = Queue(Plan(tmp_path / "all", text, 15))
    for cap, trained in ((15, 15), (40, 18)):
        queue.plan = dataclasses.replace(queue.plan, cap=cap)
        while claim := queue.claim():
            queue.finish(claim, "finished", float(claim.trial.parameters["x"]))
        assert queue.left() == (trained, trained)
    assert len(states(queue)) == 18


def test_bayes_is_reproducible_by_seed_and_approaches_optimum(plan, tmp_path):
    space = {"x": {"min": 0.0, "max": 1.0}}

    def proposed_values(name, seed):
        text = plan(space, method="bayes").text
        queue = Queue(Plan(tmp_path / name, text, 40, (), seed))
        while claim := queue.claim():
            queue.finish(claim, "finished", -abs(claim.trial.parameters["x"] - 0.8))
        return [record.trial.parameters["x"] for record in queue.records()]

    first, other = proposed_values("one", 0), proposed_values("other", 1)
    assert proposed_values("two", 0) == first
    assert first != other
    for xs in (first, other):
        near = [sum(abs(x - 0.8) < 0.1 for x in part) for part in (xs[:10], xs[-20:])]
        assert near[1] > 2 * near[0]


def test_trial_of_process_killed_while_asking_is_not_counted(plan):
    queue = Queue(plan({"x": {"min": 0.0, "max": 1.0}}, method="bayes", cap=2))
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{queue.plan.folder / 'sweep.db'}")
    run_in_killed_process(lambda: study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}))
    claims = [queue.claim(), queue.claim(), queue.claim()]
    assert claims[2] is None
    assert len(queue.records()) == 2
    assert [trial.state.name for trial in study.get_trials()] == ["FAIL", "RUNNING", "RUNNING"]


def test_interrupted_bayes_trial_keeps_its_parameters(plan):
    sweep_plan = plan({"x": {"min": 0.0, "max": 1.0}}, method="bayes", cap=1)
    run_in_killed_process(lambda: Queue(sweep_plan).claim())
    queue = Queue(sweep_plan)
    (record,) = queue.records()
    assert queue.claim().trial == record.trial


def test_no_new_trial_begins_after_target_is_reached(plan):
    metric = {"name": "score", "goal": "minimize", "target": 0.1}
    queue = Queue(plan(metric=metric))
    first, second = queue.claim(), queue.claim()
    queue.finish(first, "finished", 0.05)
    assert queue.claim() is None
    assert queue.left() == (1, 2)
    second.release()
    assert queue.claim().trial == second.trial


def test_bracket_is_judged_once_and_pruning_is_recorded_in_advance(plan):
    early = {"type": "hyperband", "min_iter": 1, "eta": 2}
    queue = Queue(plan({"x": {"values": [1, 2, 3, 4]}}, early_terminate=early))
    claims = [queue.claim() for _ in range(4)]
    assert queue.ends_at(claims[0], [0.5]) is None  # the first to reach the bracket
    assert queue.ends_at(claims[1], [0.9]) is None
    assert queue.ends_at(claims[2], [0.8]) is None
    assert queue.ends_at(claims[0], [0.5]) is None  # already judged, no matter which trials followed
    assert queue.ends_at(claims[3], [0.1]) == (1, 0.1)
    claims[3].release()  # as if killed before it could be recorded
    assert Queue(queue.plan).claim() is None
    last = queue.records()[-1]
    assert (last.state, last.value, last.note) == ("pruned", 0.1, "at value 1")
    assert queue.ends_at(claims[0], [0.5, 0.5, 0.5, 0.5]) is None  # the only trial at values 2 and 4
    assert queue.ends_at(claims[1], [0.9, 0.4]) is None
    assert queue.ends_at(claims[2], [0.8, 0.3]) == (2, 0.3)


def test_retried_trial_is_not_judged_again_at_earlier_brackets(plan):
    sweep_plan = plan(
        {"x": {"values": [1, 2, 3, 4]}}, early_terminate={"type": "hyperband", "min_iter": 1, "eta": 3}
    )
    queue = Queue(sweep_plan)
    first, *others = (queue.claim() for _ in range(4))
    assert queue.ends_at(first, [0.5]) is None  # the first to reach the bracket
    queue.finish(first, "failed", None, "why")
    for claim, value in zip(others, (0.9, 0.8, 0.7), strict=True):
        queue.ends_at(claim, [value])
    retried = Queue(sweep_plan, retry=True)
    claim = retried.claim()
    assert (claim.trial.name, claim.attempt) == ("x=1", 2)
    assert retried.ends_at(claim, [0.5]) is None


def test_lower_cap_limits_trials_that_are_already_queued(plan):
    queue = Queue(plan())  # queues all of the grid
    queue.finish(queue.claim(), "failed", None, "why")
    capped = Queue(plan(cap=2), retry=True)
    assert capped.left() == (0, 2)
    claims = [capped.claim() for _ in range(3)]
    assert [claim and claim.trial.name for claim in claims] == ["x=1", "x=2", None]
    for claim in claims[:2]:
        capped.finish(claim, "finished", 1.0)
    assert capped.left() == (2, 2)
    assert Queue(plan(cap=1)).left() == (2, 2)
    assert Queue(plan()).claim().trial.name == "x=3"


def test_trials_can_be_added_to_grid(plan):
    queue = Queue(plan())
    queue.finish(queue.claim(), "finished", 1.0)
    (queue.plan.folder / "x=1").mkdir()
    extended = Queue(plan({"x": {"values": [1, 2, 3, 4]}}))
    assert [record.trial.name for record in extended.records()] == ["x=1", "x=2", "x=3", "x=4"]
    assert extended.records()[0].state == "finished"


def test_reopened_queue_of_a_capped_grid_does_not_list_the_whole_grid(plan, monkeypatch):
    capped = plan({name: {"values": [1, 2]} for name in "abc"}, cap=2)
    Queue(capped)

    def trials(file, *, cap, seed):
        assert cap == 2
        return trials_of(file, cap=cap, seed=seed)

    monkeypatch.setattr("ssl_vision.sweeps.queue.trials_of", trials)
    assert Queue(capped).left() == (0, 2)


def test_database_is_in_the_directory_of_the_sweep_whatever_its_name(plan, tmp_path):
    text = plan().text
    Queue(Plan(tmp_path / "{a}" / "b", text))
    assert (tmp_path / "{a}" / "b" / "sweep.db").exists()
    with pytest.raises(InputError, match="path contains"):
        Queue(Plan(tmp_path / "what?1" / "s", text))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"parameters": {"x": {"values": [1, 2]}}}, "parameters.x.values"),
        ({"parameters": GRID | {"y": {"value": 1}}}, "parameters.y"),
        ({"metric": {"name": "other"}}, "metric.goal; metric.name"),
        ({"options": ("--a=1",)}, "options: none there, --a=1 here"),
    ],
)
def test_different_sweep_of_same_name_raises_input_error(change, line, plan):
    queue = Queue(plan())
    queue.finish(queue.claim(), "finished", 1.0)
    with pytest.raises(InputError) as error:
        Queue(plan(**change))
    assert f"contains a different sweep ({line})" in str(error.value)
    assert len(queue.records()) == 3


def test_sweep_that_has_not_begun_is_replaced(plan):
    queue = Queue(plan())
    queue.finish(queue.claim(), "failed", None, "exit code 2: a typo")
    other = Queue(plan({"x": {"values": [7, 8]}}))
    assert states(other) == {"x=7": "waiting", "x=8": "waiting"}


def test_renamed_directory_keeps_its_results(plan):
    queue = Queue(plan())
    queue.finish(queue.claim(), "finished", 0.5)
    renamed = queue.plan.folder.rename(queue.plan.folder.with_name("archived"))
    moved = Queue(Plan(renamed, queue.plan.text))
    assert states(moved) == {"x=1": "finished", "x=2": "waiting", "x=3": "waiting"}
    assert moved.claim().trial.name == "x=2"


def test_trial_with_nan_metric_is_judged_as_worst(plan):
    hyperband = {"type": "hyperband", "min_iter": 1, "eta": 4}
    queue = Queue(plan({"x": {"values": [1, 2, 3, 4]}}, early_terminate=hyperband))
    claims = [queue.claim() for _ in range(4)]
    assert queue.ends_at(claims[0], [math.nan]) is None  # the first to reach the bracket
    assert queue.ends_at(claims[1], [0.1]) is None
    assert queue.ends_at(claims[2], [math.nan]) == (1, -math.inf)
    queue.finish(claims[2], "pruned", -math.inf)
    assert queue.ends_at(claims[3], [0.05]) is None  # the second best of four
    assert queue.records()[2].value == -math.inf


@pytest.mark.parametrize(
    ("there", "line"), [("config.yaml", "is a run directory"), ("notes", "and is not a sweep")]
)
def test_directory_that_is_not_a_sweep_is_left_unchanged(there, line, plan):
    folder = plan().folder
    folder.mkdir()
    (folder / there).write_text("mine")
    with pytest.raises(InputError, match=line):
        Queue(plan())
    assert [file.name for file in folder.iterdir()] == [there]


def test_unusable_database_raises_input_error(plan):
    sweep_plan = plan()
    (sweep_plan.folder / ".locks").mkdir(parents=True)
    (sweep_plan.folder / "sweep.db").write_text("no database, but a file long enough to have a header" * 10)
    with pytest.raises(InputError, match="cannot be used as a database"):
        Queue(sweep_plan)
