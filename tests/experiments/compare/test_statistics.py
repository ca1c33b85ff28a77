"""Tests of the statistics of paired numbers against SciPy, closed forms and brute force."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from ssl_vision.experiments.compare import statistics
from ssl_vision.experiments.compare.statistics import (
    detectable_effect,
    holm,
    paired,
    smallest_wilcoxon_p,
    t_interval,
    wilcoxon,
)

FIRST = [84.1, 83.7, 84.9, 85.2, 84.4]
SECOND = [83.0, 83.1, 84.2, 83.6, 83.9]


def test_paired_t_test_and_interval_match_scipy():
    result, d = paired(FIRST, SECOND), np.subtract(FIRST, SECOND)
    expected = stats.ttest_rel(FIRST, SECOND)
    assert result.differences == pytest.approx(tuple(d))
    assert (result.mean, result.t_p) == pytest.approx((d.mean(), expected.pvalue))
    assert result.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert result.effect == pytest.approx(expected.statistic / math.sqrt(5))
    assert paired(FIRST, SECOND, alpha=0.1).interval == pytest.approx(
        tuple(expected.confidence_interval(0.9))
    )


def test_paired_statistics_of_worked_example():
    """Differences 1, 2, 3: mean 2, s = 1, t = 2√3, 2 degrees of freedom, two-sided p = 1 − t/√(2 + t²)."""
    result, t = paired([2, 4, 6], [1, 2, 3]), 2 * math.sqrt(3)
    assert (result.mean, result.effect) == pytest.approx((2, 2))
    assert result.t_p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert t_interval([1, 2, 3]) == pytest.approx(4.302652730 / math.sqrt(3))
    assert result.wilcoxon_p == 0.25


def test_swapping_samples_changes_only_signs():
    one, other = paired(FIRST, SECOND), paired(SECOND, FIRST)
    assert one.mean == -other.mean
    assert (one.t_p, one.wilcoxon_p, one.resolvable) == (other.t_p, other.wilcoxon_p, other.resolvable)
    assert one.interval == pytest.approx(tuple(-end for end in other.interval[::-1]))


def test_bootstrap_is_repeatable_and_close_to_t_interval():
    d = np.random.default_rng(3).normal(0.3, 1, 400)
    result = paired(d, np.zeros(400))
    assert result.bootstrap == paired(d, np.zeros(400)).bootstrap
    assert result.bootstrap == pytest.approx(result.interval, abs=0.01)


def test_the_bootstrap_needs_ten_pairs_and_the_t_interval_two():
    """With fewer pairs of normal numbers, 95 % bootstrap intervals hold the mean in 50 to 90 % of cases."""
    d = np.random.default_rng(3).normal(0.3, 1, 10)
    for n in (2, 3, 5, 9):
        few = paired(d[:n], np.zeros(n))
        assert few.bootstrap is None
        assert few.interval == pytest.approx(stats.t.interval(0.95, n - 1, d[:n].mean(), stats.sem(d[:n])))
    ten = paired(d, np.zeros(10))
    assert ten.interval[0] < ten.bootstrap[0] < ten.mean < ten.bootstrap[1] < ten.interval[1]
    assert paired(np.arange(10), np.arange(10) - 0.1).bootstrap is None


@pytest.mark.parametrize("d", [[1, -2, 3], [1, 1, -1, 2], [0.5, 0.5, 0.5, 0.5], [3, -1, 2, 2, -2, 5, 1]])
def test_wilcoxon_p_matches_enumeration_of_signs(d):
    ranks = stats.rankdata(np.abs(d))

    def extreme(signs):
        return abs(sum(s * r for s, r in zip(signs, ranks, strict=True)))

    every = [extreme(signs) for signs in itertools.product((-1, 1), repeat=len(d))]
    assert wilcoxon(d) == pytest.approx(np.mean([e >= extreme(np.sign(d)) for e in every]))


def test_wilcoxon_leaves_zeros_out_and_is_one_without_differences():
    assert wilcoxon([0, 1, -2, 3, 0]) == wilcoxon([1, -2, 3])
    assert wilcoxon([0, 0]) == 1


def test_wilcoxon_of_many_pairs_matches_scipy():
    d = np.random.default_rng(0).normal(0.4, 1, 30)
    assert wilcoxon(d) == pytest.approx(stats.wilcoxon(d, method="exact").pvalue)
    tied = np.round(d, 1)[np.round(d, 1) != 0]
    assert wilcoxon(tied) == pytest.approx(stats.wilcoxon(tied, method="asymptotic").pvalue)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 10])
def test_smallest_wilcoxon_p_is_reached_by_equal_signs(n):
    assert wilcoxon(np.arange(1, n + 1)) == smallest_wilcoxon_p(n)


def test_wilcoxon_p_below_five_percent_requires_six_seeds():
    assert smallest_wilcoxon_p(5) == 0.0625
    assert smallest_wilcoxon_p(6) < 0.05


def test_holms_correction_of_a_worked_example():
    """Holm (1979): 0.01, 0.04, 0.03, 0.005 become 3·0.01, 0.06, 2·0.03, 4·0.005."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_the_detectable_effect_has_the_published_sample_sizes():
    """Cohen (1988) and G*Power, at 80 % power: 15 pairs for d = 0.8, 34 for d = 0.5 and 199 for d = 0.2."""
    for effect, n in ((0.8, 15), (0.5, 34), (0.2, 199)):
        assert detectable_effect(n) <= effect < detectable_effect(n - 1)


