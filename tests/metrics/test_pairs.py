import math

import pytest
import torch

from ssl_vision.metrics import PairStatistics, pair_statistics

E1, E4 = math.exp(-1), math.exp(-4)
NAN = float("nan")


def by_loops(features, labels=None, t=2.0):
    """Compute the statistics in float64 over every ordered pair of different rows."""
    rows = [[float(v) for v in row] for row in features.double()]
    unit = []
    for row in rows:
        length = math.sqrt(sum(v * v for v in row))
        unit.append([v / length if length else 0.0 for v in row])
    labels = [-1] * len(rows) if labels is None else labels.tolist()
    kernel, sensitivity, all_same, same, different = [], [], [], [], []
    for i, x in enumerate(unit):
        for j, y in enumerate(unit):
            if i == j:
                continue
            kernel.append(math.exp(-t * sum((a - b) ** 2 for a, b in zip(x, y, strict=True))))
            if labels[i] < 0 or labels[j] < 0:
                continue
            cosine = sum(a * b for a, b in zip(x, y, strict=True))
            equal = labels[i] == labels[j]
            (same if equal else different).append(cosine)
            all_same.append(cosine if equal else 0.0)
            sensitivity.append(math.exp(-(((1 if equal else -1) - cosine) ** 2)))

    def mean(values):
        return sum(values) / len(values) if values else NAN

    return (math.log(mean(kernel)), mean(all_same), mean(same), mean(different), mean(sensitivity))


def values(statistics: PairStatistics):
    assert all(v.dtype == torch.float64 and v.ndim == 0 for v in statistics)
    return pytest.approx([v.item() for v in statistics], abs=2e-6, nan_ok=True)


def random_rows(seed, n=25, d=6, classes=4):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g) + 0.5, torch.randint(-1, classes, (n,), generator=g)


@pytest.mark.parametrize("t", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("tile", [1, 4, 25, 1024])
def test_pair_statistics_match_loops(tile, t):
    features, labels = random_rows(0)
    features[3] = 0.0
    features[7] = features[8]  # identical rows are a pair like any other
    assert (labels == -1).sum() >= 2
    assert list(by_loops(features, labels, t)) == values(pair_statistics(features, labels, t=t, tile=tile))


@pytest.mark.parametrize(
    "labels",
    [None, [-1, -1, -1, -1], [0, -1, -1, -1], [0, 1, 2, 3], [5, 5, 5, 5], [7, -1, -1, 7], [7, -1, -1, 8]],
)
def test_statistics_without_pairs_are_nan(labels):
    features, _ = random_rows(1, n=4)
    labels = None if labels is None else torch.tensor(labels)
    assert list(by_loops(features, labels)) == values(pair_statistics(features, labels))


def test_same_cosine_is_nan_without_same_class_pairs():
    # a rounding error must not be divided by zero pairs
    for seed in range(20):
        features, _ = random_rows(seed, n=33, d=17)
        labels = torch.randperm(33, generator=torch.Generator().manual_seed(seed))
        statistics = pair_statistics(features, labels)
        assert statistics.same_cosine.isnan()
        assert statistics.tolerance == 0


def test_pair_statistics_ignore_order_rotation_scale_and_label_values():
    features, labels = random_rows(2, n=60)
    g = torch.Generator().manual_seed(5)
    order = torch.randperm(60, generator=g)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=g)).Q
    scale = torch.rand(60, 1, generator=g) * 10 + 0.1
    plain = [v.item() for v in pair_statistics(features, labels, tile=16)]
    assert plain == values(pair_statistics(features[order], labels[order], tile=16))
    assert plain == values(pair_statistics(features @ rotation, labels, tile=16))
    assert plain == values(pair_statistics(features * scale, labels, tile=16))
    assert plain == values(
        pair_statistics(features.double(), torch.where(labels < 0, -1, 10 - labels), tile=16)
    )


def balanced(classes, size):
    return torch.arange(classes).repeat_interleave(size)


