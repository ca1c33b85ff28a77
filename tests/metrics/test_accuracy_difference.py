"""Tests of the difference of two accuracies on the same images."""

import numpy as np
import pytest
import torch
from scipy import stats

from ssl_vision.metrics import AccuracyDifference
from ssl_vision.metrics.accuracy_difference import wilson_interval


def pairs(shares, shape, seed=0):
    """Draw which images two networks classify correctly, from shares: both, only first, only second."""
    kinds = np.random.default_rng(seed).choice(4, shape, p=[*shares, 1 - sum(shares)])
    return torch.from_numpy(kinds < 2), torch.from_numpy((kinds == 0) | (kinds == 2))


def test_value_is_difference_of_accuracies():
    first, second = pairs((0.5, 0.2, 0.1), 400)
    difference = AccuracyDifference.of(first, second)
    assert difference.value == pytest.approx(float(first.double().mean() - second.double().mean()))
    assert difference.images == 400
    back = AccuracyDifference.of(second, first)
    assert (back.value, back.low, back.high) == pytest.approx(
        (-difference.value, -difference.high, -difference.low)
    )


@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("shares", [(0.5, 0.1, 0.1), (0.3, 0.25, 0.15), (0.9, 0.04, 0.01), (0.6, 0.0, 0.0)])
def test_interval_contains_the_true_difference_in_95_percent_of_trials(n, shares):
    drawn = zip(*pairs(shares, (2000, n)), strict=True)
    intervals = [AccuracyDifference.of(*each) for each in drawn]
    inside = np.mean([each.low <= shares[1] - shares[2] <= each.high for each in intervals])
    assert inside > 0.94


def test_verdict_depends_on_the_interval():
    better, worse = pairs((0.5, 0.2, 0.02), 500)
    assert AccuracyDifference.of(better, worse).verdict == "pretraining helped"
    assert AccuracyDifference.of(worse, better).verdict == "pretraining harmed: keep the start"
    unclear = AccuracyDifference.of(better[:12], worse[:12])
    half = 50 * (unclear.high - unclear.low)
    assert unclear.verdict == f"cannot tell with 12 images, which show differences above {half:.1f} points"


def test_other_images_are_refused():
    with pytest.raises(ValueError, match="the same images, got 3 and 2"):
        AccuracyDifference.of(torch.ones(3, dtype=torch.bool), torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize(("correct", "images"), [(9, 30), (0, 5), (200, 200)])
def test_interval_of_accuracy_equals_scipy(correct, images):
    expected = stats.binomtest(correct, images).proportion_ci(method="wilson")
    assert wilson_interval(correct / images, images) == pytest.approx((expected.low, expected.high), abs=1e-6)