def test_the_detectable_effect_is_zero_where_the_level_reaches_the_power():
    assert detectable_effect(5, alpha=0.8) == detectable_effect(5, alpha=0.9) == 0
    assert detectable_effect(5, alpha=0.79) > 0


@pytest.mark.parametrize(("n", "alpha"), [(2, 0.05), (3, 0.05), (5, 0.05), (5, 0.005), (20, 0.05)])
def test_detectable_effect_is_found_with_80_percent_power(n, alpha):
    draws = np.random.default_rng(n).normal(detectable_effect(n, alpha=alpha), 1, (40_000, n))
    t = draws.mean(1) / draws.std(1, ddof=1) * math.sqrt(n)
    power = np.mean(np.abs(t) > stats.t.ppf(1 - alpha / 2, n - 1))
    assert power == pytest.approx(0.8, abs=0.008)  # four standard errors


def test_more_tests_increase_resolvable_difference():
    single, multiple = paired(FIRST, SECOND), paired(FIRST, SECOND, tests=10)
    assert multiple.resolvable / single.resolvable == pytest.approx(
        detectable_effect(5, alpha=0.005) / detectable_effect(5)
    )
    assert single.resolvable == pytest.approx(detectable_effect(5) * np.subtract(FIRST, SECOND).std(ddof=1))


def test_one_pair_has_a_difference_and_nothing_else():
    result = paired([2.0], [1.0])
    assert (result.mean, result.wilcoxon_p) == (1, 1)
    assert {result.interval, result.bootstrap, result.t_p, result.effect, result.resolvable} == {None}


def test_two_pairs_have_t_test_interval_and_wilcoxon_p():
    result = paired([2.0, 4.0], [1.0, 1.0])
    assert result.t_p == pytest.approx(stats.ttest_rel([2.0, 4.0], [1.0, 1.0]).pvalue)
    assert result.interval == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)
    assert result.wilcoxon_p == 0.5
    assert result.resolvable > 10


def test_equal_differences_spread_as_rounding_does():
    """The smallest distance of the first values is 0.2; t(0.975, 2) = 4.302653."""
    result = paired([0.3, 0.9, 0.7], [0.2, 0.8, 0.6])  # in binary, 0.09999999999999998 and 0.1
    spread = 0.2 / math.sqrt(6)
    half = 4.302653 * spread / math.sqrt(3)
    assert result.interval == pytest.approx((0.1 - half, 0.1 + half))
    assert result.effect == pytest.approx(0.1 / spread)
    t = 0.1 / spread * math.sqrt(3)
    assert result.t_p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert result.wilcoxon_p == 0.25


def test_equal_differences_of_equal_values_have_no_test():
    result = paired([0.3, 0.3, 0.3], [0.2, 0.2, 0.2])
    assert {result.interval, result.t_p, result.effect, result.resolvable} == {None}


@pytest.mark.parametrize("images", [360, 10_000])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_error_rate_of_discrete_accuracies_is_kept(monkeypatch, images, seeds):
    """Intervals of two equal objectives, whose accuracies of n images spread by 0.7 points over the seeds."""
    for unused in ("detectable_effect", "wilcoxon"):
        monkeypatch.setattr(statistics, unused, lambda *_, **__: 0.0)
    draw, trials = np.random.default_rng(seeds), 4000
    expected = 0.92 + draw.normal(0, 0.005, (trials, seeds, 1))
    accuracies = np.rint(images * (expected + draw.normal(0, 0.005, (trials, seeds, 2)))) / images
    results = [paired(trial[:, 0], trial[:, 1]) for trial in accuracies]
    errors = [each.interval is not None and each.interval[0] * each.interval[1] > 0 for each in results]
    assert np.mean(errors) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert [each.t_p is not None and each.t_p < 0.05 for each in results] == errors


def test_wilcoxon_p_of_shares_matches_that_of_counts_despite_rounding():
    """Percentages of 360 images that differ by equal counts are ties, as the counts themselves are."""
    draw = np.random.default_rng(0)
    for _ in range(10):
        first = draw.integers(300, 330, 6)
        counts = draw.integers(-3, 4, 6)
        result = paired(list(100 * (first / 360)), list(100 * ((first - counts) / 360)))
        assert result.wilcoxon_p == pytest.approx(wilcoxon(counts))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_effect_and_wilcoxon_p_do_not_depend_on_unit(scale):
    result = paired(np.multiply(FIRST, scale), np.multiply(SECOND, scale))
    assert result.effect == pytest.approx(paired(FIRST, SECOND).effect)
    assert result.wilcoxon_p == paired(FIRST, SECOND).wilcoxon_p


def test_equal_samples_have_p_one():
    result = paired([0.3, 0.9], [0.3, 0.9])
    assert (result.mean, result.t_p, result.wilcoxon_p, result.effect) == (0, 1, 1, 0)
    assert result.differences == (0, 0)
    same = paired([0.3, 0.3], [0.3, 0.3])
    assert (same.t_p, same.interval) == (1, None)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([1, math.nan], [1, 2], "finite"),
        ([1, 2], [1, math.inf], "finite"),
        ([1], [1, 2], "pairs"),
        ([], [], "pairs"),
    ],
)
def test_unpaired_or_non_finite_values_are_refused(first, second, message):
    with pytest.raises(ValueError, match=message):
        paired(first, second)


def test_t_interval_and_detectable_effect_require_two_values():
    for call in (lambda: t_interval([1.0]), lambda: detectable_effect(1)):
        with pytest.raises(ValueError, match="needs two"):
            call()
