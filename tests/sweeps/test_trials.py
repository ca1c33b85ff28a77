"""Tests of the trials of a sweep and of their names."""

import itertools
import re

import pytest

from ssl_vision.sweeps.sweep_file import parse_sweep
from ssl_vision.sweeps.trials import short_names, trials_of

OBJECTIVES, TEMPERATURES = ["InfoNCE", "MACL"], [0.1, 0.2, 0.5]


def test_grid_is_product_of_values_up_to_cap(sweep_text):
    parameters = {
        "model.objective": {"values": OBJECTIVES},
        "model.objective.temperature": {"values": TEMPERATURES},
        "trainer.max_epochs": {"value": 3},
    }
    trials = trials_of(parse_sweep(sweep_text(parameters), where="f"), cap=None, seed=0)
    assert [dict(trial.parameters) for trial in trials] == [
        {"model.objective": o, "model.objective.temperature": t, "trainer.max_epochs": 3}
        for o, t in itertools.product(OBJECTIVES, TEMPERATURES)
    ]
    assert trials[1].name == "objective=InfoNCE,temperature=0.2"
    assert len({trial.name for trial in trials}) == 6
    assert len(trials_of(parse_sweep(sweep_text(parameters), where="f"), cap=4, seed=0)) == 4


def test_higher_cap_appends_random_trials(sweep_text):
    file = parse_sweep(
        sweep_text({"x": {"min": 0.0, "max": 1.0}, "n": {"min": 1, "max": 9}}, method="random"), where="f"
    )
    five, twenty = (trials_of(file, cap=cap, seed=0) for cap in (5, 20))
    assert twenty[:5] == five
    assert len({trial.name for trial in twenty}) == 20
    assert trials_of(file, cap=5, seed=1)[0] != five[0]
    assert all(0 <= trial.parameters["x"] < 1 and trial.parameters["n"] in range(1, 10) for trial in twenty)


def test_random_trials_are_distinct_and_limited_by_values(sweep_text):
    file = parse_sweep(sweep_text({"x": {"values": [1, 2, 3]}}, method="random"), where="f")
    assert sorted(trial.parameters["x"] for trial in trials_of(file, cap=10, seed=0)) == [1, 2, 3]


def test_nested_parameters_become_a_dict(sweep_text):
    parameters = {"model": {"parameters": {"depth": {"values": [18, 34]}, "width": {"value": 8}}}}
    trials = trials_of(parse_sweep(sweep_text(parameters), where="f"), cap=None, seed=0)
    assert [trial.parameters for trial in trials] == [{"model": {"depth": d, "width": 8}} for d in (18, 34)]
    assert [trial.name for trial in trials] == ["depth=18", "depth=34"]


@pytest.mark.parametrize(
    "values",
    [
        [1 / 3, 0.33331],
        ["a/b", "a\\b", "a b"],
        ["../up", "/root"],
        ["module.Class", "other.Class"],
        [[0.2, 1.0], [0.2, 0.8]],
        ["x" * 300, "x" * 301],
        [{"class_path": "a.B", "init_args": {"k": k}} for k in (1, 2)],
        ["ä", "ö"],
        [None, True, 1e-05],
    ],
    ids=str,
)
def test_names_are_safe_short_and_distinct(values, sweep_text):
    trials = trials_of(parse_sweep(sweep_text({"x": {"values": values}}), where="f"), cap=None, seed=0)
    names = [trial.name for trial in trials]
    assert len(set(names)) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9_=][A-Za-z0-9_.,=+-]{0,130}", name) for name in names)


def test_short_names_stay_distinguishable():
    names = ["model.lr", "head.lr", "data.batch_size", "a.model.lr"]
    assert short_names(names) == {
        "model.lr": "model.lr",
        "head.lr": "head.lr",
        "data.batch_size": "batch_size",
        "a.model.lr": "a.model.lr",
    }


def test_sweep_without_varied_parameters_is_one_trial(sweep_text):
    (trial,) = trials_of(parse_sweep(sweep_text({"x": {"value": 1}}), where="f"), cap=None, seed=0)
    assert (trial.name, trial.parameters) == ("cell", {"x": 1})
