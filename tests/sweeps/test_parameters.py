"""Tests of the parameters of a sweep file against SciPy's distributions and W&B's own parser."""

import math
import random

import pytest
from optuna.distributions import CategoricalDistribution
from scipy import stats
from wandb.sdk.sweeps.scheduler.optuna import sweep_parameter_to_distribution

from ssl_vision.errors import InputError
from ssl_vision.sweeps.parameters import (
    DISTRIBUTIONS,
    Choice,
    Range,
    from_optuna,
    optuna_distribution,
    read_parameter,
)

ENDS = {"min": 0.5, "max": 8.0}
NORMAL = {"mu": 0.3, "sigma": 0.7}
ORACLES = {
    "uniform": (ENDS, stats.uniform(0.5, 7.5)),
    "log_uniform": ({"min": -2.0, "max": 1.0}, stats.loguniform(math.exp(-2), math.exp(1))),
    "log_uniform_values": (ENDS, stats.loguniform(0.5, 8.0)),
    "inv_log_uniform": ({"min": -1.0, "max": 2.0}, stats.loguniform(math.exp(-2), math.exp(1))),
    "inv_log_uniform_values": (ENDS, stats.loguniform(0.5, 8.0)),
    "normal": (NORMAL, stats.norm(0.3, 0.7)),
    "log_normal": (NORMAL, stats.lognorm(0.7, scale=math.exp(0.3))),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("u", [0.001, 0.25, 0.5, 0.9, 0.999])
def test_quantiles_match_scipy(name, u):
    options, oracle = ORACLES[name]
    parameter = read_parameter("p", {"distribution": name, **options})
    assert parameter.at(u) == pytest.approx(oracle.ppf(u), rel=1e-12)


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name.startswith("q_")])
def test_quantized_value_is_nearest_multiple_of_q(name):
    options, _ = ORACLES[name.removeprefix("q_")]
    plain = read_parameter("p", {"distribution": name.removeprefix("q_"), **options})
    quantized = read_parameter("p", {"distribution": name, **options, "q": 0.25})
    whole = read_parameter("p", {"distribution": name, **options})
    for u in (0.05, 0.4, 0.95):
        assert quantized.at(u) == pytest.approx(round(plain.at(u) * 4) / 4, abs=1e-12)
        assert whole.at(u) == round(plain.at(u))
        assert type(whole.at(u)) is int


def test_integers_are_equally_likely():
    parameter = read_parameter("p", {"min": 3, "max": 6})
    assert parameter.distribution == "int_uniform"
    assert [parameter.at(u) for u in (0.0, 0.2499, 0.25, 0.5, 0.75, 0.9999)] == [3, 3, 4, 5, 6, 6]


def test_choice_follows_probabilities():
    parameter = read_parameter("p", {"values": ["a", "b", "c"], "probabilities": [1, 0, 3]})
    rng = random.Random(0)
    drawn = [parameter.at(rng.random()) for _ in range(4000)]
    assert drawn.count("b") == 0
    assert drawn.count("a") / 4000 == pytest.approx(0.25, abs=0.03)
    assert parameter.at(math.nextafter(1.0, 0)) == "c"


@pytest.mark.parametrize(
    "given",
    [
        {"values": [1, 2]},
        {"value": 3},
        {"min": 1, "max": 9},
        {"min": 1.0, "max": 9},
        {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
    ],
)
def test_optuna_distribution_matches_wandb_scheduler(given):
    expected, distribution = (
        sweep_parameter_to_distribution(given),
        optuna_distribution(read_parameter("p", given)),
    )
    if "value" in given or "values" in given:
        assert isinstance(distribution, CategoricalDistribution)
        assert isinstance(expected, CategoricalDistribution)
        assert [from_optuna(read_parameter("p", given), choice) for choice in distribution.choices] == list(
            expected.choices
        )
    else:
        assert distribution == expected


def test_distribution_without_optuna_type_is_searched_by_quantile():
    parameter = read_parameter("p", {"distribution": "normal"})
    assert from_optuna(parameter, 0.5) == pytest.approx(0)
    assert math.isfinite(from_optuna(parameter, 0.0))
    assert math.isfinite(from_optuna(parameter, 1.0))


def test_lists_and_dicts_are_valid_values():
    parameter = read_parameter("p", {"values": [[0.2, 1.0], {"a": 1}]})
    assert parameter == Choice(([0.2, 1.0], {"a": 1}))
    assert [from_optuna(parameter, text) for text in optuna_distribution(parameter).choices] == [
        [0.2, 1.0],
        {"a": 1},
    ]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"vals": [1]}, "p: unknown key 'vals', did you mean 'values'?"),
        ({"values": 3}, "p.values: expected a list of values, got 3"),
        ({"values": [1, 1]}, "p.values: [1, 1] contains a value twice"),
        ({"min": 0.1}, "p: specify value, values, min and max"),
        ({"distribution": "unifrom", "min": 0, "max": 1}, "p.distribution: no distribution 'unifrom'"),
        ({"distribution": "uniform", "min": 0}, "p: uniform needs 'max'"),
        ({"min": 2, "max": 1}, "p: min 2 must be below max 1"),
        ({"min": "1e-3", "max": 1.0}, "p.min: expected a number, got '1e-3' (YAML reads 1e-3 as text"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "p.min: 0 must be above 0"),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0}, "p.q: 0 must be above 0"),
        ({"distribution": "normal", "sigma": -1}, "p.sigma: -1 must be at least 0"),
        ({"distribution": "int_uniform", "min": 0.5, "max": 2}, "p.min: expected an integer, got 0.5"),
        ({"values": [1, 2], "probabilities": [1]}, "p.probabilities: expected one for each of 2"),
        ({"values": [1, 2], "probabilities": [-1, 2]}, "p.probabilities: [-1, 2] must be at least 0"),
        ({"min": 0.0, "max": 1.0, "q": 2}, "p: unknown key 'q'"),
    ],
)
def test_invalid_parameter_raises_input_error(given, line):
    with pytest.raises(InputError) as error:
        read_parameter("p", given)
    assert line in str(error.value)


def test_min_and_max_are_read_as_uniform_range():
    assert read_parameter("p", {"min": 0.0, "max": 1}) == Range("uniform", {"min": 0.0, "max": 1})
