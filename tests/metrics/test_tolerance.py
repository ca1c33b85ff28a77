import math

import pytest
import torch

from ssl_vision.metrics import Tolerance

FEATURES = torch.tensor([[2.0, 0.0], [0.0, 5.0], [3.0, 3.0], [-1.0, 0.0], [1.0, 7.0]])
LABELS = torch.tensor([0, 1, 0, 1, -1])
H = math.sqrt(0.5)


def measure(conditional, features=FEATURES, labels=LABELS):
    metric = Tolerance(conditional)
    for rows, targets in zip(features.split(2), labels.split(2), strict=True):
        metric.update(rows, targets)
    return metric.compute()


def test_tolerance_matches_hand_computation():
    # 12 labelled ordered pairs; same class: two with cosine √½ (class 0), two with cosine 0 (class 1)
    assert measure(conditional=False).item() == pytest.approx(2 * H / 12, abs=1e-7)
    assert measure(conditional=True).item() == pytest.approx(2 * H / 4, abs=1e-7)


def test_tolerance_is_zero_or_nan_without_pairs_to_average():
    distinct_labels = torch.tensor([0, 1, 2, 3, -1])
    assert measure(False, labels=distinct_labels).item() == 0.0
    assert measure(True, labels=distinct_labels).isnan()
    assert measure(False, labels=torch.full((5,), -1)).isnan()
    assert measure(False, labels=torch.tensor([2, -1, -1, -1, -1])).isnan()
