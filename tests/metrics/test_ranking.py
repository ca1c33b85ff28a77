import math
from itertools import combinations

import pytest
import torch
from scipy.stats import kendalltau, spearmanr

from ssl_vision.metrics import rank_correlation


def hierarchy(count, seed):
    """Return superclass, class and image of each row; every image has two rows."""
    images = torch.arange(count) // 2
    classes = torch.randint(6, (count,), generator=torch.Generator().manual_seed(seed))[images]
    return torch.stack([classes // 3, classes, images], dim=1)


def pairs(features, levels):
    """Compute cosine and grade of every pair with loops in float64."""
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    cosines, grades = [], []
    for i, j in combinations(range(len(features)), 2):
        cosines.append(round(float(unit[i] @ unit[j]), 6))
        grade = 0
        while grade < levels.shape[1] and levels[i, grade] == levels[j, grade]:
            grade += 1
        grades.append(grade)
    return cosines, grades


def scipy_correlation(features, levels):
    cosines, grades = pairs(features, levels)
    return [spearmanr(cosines, grades).statistic, kendalltau(cosines, grades, variant="b").statistic]


@pytest.mark.parametrize("tile", [1, 7, 1024])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_rank_correlation_matches_scipy(depth, tile):
    g = torch.Generator().manual_seed(depth)
    levels = hierarchy(40, depth)
    centres = torch.randn(6, 5, generator=g)
    features = 10 * (centres[levels[:, 1]] + torch.randn(40, 5, generator=g))
    levels = levels[:, :depth]
    correlation = rank_correlation(features, levels, tile=tile)
    assert [float(value) for value in correlation] == pytest.approx(
        scipy_correlation(features, levels), abs=1e-5
    )
    assert correlation.spearman > 0.1


@pytest.mark.parametrize("seed", range(4))
def test_ties_are_counted_exactly(seed):
    g = torch.Generator().manual_seed(seed)
    # ±1 rows of length 2: every cosine is a multiple of 1/2, which is exact in float32, and many are equal
    features = torch.randint(0, 2, (30, 4), generator=g).float() * 2 - 1
    levels = hierarchy(30, seed)
    correlation = rank_correlation(features, levels)
    assert [float(value) for value in correlation] == pytest.approx(
        scipy_correlation(features, levels), abs=1e-12
    )
    order = torch.randperm(30, generator=g)
    assert rank_correlation(features[order], levels[order]) == correlation


def test_cosines_that_follow_hierarchy_correlate_perfectly_up_to_ties():
    levels = torch.tensor([[0, 0], [0, 0], [0, 1], [1, 2], [1, 2], [1, 3]])
    features = torch.eye(2)[levels[:, 0]] * 3
    features = torch.cat([features, torch.eye(4)[levels[:, 1]]], dim=1)
    correlation = rank_correlation(features, levels)
    assert [float(value) for value in correlation] == pytest.approx([1, 1])
    assert rank_correlation(features, levels[:, :1]).kendall < 1


def test_rows_with_unknown_level_are_ignored():
    g = torch.Generator().manual_seed(0)
    features, levels = torch.randn(20, 4, generator=g), hierarchy(20, 0)
    levels[3, 0] = levels[11, 2] = -1
    known = [row for row in range(20) if row not in (3, 11)]
    assert rank_correlation(features, levels) == rank_correlation(features[known], levels[known])


@pytest.mark.parametrize(
    ("features", "levels"),
    [
        (torch.ones(5, 3), torch.arange(5)[:, None] // 2),
        (torch.eye(5)[:, :4], torch.zeros(5, 1, dtype=torch.long)),
        (torch.tensor([[1.0], [torch.nan], [2.0]]), torch.tensor([[0], [0], [1]])),
        (torch.ones(1, 3), torch.zeros(1, 1, dtype=torch.long)),
    ],
    ids=["collapse", "one grade", "not finite", "no pair"],
)
def test_rank_correlation_without_order_is_nan(features, levels):
    assert all(map(math.isnan, rank_correlation(features, levels)))


def test_rounding_differences_are_not_ranked():
    g = torch.Generator().manual_seed(0)
    features = torch.ones(30, 64) + 1e-7 * torch.randn(30, 64, generator=g)
    assert all(map(math.isnan, rank_correlation(features, hierarchy(30, 0))))


@pytest.mark.parametrize(
    ("features", "levels", "options", "message"),
    [
        (torch.ones(3, 2), torch.zeros(3, dtype=torch.long), {}, r"levels: expected integers \(3, L\)"),
        (torch.ones(3, 2), torch.zeros(3, 1, dtype=torch.long), {"tile": 0}, "tile must .*0"),
    ],
)
def test_invalid_arguments_raise_value_error(features, levels, options, message):
    with pytest.raises(ValueError, match=message):
        rank_correlation(features, levels, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu():
    g = torch.Generator().manual_seed(0)
    features, levels = torch.randn(500, 16, generator=g), hierarchy(500, 0)
    on_cpu, on_cuda = rank_correlation(features, levels), rank_correlation(features.cuda(), levels.cuda())
    assert [float(value) for value in on_cuda] == pytest.approx([float(value) for value in on_cpu], abs=1e-5)
