"""From features to rows: each kind of measurement on one representation."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssl_vision.evaluation.embedded import Embedded, Pixels, Splits
from ssl_vision.evaluation.finetune import finetuned_top1
from ssl_vision.evaluation.grid import grid_probe
from ssl_vision.evaluation.logistic import logistic_top1
from ssl_vision.evaluation.probe import ProbeRule, labelled_rows, linear_probe, top1
from ssl_vision.evaluation.protocol import (
    KNN,
    Corruptions,
    FineTune,
    Geometry,
    Grid,
    Linear,
    Logistic,
    Measurement,
    Online,
    Protocol,
)
from ssl_vision.evaluation.table import Row
from ssl_vision.metrics import Alignment, KNNScore, Representation, knn_table, lidar, rank_correlation
from ssl_vision.metrics.precision import full_precision
from ssl_vision.metrics.rows import Features
from ssl_vision.progress import Job

_OWN = {"labels", "augmentation", "views", "lr", "weight_decay"}
"""Options of measurements that are fields of a row."""


class Value(NamedTuple):
    """One number and what a row says of it besides where it was taken."""

    metric: str
    value: float
    about: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Where one representation of the splits comes from.

    Args:
        features: whose; see `Row.features`.
        layer: which layer.
        made: makes the features.
        layers: those that are measured, embedded together.
        epoch: how long the network was trained.
    """

    features: str
    layer: str
    made: Embedded | Pixels
    layers: tuple[str, ...] = ("backbone",)
    epoch: int = 0

    @property
    def bank(self) -> Features:
        """(N, F) of the train split."""
        return self.made.plain("train", self.layer)

    @property
    def queries(self) -> Features:
        """(M, F) of the test split."""
        return self.made.plain("test", self.layer)


def measured(protocol: Protocol, source: Source, splits: Splits, *, seed: int) -> Iterator[Row]:
    """The rows of a protocol's measurements of one representation.

    A measurement that the features do not allow, as where training diverges, is named on stderr with the
    reason and left out.

    Args:
        protocol: what to measure.
        source: on what. Geometry and training on views are the trained network's alone, corruptions and
            fine-tuning the networks'.
        splits: whose labels are known, and are to be found.
        seed: of the order of rows in training, of what is held out, and of the noise.
    """
    scores: dict[KNN, KNNScore] = {}
    for measurement in protocol.measurements:
        try:
            if isinstance(measurement, KNN):
                scores = scores or _neighbours_votes(protocol, source, splits)
                values = [_vote("knn_top1", measurement, scores[measurement])]
            else:
                values = list(_values(measurement, source, splits, seed))
        except (ValueError, torch.OutOfMemoryError) as error:
            kind, reason = type(measurement).__name__.lower(), " ".join(str(error).split())
            where = f"{protocol.name}: {kind} of {source.features} {source.layer}"
            print(f"{where} is left out: {reason}", file=sys.stderr)
            continue
        for metric, value, about in values:
            yield Row(
                source.features, source.layer, metric, value, splits.evaluated, epoch=source.epoch, seed=seed,
                data=splits.data, protocol=protocol.name, **splits.place, **about,
                weights=source.made.weights if isinstance(source.made, Embedded) else None,
            )  # fmt: skip


def _neighbours_votes(protocol: Protocol, source: Source, splits: Splits) -> dict[KNN, KNNScore]:
    """The score of each of the protocol's kNN measurements, from one search for each distance."""
    wanted = [measurement for measurement in protocol.measurements if isinstance(measurement, KNN)]
    scores: dict[KNN, KNNScore] = {}
    for distance in dict.fromkeys(measurement.distance for measurement in wanted):
        group = [measurement for measurement in wanted if measurement.distance == distance]
        ks = list(dict.fromkeys(measurement.k for measurement in group))
        temperatures = list(dict.fromkeys(map(_temperature, group)))
        queries, bank = source.queries, source.bank
        with Job(f"kNN of {source.features} {source.layer}", lines=isinstance(bank, Tensor)):
            table = knn_table(
                queries, splits.images["test"].labels.to(queries.device),
                bank, splits.images["train"].labels.to(bank.device),
                num_classes=len(splits.images["train"].classes), ks=ks, temperatures=temperatures,
                metric=distance,
            )  # fmt: skip
        by_place = dict(zip(product(temperatures, ks), table, strict=True))
        scores |= {each: by_place[_temperature(each), each.k] for each in group}
    return scores


