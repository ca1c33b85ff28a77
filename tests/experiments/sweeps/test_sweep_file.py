"""Tests of reading and validating sweep files, and of their parameters against W&B's own parser."""

import pytest
import yaml
from optuna.distributions import CategoricalDistribution
from wandb.sdk.sweeps.scheduler.optuna import sweep_parameter_to_distribution

from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.sweep_file import parse_sweep, read_parameter, size
from ssl_vision.experiments.sweeps.trials import Plan

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
    assert (file.early_terminate.first, file.early_terminate.eta) == (3, 3)
    assert file.command == ["${env}", "${interpreter}", "x.py", "${args}"]
    assert [file.metric.reached(value) for value in (0.89, 0.9, 0.95)] == [False, True, True]


def test_class_parameter_precedes_its_arguments():
    parameters = {"model.objective.alpha": {"value": 3}, "model.objective": {"value": "MACL"}}
    file = parse_sweep(changed(parameters=parameters), where="f")
    assert list(file.parameters) == [("model.objective",), ("model.objective.alpha",)]


@pytest.mark.parametrize(
    ("given", "first"),
    [({"min_iter": 2, "eta": 4}, 2), ({"max_iter": 27, "s": 2}, 3), ({"max_iter": 5, "s": 9, "eta": 2}, 1)],
)
def test_first_bracket_is_min_iter_or_follows_from_max_iter(given, first):
    early = parse_sweep(changed(early_terminate={"type": "hyperband", **given}), where="f").early_terminate
    assert (early.first, early.eta) == (first, given.get("eta", 3))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"methd": "grid"}, "f: the file: unknown key 'methd', did you mean 'method'?"),
        ({"method": "gird"}, "f: method: expected one of 'grid', 'random', 'bayes', got gird"),
        ({"metric": None}, "f: the following arguments are required: metric.name"),
        ({"metric": {"name": "x", "gaol": 1}}, "f: Group 'metric' does not accept option 'gaol'"),
        ({"metric": {"name": "x", "goal": "max"}}, "f: metric.goal: expected one of 'minimize', 'maximize'"),
        ({"metric": {"name": "x", "target": "much"}}, "f: metric.target: expected float, got much"),
        ({"parameters": None}, "f: parameters: expected a table of keys and values, got None"),
        ({"parameters": {"a": 1}}, "f: parameters.a: expected a table of keys and values, got 1"),
        ({"method": "grid"}, "f: parameters.model.objective.temperature: a grid needs values"),
        ({"run_cap": 0}, "f: run_cap: must be above 0, got 0"),
        ({"run_cap": None}, "f: method bayes has no end: set run_cap in the file, or --trials"),
        ({"command": "python x"}, "f: command: expected list, got python x"),
        ({"command": ["${arg}"]}, "f: command: unknown or unsupported macro '${arg}', did you mean 'args'?"),
        ({"command": ["${args_json_file}"]}, "f: command: unknown or unsupported macro '${args_json_file}'"),
        ({"program": None}, "f: command: uses ${program}, but the file has no program"),
        ({"early_terminate": {"type": "median"}}, "f: early_terminate.type: expected one of 'hyperband'"),
        ({"early_terminate": {"type": "hyperband", "min_iter": 1, "strict": True}}, "f: early_terminate: no"),
        (
            {"parameters": {"a": {"values": [1, 2], "probabilities": [1, 1]}}},
            "f: parameters.a: unknown key 'probabilities'",
        ),
    ],
)
def test_invalid_sweep_raises_input_error(keys, line):
    with pytest.raises(InputError) as error:
        parse_sweep(changed(**keys), where="f")
    assert str(error.value).startswith(line)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "give min_iter, or max_iter and s"),
        ({"max_iter": 9}, "give min_iter, or max_iter and s"),
        ({"min_iter": 1, "max_iter": 9, "s": 1}, "give min_iter, or max_iter and s"),
        ({"min_iter": 1, "eta": 1}, "eta must be at least 2, got 1"),
    ],
)
def test_early_termination_without_a_bracket_raises_input_error(given, line):
    with pytest.raises(InputError, match=line):
        parse_sweep(changed(early_terminate={"type": "hyperband", **given}), where="f")


