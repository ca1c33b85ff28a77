"""Early termination: W&B's brackets, and who goes on beyond them."""

import math

import pytest

from ssl_vision.sweeps.hyperband import read_hyperband


@pytest.mark.parametrize(
    ("given", "brackets"),
    [
        ({"min_iter": 3}, [3, 9, 27, 81]),  # both of W&B's documentation
        ({"max_iter": 27, "s": 2}, [3, 9]),
        ({"min_iter": 2, "eta": 1.5}, [2, 3, 4, 6, 10, 15, 22, 34, 51, 76]),
        ({"max_iter": 5, "s": 9, "eta": 2}, [1, 2]),
    ],
)
def test_brackets(given, brackets):
    early = read_hyperband("e", {"type": "hyperband", **given})
    assert early.brackets(100) == brackets
    assert early.brackets(4) == [bracket for bracket in brackets if bracket <= 4]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("eta", [2, 3, 4])
def test_the_best_share_goes_on_when_all_have_come_there(sign, eta):
    early = read_hyperband("e", {"type": "hyperband", "min_iter": 1, "eta": eta})
    values = [float(7 * n % 12) for n in range(12)]  # a permutation
    going = {
        value for value in values if early.goes_on(value, [other for other in values if other != value], sign)
    }
    best = sorted(values, reverse=sign > 0)
    assert going == set(best[: 12 // eta + 1])


def test_the_first_to_come_goes_on():
    assert read_hyperband("e", {"type": "hyperband", "min_iter": 1}).goes_on(0.0, [], 1)


def test_what_is_judged_is_the_value_there_or_the_best_so_far():
    values = [5.0, 9.0, 2.0, 1.0]
    strict = read_hyperband("e", {"type": "hyperband", "min_iter": 3})
    lenient = read_hyperband("e", {"type": "hyperband", "min_iter": 3, "strict": False})
    assert [strict.value(values, 3, sign) for sign in (1, -1)] == [2.0, 2.0]
    assert [lenient.value(values, 3, sign) for sign in (1, -1)] == [9.0, 2.0]


def test_what_is_no_number_is_worse_than_any():
    values = [5.0, math.nan, 2.0]
    strict = read_hyperband("e", {"type": "hyperband", "min_iter": 2})
    lenient = read_hyperband("e", {"type": "hyperband", "min_iter": 2, "strict": False})
    assert [strict.value(values, 2, sign) for sign in (1, -1)] == [-math.inf, math.inf]
    assert [lenient.value(values, 3, sign) for sign in (1, -1)] == [5.0, 2.0]
