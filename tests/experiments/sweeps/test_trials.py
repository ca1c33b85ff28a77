"""Tests of the trials of a sweep, of their names, and of their commands against those of W&B's agent."""

import itertools
import re
import sys
from pathlib import Path

import pytest
import yaml
from wandb import wandb_agent

from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.sweep_file import MACROS
from ssl_vision.experiments.sweeps.trials import Plan, expanded, is_fit, short_names

OBJECTIVES, TEMPERATURES = ["InfoNCE", "MACL"], [0.1, 0.2, 0.5]


@pytest.fixture
def trials(sweep_text, tmp_path):
    """Return a function that lists the trials of a sweep file with these parameters."""

    def trials_of(parameters, *, cap=None, seed=0, **others):
        return Plan(tmp_path, sweep_text(parameters, **others), cap, seed=seed).trials

    return trials_of


def test_grid_is_product_of_values_up_to_cap(trials):
    parameters = {
        "model.objective": {"values": OBJECTIVES},
        "model.objective.temperature": {"values": TEMPERATURES},
        "trainer.max_epochs": {"value": 3},
    }
    grid = trials(parameters)
    assert [dict(trial.parameters) for trial in grid] == [
        {"model.objective": o, "model.objective.temperature": t, "trainer.max_epochs": 3}
        for o, t in itertools.product(OBJECTIVES, TEMPERATURES)
    ]
    assert grid[1].name == "objective=InfoNCE,temperature=0.2"
    assert len({trial.name for trial in grid}) == 6
    assert trials(parameters, cap=4) == grid[:4]


def test_higher_cap_appends_random_trials(trials):
    parameters = {"x": {"min": 0.0, "max": 1.0}, "n": {"min": 1, "max": 9}}
    five, twenty = (trials(parameters, method="random", cap=cap) for cap in (5, 20))
    assert twenty[:5] == five
    assert len({trial.name for trial in twenty}) == 20
    assert trials(parameters, method="random", cap=5, seed=-1)[0] != five[0]
    assert all(0 <= trial.parameters["x"] < 1 and trial.parameters["n"] in range(1, 10) for trial in twenty)


def test_random_trials_are_distinct_and_limited_by_values(trials):
    drawn = trials({"x": {"values": [1, [2], {"a": 3}]}}, method="random", cap=10)
    assert sorted(str(trial.parameters["x"]) for trial in drawn) == ["1", "[2]", "{'a': 3}"]


def test_nested_parameters_become_a_dict(trials):
    nested = trials({"model": {"parameters": {"depth": {"values": [18, 34]}, "width": {"value": 8}}}})
    assert [trial.parameters for trial in nested] == [{"model": {"depth": d, "width": 8}} for d in (18, 34)]
    assert [trial.name for trial in nested] == ["depth=18", "depth=34"]


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
def test_names_are_safe_short_and_distinct(values, trials):
    names = {trial.name for trial in trials({"x": {"values": values}})}
    assert len(names) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9_=][A-Za-z0-9_.,=+-]{0,130}", name) for name in names)


def test_short_names_stay_distinguishable():
    names = ["model.lr", "head.lr", "data.batch_size", "a.model.lr"]
    assert short_names(names) == {
        "model.lr": "model.lr",
        "head.lr": "head.lr",
        "data.batch_size": "batch_size",
        "a.model.lr": "a.model.lr",
    }


def test_sweep_without_varied_parameters_is_one_trial(trials):
    (trial,) = trials({"x": {"value": 1}})
    assert (trial.name, trial.parameters) == ("cell", {"x": 1})


def test_trials_get_project_of_file_unless_it_is_set(sweep_text, monkeypatch):
    for name in ("WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    plan = Plan(Path("runs/s"), sweep_text({"x": {"value": 1}}, project="mine", entity="group"))
    assert plan.environment == {"WANDB_RUN_GROUP": "s", "WANDB_PROJECT": "mine", "WANDB_ENTITY": "group"}
    monkeypatch.setenv("WANDB_PROJECT", "other")  # which `wandb sweep` prefers as well
    assert "WANDB_PROJECT" not in plan.environment


PARAMETERS = {
    "model.objective": "MACL",
    "model.objective.temperature": 0.1,
    "data.batch_size": 64,
    "a": True,
    "b": False,
    "c": None,
    "nested": {"x": [1, 2.5], "y": "z"},
    "text": "two words",
}


def agent_command(command, monkeypatch, tmp_path):
    """Return the command that ``wandb agent`` would start."""
    started = {}
    monkeypatch.setattr(
        wandb_agent, "AgentProcess", lambda **options: started.update(options) or StubProcess()
    )
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    monkeypatch.setenv("WANDB_RUN_ID", "")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", "")
    agent = wandb_agent.Agent(api=None, queue=None)
    agent._sweep_command = list(command)
    args = {name: {"value": value} for name, value in PARAMETERS.items()}
    agent._command_run({"run_id": "r", "args": args, "program": "train.py"})
    return started["command"]


class StubProcess:
    last_sigterm_time = None


@pytest.mark.parametrize("macro", [f"${{{name}}}" for name in (*MACROS, "envvar:PLACE")])
def test_macros_expand_as_in_wandb_agent(macro, monkeypatch, tmp_path, sweep_text):
    monkeypatch.setenv("PLACE", "here")
    command = ["${env}", "word", "--root=${envvar:PLACE}/data", macro, "--last"]
    plan = Plan(tmp_path, sweep_text({"x": {"value": 1}}, command=command, program="train.py"))
    agent_words = agent_command(command, monkeypatch, tmp_path)
    assert expanded(plan.file.command, PARAMETERS) == [
        sys.executable if word == "python" else word for word in agent_words
    ]


def test_values_are_written_as_yaml_for_fit():
    parameters = {"a": None, "b": [None, 1.0], "c": {"x": None}, "d": "text", "e": True, "f": 1e-5}
    command = ["ssl-vision", "fit", "${args}", "${args_no_equals}"]
    words = expanded(command, parameters)
    options = [word.removeprefix("--").partition("=") for word in words[2:8]]
    assert {name: yaml.safe_load(value) for name, _, value in options} == {**parameters, "f": "1e-05"}
    assert words[8:10] == ["--a", "null"]


def test_unset_environment_variable_raises_input_error(monkeypatch):
    monkeypatch.delenv("PLACE", raising=False)
    with pytest.raises(InputError, match=r"needs \$PLACE, which is not set"):
        expanded(["${envvar:PLACE}"], {})


@pytest.mark.parametrize(
    ("line", "fit"),
    [
        ("/usr/bin/env python -m ssl_vision fit --x", True),
        ("/opt/bin/ssl-vision fit", True),
        ("torchrun --nproc_per_node 2 -m ssl_vision fit", True),
        ("python train.py fit", False),
        ("python -m ssl_vision evaluate", False),
        ("ssl-vision", False),
    ],
)
def test_is_fit_recognizes_fit_command_lines(line, fit):
    assert is_fit(line.split()) is fit
