import pytest
import torch

from ssl_vision.metrics import (
    RankMe,
    Representation,
    SemanticSensitivity,
    Tolerance,
    Uniformity,
    class_means,
    effective_rank,
    feature_std,
    retrieval,
)
from ssl_vision.metrics.tolerance import class_cosines

FEATURES = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 0.5
LABELS = torch.arange(40) % 4 - 1


def test_equals_the_metrics_one_by_one():
    parts = {
        "uniformity": Uniformity(t=1.5),
        "tolerance": Tolerance(),
        "same_cosine": Tolerance(conditional=True),
        "sensitivity": SemanticSensitivity(),
        "rankme": RankMe(),
    }
    whole = Representation(t=1.5)
    for rows, labels in zip(FEATURES.split(9), LABELS.split(9), strict=True):
        whole.update(rows, labels)
        for name, part in parts.items():
            part.update(rows) if name in ("uniformity", "rankme") else part.update(rows, labels)
    found = whole.compute()
    unit = torch.nn.functional.normalize(FEATURES)
    expected = {name: part.compute().item() for name, part in parts.items()}
    expected["different_cosine"] = class_cosines(unit, LABELS).different_cosine.item()
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, abs=1e-6)


def test_extended_adds_the_functions_values():
    whole, plain = Representation(extended=True), Representation()
    for rows, labels in zip(FEATURES.split(9), LABELS.split(9), strict=True):
        whole.update(rows, labels)
        plain.update(rows, labels)
    found = retrieval(FEATURES, LABELS, ks=(1, 5, 10))
    expected = {
        **plain.compute(),
        "effective_rank": effective_rank(FEATURES),
        "feature_std": feature_std(FEATURES),
        **class_means(FEATURES, LABELS)._asdict(),
        "map": found.mean_average_precision,
        **{f"recall@{k}": value for k, value in zip((1, 5, 10), found.recall, strict=True)},
    }
    assert whole.compute() == expected
    unlabelled = Representation(extended=True)
    unlabelled.update(FEATURES)
    missing = {name for name, value in unlabelled.compute().items() if value.isnan()}
    assert missing == {
        "tolerance", "same_cosine", "different_cosine", "sensitivity", "nc1", "nc2_norms", "nc2_angles",
        "map", "recall@1", "recall@5", "recall@10",
    }  # fmt: skip


def test_without_labels_the_label_statistics_are_nan():
    metric = Representation()
    metric.update(FEATURES)
    found = metric.compute()
    missing = {name for name, value in found.items() if value.isnan()}
    assert missing == {"tolerance", "same_cosine", "different_cosine", "sensitivity"}


def test_reset_forgets():
    metric = Representation()
    metric.update(FEATURES * 0 + 1, LABELS)
    metric.reset()
    metric.update(FEATURES, LABELS)
    fresh = Representation()
    fresh.update(FEATURES, LABELS)
    assert metric.compute() == fresh.compute()


def test_collects_in_inference_mode_and_computes_outside():
    metric, plain = Representation(), Representation()
    with torch.inference_mode():
        metric.update(FEATURES * 1, LABELS * 1)
    plain.update(FEATURES, LABELS)
    assert metric.compute() == plain.compute()


def test_keeps_no_graph():
    metric = Representation()
    metric.update(FEATURES.clone().requires_grad_(), LABELS)
    assert not any(value.requires_grad for value in metric.compute().values())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_refuses():
    metric = Representation()
    with pytest.raises(ValueError, match="no features"):
        metric.compute()
    with pytest.raises(ValueError, match=r"\(39,\)"):
        metric.update(FEATURES, LABELS[1:])
    with pytest.raises(ValueError, match=r"t: .*0"):
        Representation(t=0)
    metric.update(FEATURES, LABELS)
    metric.update(FEATURES[:, :4], LABELS)
    with pytest.raises(ValueError, match=r"\[4, 6\]"):
        metric.compute()
