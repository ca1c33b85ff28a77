import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ssl_vision.data.random import fold, numbers, states, uniforms

WORD = 2**64
KEY = (3, 1, 4)


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def splitmix64(state: int, count: int) -> list[int]:
    return [mix((state + n * 0x9E3779B97F4A7C15) % WORD) for n in range(1, count + 1)]


def test_splitmix64_reference_matches_published_values():
    # The first outputs of the public-domain splitmix64.c for the seed 1234567.
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_fold_matches_splitmix64_reference():
    expected = 0
    for part in (5, -1):
        expected = splitmix64(expected ^ (part % WORD), 1)[0]
    assert fold(5, -1) == expected >> 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4), st.integers(-(2**63), 2**63 - 1))
def test_uniforms_equal_arithmetic_on_python_integers(key, index):
    drawn = uniforms(torch.tensor([index]), key=tuple(key), count=3)
    words = splitmix64(mix((index + fold(*key)) % WORD), 3)
    assert drawn.tolist() == [[(word >> 40) / 2**24 for word in words]]


def test_fold_is_torch_seed_and_depends_on_every_part_and_order():
    folds = [fold(*key) for key in ((0,), (0, 0), (0, 1), (1, 0), (1,), (-1,), (2**64 - 2,))]
    assert len(set(folds)) == len(folds)
    assert all(0 <= value < 2**63 for value in folds)
    assert fold(-1) == fold(2**64 - 1)


def test_uniforms_of_row_depend_only_on_its_id():
    ids = torch.arange(1000)
    rows = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:300]
    drawn = uniforms(ids, key=KEY, count=5)
    assert torch.equal(uniforms(ids[rows], key=KEY, count=5), drawn[rows])
    assert torch.equal(uniforms(ids, key=KEY, count=2), drawn[:, :2])


def test_numbers_of_several_keys_match_each_key_alone():
    ids = torch.tensor([5, -1, 2**62])
    drawn = numbers(states(ids, (1, 2), (1, 3)), count=4).view(3, 2, 4)
    for view, key in enumerate(((1, 2), (1, 3))):
        assert torch.equal(drawn[:, view], uniforms(ids, key=key, count=4))


def test_numbers_are_24_bit_floats_in_the_half_open_interval():
    drawn = uniforms(torch.arange(200_000), key=KEY, count=2)
    assert drawn.dtype == torch.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert torch.equal(drawn * 2**24, (drawn * 2**24).round())
    assert ((drawn * 2**24) % 2).mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("key", [(0, 0, 0), (1, 0, 0), (0, 0, 1), (-5, 2, 9)])
def test_numbers_are_uniform(key):
    drawn = uniforms(torch.arange(50_000), key=key, count=4).numpy()
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4


def test_every_bit_is_fair():
    words = (uniforms(torch.arange(50_000), key=KEY, count=2) * 2**24).long().flatten()
    ones = np.array([int(((words >> bit) & 1).sum()) for bit in range(24)])
    squared = ((ones - len(words) / 2) ** 2 / (len(words) / 4)).sum()
    assert stats.chi2.sf(squared, df=24) > 1e-4


def test_neighbours_are_uncorrelated():
    count = 50_000
    ids = torch.arange(count)
    base = uniforms(ids, key=(7, 2, 0), count=3)
    others = [
        base.roll(1, dims=1),  # the next column
        base.roll(1, dims=0),  # the next id
        uniforms(ids, key=(7, 2, 1), count=3),  # the next epoch
        uniforms(ids, key=(8, 2, 0), count=3),  # the next seed
        uniforms(ids, key=(7, 3, 0), count=3),  # the next stream
    ]
    for other in others:
        for left, right in zip(base.T, other.T, strict=True):
            assert abs(np.corrcoef(left, right)[0, 1]) < 5 / count**0.5
            table = np.histogram2d(left, right, bins=8, range=((0, 1), (0, 1)))[0]
            assert stats.chisquare(table.ravel()).pvalue > 1e-5


@pytest.mark.parametrize("first", [0, 2**31 - 500, 2**40, 2**62, -(2**63)])
def test_numbers_under_compilation_match_plain_numbers(first, monkeypatch):
    ids = torch.arange(first, first + 1000)
    starts = states(
        ids, *((seed, 2, epoch, view) for seed in (0, -7, 2**40) for epoch in (0, 999) for view in (0, 1))
    )
    plain = numbers(starts, count=20)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(numbers(starts, count=20), plain)


@pytest.mark.long
def test_compiled_numbers_match_eager_numbers():
    compiled = torch.compile(numbers)
    for first in (0, 2**31 - 500, 2**62):
        starts = states(torch.arange(first, first + 1000), (3, 2, 5, 0), (3, 2, 5, 1))
        assert torch.equal(compiled(starts, count=20), numbers(starts, count=20))
