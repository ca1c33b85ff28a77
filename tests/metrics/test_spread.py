import math

import pytest
import torch

from ssl_vision.metrics import feature_std


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


def test_feature_std_of_infinite_features_is_nan():
    assert feature_std(torch.tensor([[1.0, torch.inf]])).isnan()
