import math

import numpy as np
import pytest
import torch

from ssl_vision.metrics import effective_rank, feature_std, rankme


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_ranks_match_numpy(shape):
    features = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) + 0.3
    for centred in (False, True):
        rows = features.double().numpy()
        values = np.linalg.svd(rows - centred * rows.mean(axis=0), compute_uv=False)
        share = values[values > 1e-12] / values.sum()
        expected = math.exp(-(share * np.log(share)).sum())
        assert effective_rank(features, centred=centred).item() == pytest.approx(expected, rel=1e-9)
    share = np.linalg.svd(features.double().numpy(), compute_uv=False)
    share = share / share.sum() + 1e-7
    assert rankme(features).item() == pytest.approx(math.exp(-(share * np.log(share)).sum()), rel=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize(("metric", "tolerance"), [(effective_rank, 1e-12), (rankme, 1e-4)])
def test_equal_directions_are_counted(metric, tolerance, rank):
    features = torch.zeros(24, 8)
    features[:, :rank] = torch.eye(rank).repeat(24 // rank, 1) * 5
    assert metric(features).item() == pytest.approx(rank, rel=tolerance)


def test_rankme_ignores_order_rotation_and_scale_but_not_offset():
    g = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=g, dtype=torch.float64) * torch.tensor([5.0, 3.0, 1.0, 0.1, 0.0])
    plain = rankme(features).item()
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=g, dtype=torch.float64)).Q
    for transformed in (features.flip(0), features @ rotation, features * 1e-3):
        assert rankme(transformed).item() == pytest.approx(plain, rel=1e-9)
    assert rankme(features + 1000).item() < 1.1 < plain  # without centring, an offset is a direction


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


def test_degenerate_features_give_nan():
    for metric in (rankme, effective_rank):
        assert metric(torch.tensor([[1.0, torch.inf], [0.0, 1.0]])).isnan()
        assert metric(torch.tensor([[1.0, torch.nan]])).isnan()
        assert metric(torch.zeros(3, 2)).isnan()
    assert effective_rank(torch.ones(3, 2), centred=True).isnan()
    assert feature_std(torch.tensor([[1.0, torch.inf]])).isnan()


def test_feature_std_matches_loops_at_any_scale():
    features = torch.randn(17, 5, generator=torch.Generator().manual_seed(0)) + 0.5
    rows = []
    for row in features.tolist():
        length = math.sqrt(sum(v * v for v in row))
        rows.append([v / length for v in row])
    deviations = []
    for column in zip(*rows, strict=True):
        mean = sum(column) / 17
        deviations.append(math.sqrt(sum((v - mean) ** 2 for v in column) / 17))
    expected = sum(deviations) / 5 * math.sqrt(5)
    assert feature_std(features).item() == pytest.approx(expected, abs=1e-6)
    scale = torch.logspace(-20, 20, 17)[:, None]
    assert feature_std(features * scale).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("d", [2, 64])
def test_feature_std_is_one_if_uniform_and_zero_if_collapsed(d):
    axes = torch.cat((torch.eye(d), -torch.eye(d)))
    assert feature_std(axes).item() == pytest.approx(1.0, abs=1e-7)
    sphere = torch.randn(20_000, d, generator=torch.Generator().manual_seed(0))
    assert feature_std(sphere).item() == pytest.approx(1.0, abs=1e-3)
    assert feature_std(torch.ones(5, d)).item() == pytest.approx(0.0, abs=1e-7)
    assert feature_std(torch.ones(1, d)).item() == 0.0
