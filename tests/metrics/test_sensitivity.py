import math

import pytest
import torch

from ssl_vision.metrics import SemanticSensitivity


def test_sensitivity_of_chunked_updates_matches_hand_computation():
    features = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0], [1.0, 7.0]])
    labels = torch.tensor([0, 0, 1, -1])
    # three unordered labelled pairs: same class with cosine 0, different classes with cosines −1 and 0
    expected = (math.exp(-1) + 1 + math.exp(-1)) / 3
    metric = SemanticSensitivity()
    for rows, targets in zip(features.split(3), labels.split(3), strict=True):
        metric.update(rows, targets)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-6)


def test_sensitivity_without_labelled_pairs_is_nan():
    metric = SemanticSensitivity()
    metric.update(torch.eye(3), torch.tensor([-1, 4, -1]))
    assert metric.compute().isnan()
