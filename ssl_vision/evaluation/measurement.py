"""Measurements: their base classes, what one is given and returns, and those of kNN and geometry."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

import torch
from torch import Tensor

import ssl_vision.evaluation
from ssl_vision.descriptions import DescribedMetric
from ssl_vision.errors import check, check_choice
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.splits import Labels, Pixels, Splits
from ssl_vision.metrics import Alignment, Representation, lidar, rank_correlation
from ssl_vision.metrics.knn import KNNScore, check_range, knn_table
from ssl_vision.metrics.rows import (
    UNLABELLED,
    Features,
    LazyRows,
    check_features,
    checked_labels,
    select,
)
from ssl_vision.progress import Progress

MOST_EPOCHS = 100_000
"""Maximum number of epochs of a classifier; published protocols have at most 500."""

_COLUMNS = {"labels", "augmentation", "views", "lr", "weight_decay"}
"""Options of measurements that have a field of their own in a row."""


def ranged(default: float, **bounds: float) -> Any:
    """Return a field of a dataclass whose value `check_options` requires to be within bounds.

    Args:
        default: default of the field.
        bounds: bounds as for `ssl_vision.errors.check`.
    """
    return dataclasses.field(default=default, metadata=bounds)


def check_options(options: Any) -> None:
    """Check the fields of a dataclass that are `ranged` or have a Literal type.

    Raises:
        InputError: a value is out of range, or not one of the choices.
    """
    for each in dataclasses.fields(options):
        value = vars(options)[each.name]
        if each.metadata:
            check(each.name, value, **each.metadata)
        if get_origin(each.type) is Literal:
            check_choice(each.name, value, get_args(each.type))


class Value(NamedTuple):
    """One measured number."""

    metric: str
    value: float
    about: Mapping[str, Any] = {}
    """How the number was measured: keys of the row, of any name; see `Row.conditions`."""
    correct: Tensor | None = None
    """Which labelled test images are classified correctly, for an accuracy: bool of shape (n,)."""


@dataclass(frozen=True)
class Source:
    """One representation of the splits.

    Args:
        extractor: network or images that the features come from.
        layer: layer at which the features are read.
        layers: all layers that the protocol measures, which are embedded together.
        measurements: all measurements of the protocol, with which one can share its work.
    """

    extractor: FeatureExtractor | Pixels
    layer: str = "backbone"
    layers: tuple[str, ...] = ("backbone",)
    measurements: tuple["Measurement", ...] = dataclasses.field(default=(), compare=False)

    @property
    def features(self) -> str:
        """Name of the network or the images; see `Row.features`."""
        return self.extractor.name

    @property
    def bank(self) -> Features:
        """Features of the train split, (N, F); ``bank[:]`` is a tensor where they are read in parts."""
        return self.extractor.plain("train", self.layer)

    @property
    def queries(self) -> Features:
        """Features of the test split, (M, F), likewise."""
        return self.extractor.plain("test", self.layer)

    @property
    def network(self) -> FeatureExtractor | None:
        """Trained or untrained network; None for raw pixels."""
        return self.extractor if isinstance(self.extractor, FeatureExtractor) else None

    @property
    def trained_network(self) -> FeatureExtractor | None:
        """Network with weights from training; None for the untrained network and raw pixels."""
        return self.network if self.features != "untrained" else None


@dataclass(frozen=True)
class Measurement(DescribedMetric):
    """Base class of measurement kinds; the fields of a subclass are its options in a protocol file.

    A subclass is a frozen dataclass with a method ``measure``. Protocol files name a class of this folder in
    lower case, such as ``knn``, and a class in a module of your own by its import path. The attributes of
    `DescribedMetric` describe the metric that it yields.

    Example:
        >>> @dataclass(frozen=True)
        ... class Width(Measurement):
        ...     def measure(self, source, splits, seed):
        ...         yield Value("width", source.queries.shape[1])
        >>> str(Width())
        'width'
    """

    kind: ClassVar[str] = ""
    """Name in messages and in the protocol files of the package: that of the class in lower case."""
    required_layer: ClassVar[str | None] = None
    """Layer that a protocol must include, if the measurement is possible at that layer only."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = cls.__name__.lower()

    def __post_init__(self) -> None:
        check_options(self)

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.kind, options_text(self, without=()))))

    @classmethod
    def defaults(cls, *, k: int) -> dict[str, Any]:
        """Defaults of options in a protocol file that depend on the data set.

        Args:
            k: neighbours that vote on this data set.
        """
        return {}

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterable[Value]:
        """Measure one representation; yield nothing where the measurement does not apply to it.

        Args:
            source: the representation.
            splits: the images and their labels.
            seed: seed of the order of rows in training, of held-out rows and of noise.

        Raises:
            ValueError: The features do not allow the measurement, which is then left out with this message.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method measure")


def kinds() -> dict[str, type[Measurement]]:
    """Return the classes of this folder by the names that protocol files give them."""
    found: dict[str, type[Measurement]] = {}
    for info in pkgutil.iter_modules(ssl_vision.evaluation.__path__, "ssl_vision.evaluation."):
        for cls in vars(importlib.import_module(info.name)).values():
            if isinstance(cls, type) and issubclass(cls, Measurement) and cls is not Measurement:
                found |= {cls.kind: cls} if "measure" in vars(cls) else {}
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Classifier(Measurement):
    """Base class of measurements that train a classifier, whose accuracy is the metric."""

    unit = "%"
    higher_is_better = True
    needs = ("labels",)

    labels: Labels = "all"
    """Share of the training images that keep their labels."""

    def rows(self, source: Source, splits: Splits) -> dict[str, Any]:
        """Arguments of every function that trains a classifier on features."""
        bank, queries = source.bank, source.queries
        return {
            "train_features": bank,
            "train_labels": splits.train_labels(self.labels).to(queries.device),
            "test_features": queries,
            "test_labels": splits.images["test"].labels.to(queries.device),
            "num_classes": len(splits.images["train"].classes),
        }

    def accuracy(self, correct: Tensor, **about: Any) -> Value:
        """The accuracy as a value, with the training options and further keys of its row.

        Args:
            correct: which labelled test images are classified correctly, bool of shape (n,).
            about: further keys of the row.
        """
        labels = None if self.labels == "all" else self.labels
        conditions = {"bank": "train", "labels": labels, "options": options_text(self)}
        return Value(self.metric_name, correct.double().mean().item(), conditions | about, correct)


def labelled_splits(
    train_features: Features | Sequence[Features],
    train_labels: Tensor,
    test_features: Features,
    test_labels: Tensor,
    num_classes: int,
) -> tuple[tuple[list[Features], Tensor], tuple[Features, Tensor]]:
    """Check both splits, and return the labelled rows of each, as `labelled_rows` does.

    Args:
        train_features: features (N, F), or one such entry for each view of the train images.
        train_labels: labels (N,).
        test_features: features (M, F).
        test_labels: labels (M,).
        num_classes: number of classes.

    Returns:
        The rows of each train view with their labels, and the rows of test with their labels.
    """
    views: list[Features] = (
        [train_features] if isinstance(train_features, Tensor | LazyRows) else list(train_features)
    )
    train = [labelled_rows(view, train_labels, num_classes, "train") for view in views]
    test = labelled_rows(test_features, test_labels, num_classes, "test")
    return ([rows for rows, _ in train], train[0][1]), test


def labelled_rows(
    features: Features, labels: Tensor, num_classes: int, split: str
) -> tuple[Features, Tensor]:
    """Check a split, and return its labelled rows, float32 (n, F), and labels, int64 (n,)."""
    check_features(features, f"{split}_features")
    labels = checked_labels(labels, len(features), f"{split}_labels")
    keep = labels != UNLABELLED
    rows, targets = select(features, keep), labels[keep]
    if isinstance(rows, Tensor):
        rows = rows.detach().float()
    if len(rows) == 0:
        raise ValueError(f"{split}_labels: none of the {len(labels)} rows is labelled")
    check_range(targets, num_classes, f"{split}_labels")
    if isinstance(rows, Tensor) and not rows.isfinite().all():
        raise ValueError(f"{split}_features: some of the {tuple(features.shape)} values are not finite")
    return rows, targets


def options_text(rule: Any, *, without: Collection[str] = _COLUMNS) -> str:
    """The fields of a dataclass as text, by default those that have no field of their own in a row."""
    options = dataclasses.asdict(rule).items()
    return ", ".join(f"{key} {value}" for key, value in options if key not in without)


def labels_text(labels: str) -> str:
    """The end of a description that states the share of labels, or the shares, that are used."""
    return "" if labels == "all" else f", with {labels} of the labels"


@dataclass(frozen=True)
class KNN(Measurement):
    """Vote of the nearest neighbours in the labelled train split.

    Raises:
        ValueError: A value is out of range.
    """

    k: int = ranged(200, at_least=1)
    """Number of neighbours; in a protocol file, the default is that of the data set (``knn_k``)."""
    distance: Literal["cosine", "euclidean"] = "cosine"
    vote: Literal["weighted", "majority"] = "weighted"
    """``weighted`` gives a neighbour the weight exp(s/T), s the cosine or −distance; ``majority`` gives 1."""
    temperature: float = ranged(0.1, above=0)
    """Temperature T of the weighted vote."""

    def __str__(self) -> str:
        votes = f"T = {self.temperature:g}" if self.vote == "weighted" else "majority vote"
        return f"kNN: {self.distance}, k = {self.k}, {votes}"

    @classmethod
    def defaults(cls, *, k: int) -> dict[str, Any]:
        """The data set's k."""
        return {"k": k}

    @property
    def vote_temperature(self) -> float | None:
        """T of the vote; None for a majority vote."""
        return self.temperature if self.vote == "weighted" else None

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of the vote."""
        group = dict.fromkeys(each for each in (*source.measurements, self) if isinstance(each, KNN))
        score = knn_scores(tuple(group), source, splits)[self]
        about = {"k": score.k, "temperature": score.temperature, "distance": self.distance}
        yield Value("knn_top1", score.top1, {"bank": "train", "vote": self.vote} | about, score.correct)


@functools.lru_cache(maxsize=1)
def knn_scores(measurements: tuple[KNN, ...], source: Source, splits: Splits) -> dict[KNN, KNNScore]:
    """Compute the score of each measurement from one search for each distance."""
    scores: dict[KNN, KNNScore] = {}
    for distance in dict.fromkeys(each.distance for each in measurements):
        group = [each for each in measurements if each.distance == distance]
        ks = list(dict.fromkeys(each.k for each in group))
        temperatures = list(dict.fromkeys(each.vote_temperature for each in group))
        queries, bank = source.queries, source.bank
        with Progress(f"kNN of {source.features} {source.layer}", lines=isinstance(bank, Tensor)):
            table = knn_table(
                queries, splits.images["test"].labels.to(queries.device),
                bank, splits.images["train"].labels.to(bank.device),
                num_classes=len(splits.images["train"].classes), ks=ks, temperatures=temperatures,
                metric=distance,
            )  # fmt: skip
        by_place = dict(zip(product(temperatures, ks), table, strict=True))
        scores |= {each: by_place[each.vote_temperature, each.k] for each in group}
    return scores


@dataclass(frozen=True)
class Geometry(Measurement):
    """Alignment, uniformity, tolerance, cosines, sensitivity and RankMe of the test split; no baselines.

    Raises:
        ValueError: A value is out of range.
    """

    extended: bool = False
    """True adds effective rank, feature standard deviation and LiDAR."""
    lidar_images: int = ranged(1000, at_least=2)
    """Number of evenly spaced test images for LiDAR; its paper uses 1,000."""
    lidar_views: int = ranged(50, at_least=2)
    """Number of views of each image for LiDAR; its paper uses 50."""

    def __str__(self) -> str:
        return ""

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """All metrics that the labels of the data set allow."""
        network = source.trained_network
        if network is None:
            return
        representation, alignment = Representation(extended=self.extended), Alignment()
        labels = splits.images["test"].labels
        representation.update(network.plain("test", source.layer)[:].cpu(), labels)
        views = network.pairs("test", network.layers)[source.layer].cpu()
        alignment.update(*views)
        with Progress(f"geometry of {source.features} {source.layer}"):
            values = representation.compute()
        for metric, value in values.items():
            yield from _defined(metric, value)
        yield from _defined("alignment", alignment.compute(), augmentation="pretraining")
        if splits.superclasses is not None:
            levels = torch.stack([splits.superclasses[labels], labels, torch.arange(len(labels))], dim=1)
            correlations = rank_correlation(views.flatten(0, 1), levels.repeat(2, 1))
            for metric, value in correlations._asdict().items():
                yield from _defined(metric, value, augmentation="pretraining")
        if self.extended:
            scatter = network.view_scatter(source.layers, images=self.lidar_images, views=self.lidar_views)
            means = scatter[source.layer].means
            augmentation = f"pretraining, {self.lidar_views} views of {len(means)} images"
            yield from _defined("lidar", lidar(scatter[source.layer]), augmentation=augmentation)


def _defined(metric: str, value: Tensor, **about: Any) -> Iterator[Value]:
    """Yield a value, or nothing if it is not defined: for example, if no class has two images."""
    if value.isfinite():
        yield Value(metric, float(value), about)
