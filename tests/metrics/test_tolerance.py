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


def test_by_hand():
    # labelled ordered pairs: 12; same-class: two of cosine √½ (class 0), two of cosine 0 (class 1)
    assert measure(conditional=False).item() == pytest.approx(2 * H / 12, abs=1e-7)
    assert measure(conditional=True).item() == pytest.approx(2 * H / 4, abs=1e-7)


def test_nothing_to_average():
    alone = torch.tensor([0, 1, 2, 3, -1])
    assert measure(False, labels=alone).item() == 0.0
    assert measure(True, labels=alone).isnan()
    assert measure(False, labels=torch.full((5,), -1)).isnan()
    assert measure(False, labels=torch.tensor([2, -1, -1, -1, -1])).isnan()
