"""Robustness: accuracy on corrupted test images of classifiers that were trained on clean images."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ssl_vision.data.augment.corruptions import CORRUPTIONS, SEVERITIES, Corruption
from ssl_vision.descriptions import describe
from ssl_vision.evaluation.knn import KNN
from ssl_vision.evaluation.measurement import (
    Measurement,
    Source,
    Value,
    about_training,
    classification,
    measurement,
)
from ssl_vision.evaluation.probe import Linear, ProbeRule, labelled_rows, linear_probe, top1
from ssl_vision.evaluation.splits import Splits
from ssl_vision.metrics.knn_table import knn_table
from ssl_vision.metrics.precision import exact_float32

describe(
    "corrupted_knn_top1",
    title="kNN",
    long_title="kNN top-1 under corruptions",
    unit="%",
    direction="higher",
    sections=("table",),
    needs=("labels",),
    note="This is the kNN accuracy on corrupted test images, by corruption and severity.",
    order=75,
)
describe(
    "corrupted_linear_top1",
    title="linear",
    long_title="linear top-1 under corruptions",
    unit="%",
    direction="higher",
    sections=("table",),
    needs=("labels",),
    note="This is the accuracy of the linear layer on corrupted test images, by corruption and severity.",
    order=76,
)


@measurement("corruptions")
@dataclass(frozen=True)
class Corruptions(Measurement):
    """Top-1 accuracy on corrupted test images of classifiers that are fitted on clean training images.

    Raises:
        ValueError: A value is out of range.
    """

    corruptions: tuple[Corruption, ...] = CORRUPTIONS
    severities: tuple[int, ...] = SEVERITIES
    knn: KNN = field(default_factory=KNN)
    linear: ProbeRule = field(default_factory=ProbeRule)

    def __post_init__(self) -> None:
        for name, available in (("corruptions", CORRUPTIONS), ("severities", SEVERITIES)):
            chosen = getattr(self, name)
            if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(available):
                raise ValueError(f"{name}: expected some of {available}, each once, got {chosen}")

    def __str__(self) -> str:
        severities = ", ".join(map(str, self.severities))
        return (
            f"corruptions: train images clean, test images at severities {severities} (means); {self.knn}; "
            f"{Linear(**dataclasses.asdict(self.linear))}"
        )

    @classmethod
    def defaults(cls, *, k: int) -> dict[str, Any]:
        """The data set's k."""
        return {"knn.k": k}

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Both accuracies on clean test images, as severity 0, and on all corrupted ones."""
        network = source.network
        if network is None:
            return
        options = classification(source, splits)
        labels, truth, classes = (options[key] for key in ("train_labels", "test_labels", "num_classes"))
        rule, knn = self.linear, self.knn
        probe = linear_probe(**options, rule=rule, seed=seed)
        about = about_training(rule, labels="all") | {"lr": rule.lr, "weight_decay": rule.weight_decay}
        for corruption, severity in [(None, 0), *product(self.corruptions, self.severities)]:
            queries = source.queries
            if corruption is not None:
                queries = network.corrupted(source.layers, corruption, severity)[source.layer]
            (score,) = knn_table(
                queries, truth, options["train_features"], labels, num_classes=classes, ks=[knn.k],
                temperatures=[knn.vote_temperature], metric=knn.distance,
            )  # fmt: skip
            x, y = labelled_rows(queries, truth, classes, "test")
            with exact_float32(x.device):
                right = top1(x, y, probe.weight, probe.bias)
            condition = {"corruption": corruption or "none", "severity": severity}
            vote = knn.value("corrupted_knn_top1", score)
            yield vote._replace(about=vote.about | condition)
            yield Value("corrupted_linear_top1", right, about | condition)