def same_share(classes, size):
    return (size - 1) / (classes * size - 1)


@pytest.mark.parametrize("classes", [10, 100])
def test_collapsed_features_match_closed_form(classes):
    p = same_share(classes, 20)
    statistics = pair_statistics(torch.full((20 * classes, 5), 0.3), balanced(classes, 20))
    assert [0.0, p, 1.0, 1.0, p + (1 - p) * E4] == values(statistics)


def test_collapsed_uniformity_is_never_positive():
    g = torch.Generator().manual_seed(0)
    for d in range(2, 40):
        assert pair_statistics(torch.randn(1, d, generator=g).repeat(50, 1)).uniformity <= 0


@pytest.mark.parametrize("classes", [10, 100])
def test_orthogonal_classes_match_closed_form(classes):
    labels = balanced(classes, 20)
    p = same_share(classes, 20)
    expected = [math.log(p + (1 - p) * E4), p, 1.0, 0.0, p + (1 - p) * E1]
    assert expected == values(pair_statistics(torch.eye(classes)[labels], labels))


@pytest.mark.parametrize("classes", [10, 100])
def test_simplex_classes_match_closed_form(classes):
    labels = balanced(classes, 20)
    p, cosine = same_share(classes, 20), -1 / (classes - 1)
    expected = [
        math.log(p + (1 - p) * math.exp(-4 * (1 - cosine))),
        p,
        1.0,
        cosine,
        p + (1 - p) * math.exp(-((1 + cosine) ** 2)),
    ]
    assert expected == values(pair_statistics((torch.eye(classes) - 1 / classes)[labels], labels))


def test_dipole_features_match_expected_statistics():
    labels = balanced(10, 200)
    pole = torch.zeros(2000, 3)
    pole[:, 1] = 1.0 - 2.0 * (torch.arange(2000) % 2)  # half of each class at each pole
    mixed_classes = pair_statistics(pole, labels)
    assert mixed_classes.sensitivity.item() == pytest.approx(0.5 * (1 + E4), abs=1e-3)
    assert mixed_classes.same_cosine.item() == pytest.approx(0.0, abs=6e-3)
    pole[:, 1] = 1.0 - 2.0 * (labels % 2)  # five whole classes at each pole
    assert pair_statistics(pole, labels).sensitivity.item() == pytest.approx(0.6073, abs=1e-3)


@pytest.mark.parametrize(
    ("d", "uniformity", "sensitivity"), [(2, -1.5750, 0.4624), (3, -2.0798, 0.4410), (64, -3.8752, 0.3734)]
)
def test_uniform_samples_on_sphere_match_known_values(d, uniformity, sensitivity):
    features = torch.randn(4000, d, generator=torch.Generator().manual_seed(d))
    statistics = pair_statistics(features, balanced(10, 400))
    assert statistics.uniformity.item() == pytest.approx(uniformity, abs=4e-3)
    assert statistics.sensitivity.item() == pytest.approx(sensitivity, abs=2e-3)
    assert statistics.tolerance.item() == pytest.approx(0.0, abs=2e-3)


def test_uniformity_of_nan_features_is_nan():
    features, labels = random_rows(4)
    features[0, 0] = torch.nan
    assert pair_statistics(features, labels).uniformity.isnan()


@pytest.mark.parametrize(
    ("features", "labels", "options", "message"),
    [
        (torch.ones(1, 3), None, {}, r"2 rows.*\(1, 3\)"),
        (torch.ones(3, 0), None, {}, r"features: .*\(3, 0\)"),
        (torch.ones(3, 2), None, {"t": 0.0}, "t: .*0.0"),
        (torch.ones(3, 2), None, {"tile": 0}, "tile must .*0"),
    ],
)
def test_invalid_arguments_raise_value_error(features, labels, options, message):
    with pytest.raises(ValueError, match=message):
        pair_statistics(features, labels, **options)
