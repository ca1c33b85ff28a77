"""From features to rows: each kind of measurement on one representation."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from torch import Tensor

from ssl_vision.errors import InputError
from ssl_vision.evaluation.embedded import Splits
from ssl_vision.evaluation.grid import grid_probe
from ssl_vision.evaluation.logistic import logistic_top1
from ssl_vision.evaluation.probe import linear_probe
from ssl_vision.evaluation.protocol import KNN, Geometry, Grid, Linear, Logistic, Measurement, Protocol
from ssl_vision.evaluation.table import Row
from ssl_vision.metrics import Alignment, KNNScore, Representation, knn_table

_LONG = 10_000
"""Rows from which on training says how far it is."""


class Value(NamedTuple):
    """One number and what a row says of it besides where it was taken."""

    metric: str
    value: float
    about: dict[str, Any]


@dataclass(frozen=True)
class Representations:
    """One layer's features of both splits.

    Args:
        features: whose; see `Row.features`.
        layer: which layer.
        bank: (N, F) of the train split.
        queries: (M, F) of the test split.
        pair: (M, F) each, of two random views of the test images; None where they are not measured.
        augmented: (N, F) each, of random views of the train images, for every measurement that wants them;
            one that does not find them here is left out.
        epoch: how long the network was trained.
    """

    features: str
    layer: str
    bank: Tensor
    queries: Tensor
    pair: tuple[Tensor, Tensor] | None = None
    augmented: Mapping[Linear, list[Tensor]] = field(default_factory=dict)
    epoch: int = 0


def measured(protocol: Protocol, found: Representations, splits: Splits, *, seed: int) -> Iterator[Row]:
    """The rows of a protocol's measurements of one representation.

    Args:
        protocol: what to measure.
        found: on what.
        splits: whose labels are known, and are to be found.
        seed: of the order of rows in training, and of what is held out.

    Raises:
        InputError: the features do not allow it, as where training diverges.
    """
    scores: dict[KNN, KNNScore] = {}
    for measurement in protocol.measurements:
        try:
            if isinstance(measurement, KNN):
                scores = scores or _neighbours_votes(protocol, found, splits)
                values = [_vote(measurement, scores[measurement])]
            else:
                values = list(_values(measurement, found, splits, seed))
        except ValueError as error:
            kind = type(measurement).__name__.lower()
            raise InputError(f"{kind} of {found.features} {found.layer}: {error}") from error
        for metric, value, about in values:
            yield Row(
                found.features, found.layer, metric, value, "test", epoch=found.epoch, seed=seed,
                protocol=protocol.name, **about,
            )  # fmt: skip


def _neighbours_votes(protocol: Protocol, found: Representations, splits: Splits) -> dict[KNN, KNNScore]:
    """The score of each of the protocol's kNN measurements, from one search for each distance."""
    wanted = [measurement for measurement in protocol.measurements if isinstance(measurement, KNN)]
    scores: dict[KNN, KNNScore] = {}
    for distance in dict.fromkeys(measurement.distance for measurement in wanted):
        group = [measurement for measurement in wanted if measurement.distance == distance]
        ks = list(dict.fromkeys(measurement.k for measurement in group))
        temperatures = list(dict.fromkeys(map(_temperature, group)))
        table = knn_table(
            found.queries, splits.images["test"].labels.to(found.queries.device),
            found.bank, splits.images["train"].labels.to(found.bank.device),
            num_classes=len(splits.images["train"].classes), ks=ks, temperatures=temperatures,
            metric=distance,
        )  # fmt: skip
        by_place = dict(zip(product(temperatures, ks), table, strict=True))
        scores |= {each: by_place[_temperature(each), each.k] for each in group}
    return scores


def _temperature(measurement: KNN) -> float | None:
    return measurement.temperature if measurement.vote == "weighted" else None


def _vote(measurement: KNN, score: KNNScore) -> Value:
    about = {
        "bank": "train", "k": score.k, "temperature": score.temperature,
        "distance": measurement.distance, "vote": measurement.vote,
    }  # fmt: skip
    return Value("knn_top1", score.top1, about)


def _values(measurement: Measurement, found: Representations, splits: Splits, seed: int) -> Iterator[Value]:
    bank, queries = found.bank, found.queries
    labels = splits.train_labels(getattr(measurement, "labels", "all"))
    options: dict[str, Any] = {
        "train_labels": labels.to(bank.device),
        "test_features": queries,
        "test_labels": splits.images["test"].labels.to(bank.device),
        "num_classes": len(splits.images["train"].classes),
    }
    trained: dict[str, Any] = {**options, "seed": seed, "progress": int((labels >= 0).sum()) > _LONG}
    match measurement:
        case Linear(augmentation=augmentation):
            if augmentation != "none" and measurement not in found.augmented:
                return
            views = [bank] if augmentation == "none" else found.augmented[measurement]
            probe = linear_probe(views, rule=measurement, **trained)
            how = augmentation if augmentation == "none" else f"{augmentation}, {len(views)} views"
            about = _about(measurement) | {"augmentation": how}
            yield Value(
                "linear_top1",
                probe.test_top1,
                about | {"lr": measurement.lr, "weight_decay": measurement.weight_decay},
            )
        case Grid():
            best = grid_probe(bank, rule=measurement, **trained)
            chosen = {"lr": best.lr, "weight_decay": best.weight_decay}
            if len(measurement.lrs) > 1 and best.lr in (min(measurement.lrs), max(measurement.lrs)):
                where = f"grid of {found.features} {found.layer}"
                print(f"{where}: the best rate, {best.lr:g}, is at the grid's end", file=sys.stderr)
            yield Value("grid_top1", best.test_top1, _about(measurement) | chosen)
        case Logistic(c=c, max_iter=max_iter):
            top1 = logistic_top1(bank, c=c, max_iter=max_iter, **options)
            yield Value("logistic_top1", top1, _about(measurement))
        case Geometry(extended=extended):
            if found.pair is not None:
                representation, alignment = Representation(extended=extended), Alignment()
                representation.update(queries.cpu(), splits.images["test"].labels)
                alignment.update(*(view.cpu() for view in found.pair))
                for metric, value in representation.compute().items():
                    yield Value(metric, float(value), {})
                yield Value("alignment", float(alignment.compute()), {"augmentation": "pretraining"})


def _about(measurement: Linear | Grid | Logistic) -> dict[str, Any]:
    return {"bank": "train", "labels": None if measurement.labels == "all" else measurement.labels}
