"""Tests of early termination by Hyperband: brackets as in W&B, and the trials that continue."""

import math

import pytest

from ssl_vision.sweeps.hyperband import read_hyperband


@pytest.mark.parametrize(
    ("given", "brackets"),
    [
        ({"min_iter": 3}, [3, 9, 27, 81]),  # this and the next are from W&B's documentation
        ({"max_iter": 27, "s": 2}, [3, 9]),
        ({"min_iter": 2, "eta": 1.5}, [2, 3, 4, 6, 10, 15, 22, 34, 51, 76]),
        ({"max_iter": 5, "s": 9, "eta": 2}, [1, 2]),
    ],
)
def test_hyperband_options_give_expected_brackets(given, brackets):
    early = read_hyperband("e", {"type": "hyperband", **given})
    assert early.brackets(100) == brackets
    assert early.brackets(4) == [bracket for bracket in brackets if bracket <= 4]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("eta", [2, 3, 4])
def test_best_share_continues_once_all_trials_reach_bracket(sign, eta):
    early = read_hyperband("e", {"type": "hyperband", "min_iter": 1, "eta": eta})
    values = [float(7 * n % 12) for n in range(12)]  # a permutation
    continuing = {
        value for value in values if early.goes_on(value, [other for other in values if other != value], sign)
    }
    best = sorted(values, reverse=sign > 0)
    assert continuing == set(best[: 12 // eta + 1])


def test_first_trial_to_reach_bracket_continues():
    assert read_hyperband("e", {"type": "hyperband", "min_iter": 1}).goes_on(0.0, [], 1)


def test_strict_judges_value_at_bracket_and_lenient_best_so_far():
    values = [5.0, 9.0, 2.0, 1.0]
    strict = read_hyperband("e", {"type": "hyperband", "min_iter": 3})
    lenient = read_hyperband("e", {"type": "hyperband", "min_iter": 3, "strict": False})
    assert [strict.value(values, 3, sign) for sign in (1, -1)] == [2.0, 2.0]
    assert [lenient.value(values, 3, sign) for sign in (1, -1)] == [9.0, 2.0]


def test_nan_is_worse_than_any_value():
    values = [5.0, math.nan, 2.0]
    strict = read_hyperband("e", {"type": "hyperband", "min_iter": 2})
    lenient = read_hyperband("e", {"type": "hyperband", "min_iter": 2, "strict": False})
    assert [strict.value(values, 2, sign) for sign in (1, -1)] == [-math.inf, math.inf]
    assert [lenient.value(values, 3, sign) for sign in (1, -1)] == [5.0, 2.0]
