"""The queue: who may have a trial, and what a study of Optuna does not do by itself."""

import math
import multiprocessing
import os
import signal
from pathlib import Path

import optuna
import pytest

from ssl_vision.errors import InputError
from ssl_vision.sweeps.queue import Queue
from ssl_vision.sweeps.sweep_plan import Plan, check_folder

FORK = multiprocessing.get_context("fork")
GRID = {"x": {"values": [1, 2, 3]}}


@pytest.fixture
def plan(tmp_path, sweep_text):
    def made(parameters=GRID, *, options=(), cap=None, attempts=3, seed=0, **others):
        text = sweep_text(parameters, **others)
        return Plan(tmp_path / "sweep", text, cap, options, seed, attempts)

    return made


def states(queue):
    return {record.trial.name: record.state for record in queue.records()}


def in_another_process(function):
    """Runs it in a process that then dies by SIGKILL."""

    def whole():
        function()
        os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=whole)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_every_trial_is_claimed_once_and_ends_in_the_record(plan):
    queue = Queue(plan())
    claims = [queue.claim() for _ in range(3)]
    assert [claim.trial.name for claim in claims] == ["x=1", "x=2", "x=3"]
    assert queue.claim() is None
    assert states(queue) == dict.fromkeys(["x=1", "x=2", "x=3"], "running")
    queue.finish(claims[0], "finished", 0.5)
    queue.finish(claims[1], "failed", None, "exit code 1: why")
    queue.finish(claims[2], "pruned", 0.2, "at value 3")
    found = {record.trial.name: (record.state, record.value, record.note) for record in queue.records()}
    assert found == {
        "x=1": ("finished", 0.5, ""),
        "x=2": ("failed", None, "exit code 1: why"),
        "x=3": ("pruned", 0.2, "at value 3"),
    }
    assert queue.left() == (3, 3)


def test_opening_it_again_repeats_no_trial(plan):
    """Optuna's own GridSampler runs one more trial each time."""
    queue = Queue(plan())
    while claim := queue.claim():
        queue.finish(claim, "finished", 1.0)
    again = Queue(plan(), retry=True)
    assert again.claim() is None
    assert len(again.records()) == 3


def test_a_failed_trial_is_tried_again_at_the_next_start_so_often_and_no_more(plan):
    """Optuna's skip_if_exists takes a failed trial for a done one."""
    for start in (1, 2, 3):
        queue = Queue(plan(attempts=3), retry=True)
        claim = queue.claim()
        assert (claim.trial.name, claim.attempt) == ("x=1", start)
        queue.finish(claim, "failed", None, "why")
        while claim := queue.claim():
            assert claim.trial.name != "x=1"  # not at this start again
            queue.finish(claim, "finished", 1.0)
    queue = Queue(plan(attempts=3), retry=True)
    assert queue.claim() is None
    assert states(queue) == {"x=1": "failed", "x=2": "finished", "x=3": "finished"}


def test_the_trial_of_a_killed_worker_is_claimed_next(plan):
    """A trial of ask and tell stays RUNNING for ever."""
    queue = Queue(plan())
    in_another_process(lambda: Queue(plan()).claim())
    assert states(queue)["x=1"] == "interrupted"
    claim = queue.claim()
    assert (claim.trial.name, claim.attempt) == ("x=1", 1)
    assert states(queue)["x=1"] == "running"


def test_the_note_of_a_worker_that_was_killed_before_it_wrote_the_state_does_not_stay(plan):
    queue = Queue(plan())
    claim = queue.claim()
    queue._storage.set_trial_user_attr(claim.entry, "note", "exit code 1: why")
    claim.release()
    queue.finish(queue.claim(), "finished", 0.5)
    assert (queue.records()[0].state, queue.records()[0].note) == ("finished", "")


def test_the_trial_of_a_killed_worker_waits_for_the_process_that_it_left(plan):
    queue = Queue(plan())
    begun, end = FORK.Event(), FORK.Event()

    def worker():
        claim = Queue(plan()).claim()
        if os.fork() == 0:
            begun.set()
            end.wait()
            os._exit(0)
        assert claim

    in_another_process(worker)
    begun.wait()
    assert states(queue)["x=1"] == "running"
    assert queue.claim().trial.name == "x=2"
    end.set()
    for _ in range(1000):
        if states(queue)["x=1"] == "interrupted":
            break
    assert queue.claim().trial.name == "x=1"