def _temperature(measurement: KNN) -> float | None:
    return measurement.temperature if measurement.vote == "weighted" else None


def _vote(metric: str, measurement: KNN, score: KNNScore) -> Value:
    about = {
        "bank": "train", "k": score.k, "temperature": score.temperature,
        "distance": measurement.distance, "vote": measurement.vote,
    }  # fmt: skip
    return Value(metric, score.top1, about)


def _values(measurement: Measurement, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
    network = source.made if isinstance(source.made, Embedded) else None
    match measurement:
        case Geometry():
            if network and source.features == "trained":
                yield from _geometry(measurement, source, network, splits)
        case Corruptions():
            if network:
                yield from _corruptions(measurement, source, network, splits, seed)
        case FineTune():
            if network and source.layer == "backbone":
                top1 = finetuned_top1(
                    network.encoder, splits.labelled_train(measurement.labels), splits.images["test"],
                    splits.views, rule=measurement, seed=seed,
                )  # fmt: skip
                about = _about(measurement) | {"augmentation": measurement.augmentation}
                about |= {"lr": measurement.lr, "weight_decay": measurement.weight_decay}
                yield Value("finetune_top1", top1, about)
        case Online():
            if network and source.features == "trained" and source.layer == "backbone":
                yield Value("online_top1", _online_top1(source, network, splits), {"bank": "pretrain"})
        case Linear() | Grid() | Logistic():
            yield from _trained(measurement, source, network, splits, seed)


def _trained(
    measurement: Linear | Grid | Logistic,
    source: Source,
    network: Embedded | None,
    splits: Splits,
    seed: int,
) -> Iterator[Value]:
    """Top-1 of a linear layer, by one of the ways to train it."""
    bank = source.bank
    options = _options(splits.train_labels(measurement.labels), source, splits)
    match measurement:
        case Linear(augmentation=augmentation):
            views: Sequence[Features] = [bank]
            how = "none"
            if augmentation != "none":
                if network is None or source.features != "trained":
                    return
                plainer = augmentation == "crop"
                views = network.augmented(source.layers, measurement.views, plainer=plainer)[source.layer]
                how = f"{augmentation}, {len(views)} views"
            probe = linear_probe(views, rule=measurement, seed=seed, **options)
            about = _about(measurement) | {"augmentation": how}
            about |= {"lr": measurement.lr, "weight_decay": measurement.weight_decay}
            yield Value("linear_top1", probe.test_top1, about)
        case Grid():
            best = grid_probe(bank, rule=measurement, seed=seed, **options)
            chosen = {"lr": best.lr, "weight_decay": best.weight_decay}
            if len(measurement.lrs) > 1 and best.lr in (min(measurement.lrs), max(measurement.lrs)):
                where = f"grid of {source.features} {source.layer}"
                print(f"{where}: the best rate, {best.lr:g}, is at the grid's end", file=sys.stderr)
            yield Value("grid_top1", best.test_top1, _about(measurement) | chosen)
        case Logistic(c=c, max_iter=max_iter):
            found = logistic_top1(bank, c=c, max_iter=max_iter, **options)
            yield Value("logistic_top1", found, _about(measurement))


def _online_top1(source: Source, network: Embedded, splits: Splits) -> float:
    if network.online is None:
        raise ValueError(f"the run has no --online_probe on {splits.data}")
    layer = {name: tensor.to(network.device) for name, tensor in network.online.items()}
    truth = splits.images["test"].labels.to(network.device)
    x, y = labelled_rows(source.queries, truth, len(layer["bias"]), "test")
    with full_precision(x.device):
        return top1(x, y, layer["weight"], layer["bias"])


def _options(train_labels: Tensor, source: Source, splits: Splits) -> dict[str, Any]:
    """What every way to train a linear layer is told."""
    queries = source.queries
    return {
        "train_labels": train_labels.to(queries.device),
        "test_features": queries,
        "test_labels": splits.images["test"].labels.to(queries.device),
        "num_classes": len(splits.images["train"].classes),
    }


def _geometry(measurement: Geometry, source: Source, network: Embedded, splits: Splits) -> Iterator[Value]:
    representation, alignment = Representation(extended=measurement.extended), Alignment()
    representation.update(network.plain("test", source.layer).cpu(), splits.images["test"].labels)
    alignment.update(*(view.cpu() for view in network.pairs("test", network.layers)[source.layer]))
    with Job(f"geometry of {source.features} {source.layer}"):
        values = representation.compute()
    for metric, value in values.items():
        if not value.isnan():  # as the mean over pairs of a class that has one image
            yield Value(metric, float(value), {})
    yield Value("alignment", float(alignment.compute()), {"augmentation": "pretraining"})
    if splits.superclasses is not None:
        yield from _ranking(source, network, splits, splits.superclasses)
    if measurement.extended:
        images, views = measurement.lidar_images, measurement.lidar_views
        scatter = network.view_scatter(source.layers, images=images, views=views)[source.layer]
        how = f"pretraining, {views} views of {len(scatter.means)} images"
        yield Value("lidar", float(lidar(scatter)), {"augmentation": how})


def _ranking(source: Source, network: Embedded, splits: Splits, superclasses: Tensor) -> Iterator[Value]:
    """How well cosines rank pairs of views: same image above class above superclass above none."""
    labels = splits.images["test"].labels
    levels = torch.stack([superclasses[labels], labels, torch.arange(len(labels))], dim=1).repeat(2, 1)
    views = torch.cat([view.cpu() for view in network.pairs("test", network.layers)[source.layer]])
    for metric, value in rank_correlation(views, levels)._asdict().items():
        yield Value(metric, float(value), {"augmentation": "pretraining"})


def _corruptions(
    measurement: Corruptions, source: Source, network: Embedded, splits: Splits, seed: int
) -> Iterator[Value]:
    """Both accuracies on clean test images, as severity 0, and on all corrupted ones."""
    options = _options(splits.train_labels(), source, splits)
    labels, truth = options["train_labels"], options["test_labels"]
    rule, knn = measurement.linear, measurement.knn
    probe = linear_probe(source.bank, rule=rule, seed=seed, **options)
    for corruption, severity in [(None, 0), *product(measurement.corruptions, measurement.severities)]:
        queries = source.queries
        if corruption is not None:
            queries = network.corrupted(source.layers, corruption, severity)[source.layer]
        (score,) = knn_table(
            queries, truth, source.bank, labels, num_classes=options["num_classes"], ks=[knn.k],
            temperatures=[_temperature(knn)], metric=knn.distance,
        )  # fmt: skip
        x, y = labelled_rows(queries, truth, options["num_classes"], "test")
        with full_precision(x.device):
            right = top1(x, y, probe.weight, probe.bias)
        how = {"corruption": corruption or "none", "severity": severity}
        vote = _vote("corrupted_knn_top1", knn, score)
        yield vote._replace(about=vote.about | how)
        about = {"bank": "train", "lr": rule.lr, "weight_decay": rule.weight_decay, "options": _shown(rule)}
        yield Value("corrupted_linear_top1", right, about | how)


def _about(measurement: Linear | Grid | Logistic | FineTune) -> dict[str, Any]:
    labels = None if measurement.labels == "all" else measurement.labels
    return {"bank": "train", "labels": labels, "options": _shown(measurement)}


def _shown(rule: ProbeRule | Grid | Logistic | FineTune) -> str:
    """The options of a rule that have no field of their own in a row."""
    own = _OWN if not isinstance(rule, Grid) else {"labels"}
    options = {key: value for key, value in dataclasses.asdict(rule).items() if key not in own}
    return ", ".join(f"{key} {value}" for key, value in options.items())
