import math

import pytest
import torch

from ssl_vision.metrics import (
    Alignment,
    PairStatistics,
    SemanticSensitivity,
    Tolerance,
    Uniformity,
    pair_statistics,
)

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
        (torch.ones(3, 2), None, {"t": 0.0}, "t must .*0.0"),
        (torch.ones(3, 2), None, {"tile": 0}, "tile must .*0"),
    ],
)
def test_invalid_arguments_raise_value_error(features, labels, options, message):
    with pytest.raises(ValueError, match=message):
        pair_statistics(features, labels, **options)


@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.0])
def test_alignment_matches_loop_at_any_scale(gamma):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(17, 5, generator=g)
    y = x + 0.5 * torch.randn(17, 5, generator=g)
    expected = 0.0
    for a, b in zip(x.double(), y.double(), strict=True):
        expected += float(((a / a.norm() - b / b.norm()) ** 2).sum() ** (gamma / 2)) / 17
    metric = Alignment(gamma)
    metric.update(x[:4], y[:4])
    metric.update(x[4:] * 7, y[4:] * 0.1)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-6)


def test_alignment_of_identical_and_opposite_views():
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    for y, expected in ((x, 0.0), (-x, 4.0)):
        metric = Alignment()
        metric.update(x, y)
        assert metric.compute().item() == pytest.approx(expected, abs=1e-6)


def test_alignment_of_close_views_keeps_precision():
    angle = torch.tensor(1e-4, dtype=torch.float64)  # float32 would round 2 − 2cos to zero
    metric = Alignment()
    metric.update(torch.tensor([[1.0, 0.0]]), torch.stack((angle.cos(), angle.sin()))[None])
    assert metric.compute().item() == pytest.approx(1e-8, rel=1e-3)


def test_mismatched_shapes_and_invalid_gamma_raise_value_error():
    metric = Alignment()
    with pytest.raises(ValueError, match=r"\(3, 2\) and \(2, 2\)"):
        metric.update(torch.ones(3, 2), torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"gamma must be above 0, got 0"):
        Alignment(0)


@pytest.mark.parametrize("t", [0.5, 2.0])
def test_uniformity_of_chunked_updates_matches_pdist(t):
    """The reference is Wang and Isola's formula over unordered pairs of different rows."""
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(features.double())
    expected = torch.pdist(unit).pow(2).mul(-t).exp().mean().log().item()
    metric = Uniformity(t)
    for rows in features.split(13):
        metric.update(rows * 3)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-6)


def test_uniformity_of_uniform_samples_matches_closed_form():
    """For uniform samples, U = log Σ_m t^{2m} Γ(d/2) / (m! Γ(m + d/2)) − 2t."""
    d, t = 8, 2.0
    terms = (
        t ** (2 * m) * math.gamma(d / 2) / (math.factorial(m) * math.gamma(m + d / 2)) for m in range(40)
    )
    metric = Uniformity()
    metric.update(torch.randn(4000, d, generator=torch.Generator().manual_seed(0)))
    assert metric.compute().item() == pytest.approx(math.log(sum(terms)) - 2 * t, abs=4e-3)


def test_uniformity_with_invalid_t_or_a_single_row_raises_value_error():
    with pytest.raises(ValueError, match=r"t must .*-1"):
        Uniformity(t=-1)
    with pytest.raises(ValueError, match="at most 20, got 21"):  # exp(−4t) would be 0 in float32
        Uniformity(t=21)
    metric = Uniformity()
    metric.update(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"\(1, 3\)"):
        metric.compute()


def test_uniformity_of_opposite_rows_is_exact_for_largest_t():
    metric = Uniformity(t=20)
    metric.update(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert float(metric.compute()) == pytest.approx(-80)


FEATURES = torch.tensor([[2.0, 0.0], [0.0, 5.0], [3.0, 3.0], [-1.0, 0.0], [1.0, 7.0]])
LABELS = torch.tensor([0, 1, 0, 1, -1])
H = math.sqrt(0.5)


def measure(features=FEATURES, labels=LABELS):
    metric = Tolerance()
    for rows, targets in zip(features.split(2), labels.split(2), strict=True):
        metric.update(rows, targets)
    return metric.compute()


def test_tolerance_matches_hand_computation():
    # 12 labelled ordered pairs; same class: two with cosine √½ (class 0), two with cosine 0 (class 1)
    assert measure().item() == pytest.approx(2 * H / 12, abs=1e-7)
    assert pair_statistics(FEATURES, LABELS).same_cosine.item() == pytest.approx(2 * H / 4, abs=1e-7)


def test_tolerance_is_zero_or_nan_without_pairs_to_average():
    distinct_labels = torch.tensor([0, 1, 2, 3, -1])
    assert measure(labels=distinct_labels).item() == 0.0
    assert pair_statistics(FEATURES, distinct_labels).same_cosine.isnan()
    assert measure(labels=torch.full((5,), -1)).isnan()
    assert measure(labels=torch.tensor([2, -1, -1, -1, -1])).isnan()


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
