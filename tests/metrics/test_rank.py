import math

import numpy as np
import pytest
import torch

from ssl_vision.metrics import rankme


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_rankme_matches_numpy(shape):
    features = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) + 0.3
    values = np.linalg.svd(features.double().numpy(), compute_uv=False)
    share = values / values.sum() + 1e-7
    assert rankme(features).item() == pytest.approx(math.exp(-(share * np.log(share)).sum()), rel=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_rankme_counts_equal_directions(rank):
    features = torch.zeros(24, 8)
    features[:, :rank] = torch.eye(rank).repeat(24 // rank, 1) * 5
    assert rankme(features).item() == pytest.approx(rank, rel=1e-4)


def test_rankme_ignores_order_rotation_and_scale_but_not_offset():
    g = torch.Generator().manual_seed(0)
    features = torch.randn(30, 5, generator=g, dtype=torch.float64) * torch.tensor([5.0, 3.0, 1.0, 0.1, 0.0])
    plain = rankme(features).item()
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=g, dtype=torch.float64)).Q
    for transformed in (features.flip(0), features @ rotation, features * 1e-3):
        assert rankme(transformed).item() == pytest.approx(plain, rel=1e-9)
    assert rankme(features + 1000).item() < 1.1 < plain  # without centring, an offset is a direction


def test_rankme_of_infinite_or_zero_features_is_nan():
    assert rankme(torch.tensor([[1.0, torch.inf], [0.0, 1.0]])).isnan()
    assert rankme(torch.zeros(3, 2)).isnan()
