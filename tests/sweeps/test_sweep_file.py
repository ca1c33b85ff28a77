"""Tests of reading and validating sweep files."""

import pytest
import yaml

from ssl_vision.errors import InputError
from ssl_vision.sweeps.sweep_file import changed_keys, check_cap, parse_sweep, read_sweep_file

GOOD = """
method: bayes
metric: {name: val/knn_top1, goal: maximize, target: 0.9}
run_cap: 7
parameters:
  model.objective.temperature: {min: 0.05, max: 1.0}
  model:
    parameters:
      depth: {values: [18, 34]}
early_terminate: {type: hyperband, min_iter: 3}
"""


def changed(**keys):
    content = yaml.safe_load(GOOD) | {"program": "x.py"} | keys
    return yaml.safe_dump({key: value for key, value in content.items() if value is not None})


def test_parse_sweep_reads_all_keys():
    file = parse_sweep(changed(), where="f")
    assert (file.method, file.run_cap, file.metric.target, file.metric.sign) == ("bayes", 7, 0.9, 1)
    assert list(file.parameters) == [("model", "depth"), ("model.objective.temperature",)]
    assert file.early.brackets(30) == [3, 9, 27]
    assert file.command == ("${env}", "${interpreter}", "${program}", "${args}")
    assert [file.metric.reached(value) for value in (0.89, 0.9, 0.95)] == [False, True, True]


def test_class_parameter_precedes_its_arguments():
    parameters = {"model.objective.alpha": {"value": 3}, "model.objective": {"value": "MACL"}}
    file = parse_sweep(changed(parameters=parameters), where="f")
    assert list(file.parameters) == [("model.objective",), ("model.objective.alpha",)]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"methd": "grid"}, "f: unknown key 'methd', did you mean 'method'?"),
        ({"method": "gird"}, "f: method: no method 'gird'; there are grid, random, bayes"),
        ({"metric": None}, "f: metric: is missing; specify name and goal"),
        ({"metric": {"name": "x", "gaol": 1}}, "f: metric: unknown key 'gaol', did you mean 'goal'?"),
        (
            {"metric": {"name": "x", "goal": "max"}},
            "f: metric.goal: expected minimize or maximize, got 'max'",
        ),
        ({"metric": {"name": 3}}, "f: metric.name: expected a column of metrics.csv, got 3"),
        ({"metric": {"name": "x", "target": "much"}}, "f: metric.target: expected a number, got 'much'"),
        ({"parameters": None}, "f: parameters: expected a table of keys and values, got None"),
        ({"parameters": {"a b": {"value": 1}}}, "f: parameters: 'a b' is not the name of an option"),
        ({"parameters": {"a": 1}}, "f: parameters.a: expected a table of keys and values, got 1"),
        ({"method": "grid"}, "f: parameters.model.objective.temperature: a grid needs values"),
        ({"run_cap": 0}, "f: run_cap: expected an integer above 0, got 0"),
        ({"command": "python x"}, "f: command: expected a list of words and macros"),
        ({"command": ["${arg}"]}, "f: command: unknown macro '${arg}', did you mean 'args'?"),
        ({"program": None}, "f: command: uses ${program}, but the file has no program"),
        (
            {"early_terminate": {"type": "median"}},
            "f: early_terminate.type: expected hyperband, got 'median'",
        ),
        ({"early_terminate": {"type": "hyperband"}}, "f: early_terminate: give min_iter, or max_iter and s"),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 1, "eta": 1}},
            "f: early_terminate.eta: expected a number above 1, got 1",
        ),
        (
            {"parameters": {"a": {"values": [1, 2], "probabilities": [1, 1]}}},
            "f: parameters.a.probabilities: only the method random supports them",
        ),
    ],
)
def test_invalid_sweep_raises_input_error(keys, line):
    with pytest.raises(InputError) as error:
        parse_sweep(changed(**keys), where="f")
    assert str(error.value).startswith(line)


def test_grid_takes_every_integer_of_a_range():
    given = {"x": {"min": 2, "max": 4}, "y": {"distribution": "int_uniform", "min": 0, "max": 1}}
    file = parse_sweep(changed(method="grid", parameters=given), where="f")
    assert [parameter.values for parameter in file.parameters.values()] == [(2, 3, 4), (0, 1)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", "line 1"),
        ("- 1", "expected a table"),
        ("", "expected a table"),
        ("a: *b", "undefined alias"),
    ],
)
def test_file_that_is_not_a_yaml_table_raises_input_error(text, line, tmp_path):
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(InputError, match=line):
        read_sweep_file(tmp_path / "f.yaml")


def test_unreadable_files_raise_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_sweep_file(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a text file"):
        read_sweep_file(tmp_path / "binary.yaml")


def test_grid_of_too_many_trials_requires_a_cap():
    ranges = {name: {"min": 1, "max": 2000} for name in "xy"}
    file = parse_sweep(changed(method="grid", parameters=ranges, run_cap=None), where="f")
    with pytest.raises(InputError, match="the grid has 4000000 trials: set run_cap"):
        check_cap(file, None)
    assert check_cap(file, 5) == 5


def test_method_without_end_requires_a_cap():
    file = parse_sweep(changed(run_cap=None), where="f")
    with pytest.raises(InputError, match="set run_cap in the file, or --trials"):
        check_cap(file, None)
    assert check_cap(file, 3) == 3
    assert check_cap(parse_sweep(changed(), where="f"), 3) == 3
    assert check_cap(parse_sweep(changed(), where="f"), None) == 7


def test_changed_keys_lists_only_keys_that_change_trials():
    before = {"method": "grid", "name": "a", "parameters": {"x": {"values": [1]}, "y": {"value": 1}}}
    now = {
        "method": "grid",
        "name": "b",
        "run_cap": 2,
        "parameters": {"x": {"values": [1, 2]}},
        "program": "p",
    }
    assert changed_keys(before, now) == ["parameters.x.values", "parameters.y", "program"]
