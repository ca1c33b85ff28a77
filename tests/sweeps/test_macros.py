"""Tests of the command line of a trial against the one that W&B's agent makes from the same command."""

import sys

import pytest
import yaml
from wandb import wandb_agent

from ssl_vision.errors import InputError
from ssl_vision.sweeps.macros import MACROS, expanded, is_fit, yaml_text

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


def agent_command(command, program, monkeypatch, tmp_path):
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
    agent._command_run({"run_id": "r", "args": args, "program": program})
    return started["command"]


class StubProcess:
    last_sigterm_time = None


@pytest.mark.parametrize("macro", MACROS)
def test_macros_expand_as_in_wandb_agent(macro, monkeypatch, tmp_path):
    command = ["${env}", "word", f"${{{macro}}}", "--last"]
    json_file = tmp_path / "wandb" / "sweep-s" / "config-r.json"
    words = expanded(command, PARAMETERS, program="train.py", json_file=json_file)
    agent_words = agent_command(command, "train.py", monkeypatch, tmp_path)
    assert words == [sys.executable if word == "python" else word for word in agent_words]


def test_values_are_written_as_yaml_for_fit(tmp_path):
    parameters = {"a": None, "b": [None, 1.0], "c": {"x": None}, "d": "text", "e": True, "f": 1e-5}
    command = ["ssl-vision", "fit", "${args}", "${args_no_equals}"]
    words = expanded(command, parameters, program=None, json_file=tmp_path, as_text=yaml_text)
    options = [word.removeprefix("--").partition("=") for word in words[2:8]]
    assert {name: yaml.safe_load(value) for name, _, value in options} == {**parameters, "f": "1e-05"}
    assert words[8:10] == ["--a", "null"]


def test_environment_variables_expand_as_in_wandb_agent(monkeypatch, tmp_path):
    monkeypatch.setenv("PLACE", "here")
    command = ["--root=${envvar:PLACE}/data", "${envvar:PLACE}", "${args}"]
    words = expanded(command, PARAMETERS, program=None, json_file=tmp_path)
    assert words == agent_command(command, None, monkeypatch, tmp_path)
    assert words[:2] == ["--root=here/data", "here"]


def test_unset_environment_variable_raises_input_error(monkeypatch, tmp_path):
    monkeypatch.delenv("PLACE", raising=False)
    with pytest.raises(InputError, match=r"needs \$PLACE, which is not set"):
        expanded(["${envvar:PLACE}"], {}, program=None, json_file=tmp_path)


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
