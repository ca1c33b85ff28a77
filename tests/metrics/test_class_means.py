import math

import numpy as np
import pytest
import torch

from ssl_vision.metrics import class_means


def by_loops(features, labels):
    x, y = features.double().numpy(), labels.numpy()
    classes = [c for c in sorted(set(y.tolist())) if c >= 0]
    means = {c: x[y == c].mean(axis=0) for c in classes}
    grand = sum(means.values()) / len(classes)
    d = x.shape[1]
    within, between = np.zeros((d, d)), np.zeros((d, d))
    for c in classes:
        between += np.outer(means[c] - grand, means[c] - grand) / len(classes)
        for row in x[y == c]:
            within += np.outer(row - means[c], row - means[c]) / ((y == c).sum() * len(classes))
    nc1 = np.trace(within @ np.linalg.pinv(between, rcond=1e-10, hermitian=True)) / len(classes)
    norms = np.array([np.linalg.norm(means[c] - grand) for c in classes])
    angles = []
    for a in classes:
        for b in classes:
            if a != b:
                left, right = means[a] - grand, means[b] - grand
                cosine = left @ right / (np.linalg.norm(left) * np.linalg.norm(right))
                angles.append(abs(cosine + 1 / (len(classes) - 1)))
    return nc1, norms.std() / norms.mean(), sum(angles) / len(angles)


def values(statistics):
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in statistics)
    return [value.item() for value in statistics]


@pytest.mark.parametrize(("classes", "d"), [(2, 6), (4, 6), (9, 6), (4, 2)])
def test_class_means_match_loops_with_uneven_classes_and_unlabelled_rows(classes, d):
    g = torch.Generator().manual_seed(classes)
    labels = torch.randint(-1, classes, (80,), generator=g)
    features = torch.randn(classes + 1, d, generator=g)[labels] + torch.randn(80, d, generator=g) + 3
    assert values(class_means(features, labels)) == pytest.approx(
        by_loops(features, labels), rel=1e-8, abs=1e-12
    )


@pytest.mark.parametrize("classes", [2, 10])
def test_neural_collapse_gives_zero_at_any_scale_and_offset(classes):
    labels = torch.arange(5 * classes) % classes
    simplex = torch.eye(classes)[labels]
    for features in (simplex, simplex * 7 - 3):
        assert values(class_means(features, labels * 2)) == pytest.approx([0, 0, 0], abs=1e-12)


def test_class_means_match_hand_computation():
    # centred means (1, 0), (−1, 0), (0, 0); each class has ±½ along both axes, but Σ_B⁺ only covers the first
    means = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    offsets = torch.tensor([[0.5, 0.5], [0.5, -0.5], [-0.5, 0.5], [-0.5, -0.5]])
    features = (means[:, None] + offsets).flatten(0, 1)
    nc1, norms, angles = values(class_means(features, torch.arange(3).repeat_interleave(4)))
    assert nc1 == pytest.approx(0.25 / (2 / 3) / 3)
    assert norms == pytest.approx(math.sqrt(2 / 9) / (2 / 3))
    assert angles == pytest.approx((2 * 0.5 + 4 * 0.5) / 6)  # cosines −1 and 0; the simplex has −½


def test_class_means_ignore_rotation_scale_offset_and_order():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 5
    features = torch.randn(60, 6, generator=g, dtype=torch.float64) + torch.eye(6).double()[labels]
    plain = values(class_means(features, labels))
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=g, dtype=torch.float64)).Q
    for transformed in (features @ rotation, features * 1e-6, features + 100):
        assert values(class_means(transformed, labels)) == pytest.approx(plain, rel=1e-9)
    assert values(class_means(features.flip(0), 9 - labels.flip(0))) == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (torch.randn(6, 3), torch.zeros(6, dtype=torch.long)),  # one class
        (torch.randn(6, 3), torch.tensor([-1] * 6)),
        (torch.full((6, 3), 0.1), torch.arange(6) % 2),  # collapsed features
        (torch.tensor([[0.1], [-0.1], [0.3], [-0.3]]), torch.tensor([0, 0, 1, 1])),  # equal means
        (torch.full((6, 3), torch.nan), torch.arange(6) % 2),
    ],
)
def test_class_means_of_degenerate_features_are_nan(features, labels):
    assert all(value.isnan() for value in class_means(features, labels))
