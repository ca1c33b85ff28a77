import math

import numpy as np
import pytest
import torch

from ssl_vision.metrics import effective_rank, rankme


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_effective_rank_matches_numpy(shape, centred):
    features = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) + 0.3
    rows = features.double().numpy()
    values = np.linalg.svd(rows - centred * rows.mean(axis=0), compute_uv=False)
    share = values[values > 1e-12] / values.sum()
    expected = math.exp(-(share * np.log(share)).sum())
    assert effective_rank(features, centred=centred).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_effective_rank_counts_equal_directions_exactly(rank):
    features = torch.zeros(24, 8)
    features[:, :rank] = torch.eye(rank).repeat(24 // rank, 1) * 5
    assert effective_rank(features).item() == pytest.approx(rank, rel=1e-12)


def test_effective_rank_of_two_directions_matches_hand_computation():
    # σ = 3 and 1: H = −¾ log ¾ − ¼ log ¼
    expected = math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert effective_rank(torch.tensor([[3.0, 0.0], [0.0, 1.0]])).item() == pytest.approx(expected)


def test_offset_counts_as_direction_unless_centred():
    features = torch.randn(50, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = features + 1000
    assert effective_rank(moved).item() < 1.1
    plain = effective_rank(features, centred=True).item()
    assert effective_rank(moved, centred=True).item() == pytest.approx(plain, rel=1e-9)
    assert plain == pytest.approx(rankme(features - features.mean(dim=0)).item(), rel=1e-5)


def test_effective_rank_of_degenerate_features_is_nan():
    assert effective_rank(torch.tensor([[1.0, torch.nan]])).isnan()
    assert effective_rank(torch.zeros(3, 2)).isnan()
    assert effective_rank(torch.ones(3, 2), centred=True).isnan()