@pytest.mark.parametrize(
    ("ends", "count"), [((0, 0.35, 0.1), 4), ((0, 0.3, 0.1), 4), ((0.1, 0.7, 0.1), 7), ((0, 8, 2), 5)]
)
def test_size_counts_every_step(ends, count):
    low, high, step = ends
    given = {"distribution": "q_uniform", "min": low, "max": high, "q": step}
    assert size(read_parameter("p", given)) == count


def test_grid_takes_every_integer_of_a_range():
    given = {"x": {"min": 2, "max": 4}, "y": {"distribution": "int_uniform", "min": 0, "max": 1}}
    file = parse_sweep(changed(method="grid", parameters=given), where="f")
    assert [parameter.choices for parameter in file.parameters.values()] == [("2", "3", "4"), ("0", "1")]
    assert (file.most, file.varied) == (6, [("x",), ("y",)])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", "line 1"),
        ("- 1", "expected a table"),
        ("", "expected a table"),
        ("a: *b", "undefined alias"),
    ],
)
def test_file_that_is_not_a_yaml_table_raises_input_error(text, line):
    with pytest.raises(InputError, match=line):
        parse_sweep(text, where="f")


def test_changes_are_only_keys_that_change_trials(tmp_path):
    before = {"method": "random", "name": "a", "parameters": {"x": {"values": [1]}, "y": {"value": 1}}}
    now = {
        "method": "random",
        "name": "b",
        "run_cap": 2,
        "parameters": {"x": {"values": [1, 2]}},
        "program": "p",
    }
    common = {"metric": {"name": "a"}, "command": ["a"], "run_cap": 1}
    plans = [Plan(tmp_path, yaml.safe_dump(common | content)) for content in (before, now)]
    assert plans[1].changes(plans[0], ["x"]) == ["parameters.x", "parameters.y", "program"]


@pytest.mark.parametrize(
    "given",
    [
        {"min": 1, "max": 9},
        {"min": 1.0, "max": 9},
        {"distribution": "uniform", "min": 0, "max": 1},
        {"distribution": "q_uniform", "min": 0, "max": 8, "q": 2},
        {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25},
        {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
    ],
)
def test_optuna_distribution_matches_wandb_scheduler(given):
    assert read_parameter("p", given) == sweep_parameter_to_distribution(given)


def test_choices_are_json_texts():
    parameter = read_parameter("p", {"values": [[0.2, 1.0], {"a": 1}, None]})
    assert parameter == CategoricalDistribution(["[0.2, 1.0]", '{"a": 1}', "null"])
    assert read_parameter("p", {"value": 3}) == CategoricalDistribution(["3"])
    assert read_parameter("p", {"values": [1, 1]}) == CategoricalDistribution(["1"])


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"vals": [1]}, "p: unknown key 'vals'"),
        ({"values": 3}, "p.values: expected a list of values, got 3"),
        ({"min": 0.1}, "p: needs value, values, or numbers min and max ('max')"),
        ({"distribution": "unifrom", "min": 0, "max": 1}, "p.distribution: 'unifrom' is not supported"),
        ({"distribution": "q_normal", "mu": 0}, "p.distribution: 'q_normal' is not supported; available: "),
        ({"min": 2, "max": 1}, "`low <= high` must hold"),
        ({"min": "1e-4", "max": "5e-1"}, "p.min: is text, as YAML reads 1e-3: write numbers, such as 1.0e-3"),
        (
            {"distribution": "uniform", "values": [1, 2]},
            "p.distribution must be 'categorical', got 'uniform'",
        ),
        ({"value": 1, "values": [2, 3]}, "p: unknown key 'value'"),
        ({"distribution": "categorical", "min": 0, "max": 1}, "p: categorical needs 'values'"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "`low > 0` must hold"),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0}, "`step > 0` must hold"),
        ({"distribution": "int_uniform", "min": 0.5, "max": 2}, "p: int_uniform needs integers"),
        ({"min": 0.0, "max": 1.0, "q": 2}, "p: unknown key 'q'"),
    ],
)
def test_invalid_parameter_raises_input_error(given, line):
    with pytest.raises(InputError) as error:
        read_parameter("p", given)
    assert line in str(error.value)