def test_processes_that_make_it_at_once_make_one(plan):
    """Two that create the same SQLite file race in SQLAlchemy."""
    together, taken = FORK.Barrier(8), FORK.Queue()

    def worker():
        together.wait()
        queue = Queue(plan({"x": {"values": list(range(24))}}), retry=True)
        while claim := queue.claim():
            taken.put(claim.trial.name)
            queue.finish(claim, "finished", 1.0)
        taken.put(None)

    processes = [FORK.Process(target=worker) for _ in range(8)]
    for process in processes:
        process.start()
    names, ended = [], 0
    while ended < 8:
        name = taken.get(timeout=100)
        ended += name is None
        names += [name] if name else []
    for process in processes:
        process.join()
    assert sorted(names) == sorted(f"x={i}" for i in range(24))
    assert list(states(Queue(plan({"x": {"values": list(range(24))}}))).values()) == ["finished"] * 24


def test_a_folder_that_another_process_is_making_is_a_sweeps(tmp_path, monkeypatch):
    folder, listed = tmp_path / "sweep", Path.iterdir
    folder.mkdir()

    def meanwhile(path):
        (folder / ".locks").mkdir()
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", meanwhile)
    check_folder(folder)


def test_bayes_asks_up_to_the_cap_and_never_twice_for_one_trial(plan, tmp_path):
    space = {"x": {"min": 0.0, "max": 1.0}, "k": {"values": ["a", "b"]}}
    queue = Queue(plan(space, method="bayes", cap=6))
    while claim := queue.claim():
        queue.finish(claim, "finished", claim.trial.parameters["x"])
    assert len(queue.records()) == 6
    text = plan(space | {"x": {"min": 0, "max": 1}}, method="bayes").text
    few = Queue(Plan(tmp_path / "few", text, 50, storage="sqlite://"))
    while claim := few.claim():
        few.finish(claim, "finished", float(claim.trial.parameters["x"]))
    assert sorted(states(few)) == ["k=a,x=0", "k=a,x=1", "k=b,x=0", "k=b,x=1"]
    assert few.left() == (4, 4)


def test_bayes_draws_alike_from_one_seed_and_goes_where_the_metric_is(plan, tmp_path):
    space = {"x": {"min": 0.0, "max": 1.0}}

    def asked(name, seed):
        text = plan(space, method="bayes").text
        queue = Queue(Plan(tmp_path / name, text, 40, (), seed, storage="sqlite://"))
        while claim := queue.claim():
            queue.finish(claim, "finished", -abs(claim.trial.parameters["x"] - 0.8))
        return [record.trial.parameters["x"] for record in queue.records()]

    first, other = asked("one", 0), asked("other", 1)
    assert asked("two", 0) == first
    assert first != other
    for xs in (first, other):
        near = [sum(abs(x - 0.8) < 0.1 for x in part) for part in (xs[:10], xs[-20:])]
        assert near[1] > 2 * near[0]


def test_a_trial_that_was_being_asked_for_when_its_process_died_is_no_trial(plan):
    queue = Queue(plan({"x": {"min": 0.0, "max": 1.0}}, method="bayes", cap=2))
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{queue.plan.folder / 'sweep.db'}")
    in_another_process(lambda: study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}))
    claims = [queue.claim(), queue.claim(), queue.claim()]
    assert claims[2] is None
    assert len(queue.records()) == 2
    assert [trial.state.name for trial in study.get_trials()] == ["FAIL", "RUNNING", "RUNNING"]


def test_a_trial_of_bayes_goes_on_with_its_own_parameters(plan):
    made = plan({"x": {"min": 0.0, "max": 1.0}}, method="bayes", cap=1)
    in_another_process(lambda: Queue(made).claim())
    queue = Queue(made)
    (record,) = queue.records()
    assert queue.claim().trial == record.trial


def test_no_trial_is_begun_after_the_target_is_reached(plan):
    metric = {"name": "score", "goal": "minimize", "target": 0.1}
    queue = Queue(plan(metric=metric))
    first, second = queue.claim(), queue.claim()
    queue.finish(first, "finished", 0.05)
    assert queue.claim() is None
    assert queue.left() == (1, 2)
    second.release()
    assert queue.claim().trial == second.trial


def test_each_bracket_is_judged_once_and_the_end_is_on_record_before_it_comes(plan):
    early = {"type": "hyperband", "min_iter": 1, "eta": 2}
    queue = Queue(plan({"x": {"values": [1, 2, 3, 4]}}, early_terminate=early))
    claims = [queue.claim() for _ in range(4)]
    assert queue.ends_at(claims[0], [0.5]) is None  # the first to come
    assert queue.ends_at(claims[1], [0.9]) is None
    assert queue.ends_at(claims[2], [0.8]) is None
    assert queue.ends_at(claims[0], [0.5]) is None  # judged already, whoever came since
    assert queue.ends_at(claims[3], [0.1]) == (1, 0.1)
    claims[3].release()  # as if killed before it could be recorded
    assert Queue(queue.plan).claim() is None
    last = queue.records()[-1]
    assert (last.state, last.value, last.note) == ("pruned", 0.1, "at value 1")
    assert queue.ends_at(claims[0], [0.5, 0.5, 0.5, 0.5]) is None  # alone at 2 and 4
    assert queue.ends_at(claims[1], [0.9, 0.4]) is None
    assert queue.ends_at(claims[2], [0.8, 0.3]) == (2, 0.3)


def test_trials_may_be_added_to_a_grid(plan):
    queue = Queue(plan())
    queue.finish(queue.claim(), "finished", 1.0)
    (queue.plan.folder / "x=1").mkdir()
    more = Queue(plan({"x": {"values": [1, 2, 3, 4]}}))
    assert [record.trial.name for record in more.records()] == ["x=1", "x=2", "x=3", "x=4"]
    assert more.records()[0].state == "finished"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"parameters": {"x": {"values": [1, 2]}}}, "parameters.x.values"),
        ({"parameters": GRID | {"y": {"value": 1}}}, "parameters.y"),
        ({"metric": {"name": "other"}}, "metric.goal; metric.name"),
        ({"options": ("--a=1",)}, "options: none there, --a=1 here"),
    ],
)
def test_another_sweep_of_the_same_name_is_refused(change, line, plan):
    queue = Queue(plan())
    queue.finish(queue.claim(), "finished", 1.0)
    with pytest.raises(InputError) as error:
        Queue(plan(**change))
    assert f"contains a different sweep ({line})" in str(error.value)
    assert len(queue.records()) == 3


def test_a_sweep_that_has_not_begun_is_replaced(plan):
    queue = Queue(plan())
    queue.finish(queue.claim(), "failed", None, "exit code 2: a typo")
    other = Queue(plan({"x": {"values": [7, 8]}}))
    assert states(other) == {"x=7": "waiting", "x=8": "waiting"}


def test_a_database_has_one_folders_sweep_of_a_name(plan, tmp_path):
    text, url = plan().text, f"sqlite:///{tmp_path}/shared.db"
    first = Queue(Plan(tmp_path / "a" / "sweep", text, storage=url))
    first.finish(first.claim(), "finished", 0.5)
    with pytest.raises(InputError, match="of another directory: choose another --name"):
        Queue(Plan(tmp_path / "b" / "sweep", text, storage=url))
    other = Queue(Plan(tmp_path / "b" / "other", text, storage=url))
    assert set(states(other).values()) == {"waiting"}
    assert states(Queue(first.plan)) == {"x=1": "finished", "x=2": "waiting", "x=3": "waiting"}


def test_a_trial_whose_metric_is_no_number_is_judged_as_the_worst(plan):
    hyperband = {"type": "hyperband", "min_iter": 1, "eta": 4}
    queue = Queue(plan({"x": {"values": [1, 2, 3, 4]}}, early_terminate=hyperband))
    claims = [queue.claim() for _ in range(4)]
    assert queue.ends_at(claims[0], [math.nan]) is None  # the first to come
    assert queue.ends_at(claims[1], [0.1]) is None
    assert queue.ends_at(claims[2], [math.nan]) == (1, -math.inf)
    queue.finish(claims[2], "pruned", -math.inf)
    assert queue.ends_at(claims[3], [0.05]) is None  # the second of four
    assert queue.records()[2].value == -math.inf


@pytest.mark.parametrize(
    ("there", "line"), [("config.yaml", "is a run directory"), ("notes", "and is not a sweep")]
)
def test_a_folder_of_something_else_is_left_alone(there, line, plan):
    folder = plan().folder
    folder.mkdir()
    (folder / there).write_text("mine")
    with pytest.raises(InputError, match=line):
        Queue(plan())
    assert [file.name for file in folder.iterdir()] == [there]


def test_a_database_that_cannot_be_used_is_one_line(plan, tmp_path):
    made = plan()
    with pytest.raises(InputError, match="cannot be used as a database"):
        Queue(Plan(made.folder, made.text, storage="nonsense://x"))
    with pytest.raises(InputError) as error:
        Queue(Plan(made.folder, made.text, storage="nonsense://me:secret@host/x"))
    assert "nonsense://host/x cannot be used" in str(error.value)
    assert "secret" not in str(error.value)
    (made.folder / "sweep.db").write_text("no database, but a file long enough to have a header" * 10)
    with pytest.raises(InputError, match="cannot be used as a database"):
        Queue(made)
