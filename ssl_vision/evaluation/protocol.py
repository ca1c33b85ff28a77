"""Protocols: lists of measurements in small files, those of the literature and one's own."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ssl_vision.data.corruptions import CORRUPTIONS, SEVERITIES, Corruption
from ssl_vision.errors import InputError
from ssl_vision.evaluation.finetune import FineTuneRule
from ssl_vision.evaluation.grid import GridRule
from ssl_vision.evaluation.probe import ProbeRule
from ssl_vision.evaluation.ranges import check
from ssl_vision.evaluation.subset import SHARES, Labels
from ssl_vision.methods import Layers
from ssl_vision.runs.complaint import OneLineErrors, one_line
from ssl_vision.runs.reading import parse_yaml, read_text

_SHIPPED = files("ssl_vision.evaluation") / "protocols"


@dataclass(frozen=True)
class KNN:
    """Neighbours' votes: the bank is the labelled train split.

    Raises:
        ValueError: A value is out of range.
    """

    k: int = 200
    """In a file of a protocol, the default is the data set's (``knn_k``)."""
    distance: Literal["cosine", "euclidean"] = "cosine"
    vote: Literal["weighted", "majority"] = "weighted"
    """``weighted`` counts a neighbour as exp(s/T), s the cosine or −distance; ``majority`` each as 1."""
    temperature: float = 0.1
    """T of the weighted vote."""

    def __post_init__(self) -> None:
        check(
            self,
            k=self.k >= 1,
            distance=self.distance in ("cosine", "euclidean"),
            vote=self.vote in ("weighted", "majority"),
            temperature=self.temperature > 0,
        )

    def __str__(self) -> str:
        votes = f"T = {self.temperature:g}" if self.vote == "weighted" else "majority vote"
        return f"kNN: {self.distance}, k = {self.k}, {votes}"


@dataclass(frozen=True)
class Linear(ProbeRule):
    """A linear layer by a fixed rule.

    Raises:
        ValueError: A value is out of range.
    """

    labels: Labels = "all"
    """How many of the train images have their labels."""
    augmentation: Literal["none", "crop", "pretraining"] = "none"
    """Views that it is trained on: the run's own, or of these only crop and flip."""
    views: int = 10
    """Random views of each image, where there is augmentation; the epochs take them in turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            labels=self.labels in ("all", *SHARES),
            augmentation=self.augmentation in ("none", "crop", "pretraining"),
            views=self.views >= 1,
        )

    def __str__(self) -> str:
        name = {"sgd": "SGD", "nesterov": "Nesterov's SGD", "adam": "Adam"}[self.optimizer]
        views = "" if self.augmentation == "none" else f" of {self.views} views ({self.augmentation})"
        text = f"linear: {self.epochs} epochs of {name} {self.lr:g} on frozen features{views}"
        return text + _labels(self.labels)


@dataclass(frozen=True)
class Grid(GridRule):
    """A linear layer by the best rule of a grid, chosen on a held-out part of train.

    Raises:
        ValueError: A value is out of range.
    """

    labels: Labels = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, labels=self.labels in ("all", *SHARES))

    def __str__(self) -> str:
        return (
            f"grid: {self.epochs} epochs of SGD, the best of {len(self.members)} on "
            f"{100 * self.held_out:g} % held out of train{_labels(self.labels)}"
        )


@dataclass(frozen=True)
class Logistic:
    """Logistic regression on standardised features.

    Raises:
        ValueError: A value is out of range.
    """

    c: float = 1.0
    max_iter: int = 1000
    labels: Labels = "all"

    def __post_init__(self) -> None:
        check(
            self,
            c=self.c > 0,
            max_iter=self.max_iter >= 1,
            labels=self.labels in ("all", *SHARES),
        )

    def __str__(self) -> str:
        return f"logistic: L-BFGS on standardised features, C = {self.c:g}{_labels(self.labels)}"


@dataclass(frozen=True)
class Geometry:
    """Alignment, uniformity, tolerance, cosines, sensitivity and RankMe of the test split; no baselines.

    Raises:
        ValueError: A value is out of range.
    """

    extended: bool = False
    """With effective rank, feature standard deviation, class means, retrieval and LiDAR."""
    lidar_images: int = 1000
    """Images of the test split whose LiDAR is taken, evenly spaced; LiDAR's paper has 1,000."""
    lidar_views: int = 50
    """Views of each; the paper has 50. The network sees images times views."""

    def __post_init__(self) -> None:
        for name, least in (("lidar_images", 2), ("lidar_views", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: out of range, got {getattr(self, name)}")

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class Corruptions:
    """Top-1 of the test images under each corruption and severity, with what clean train images taught.

    Raises:
        ValueError: A value is out of range.
    """

    corruptions: tuple[Corruption, ...] = CORRUPTIONS
    severities: tuple[int, ...] = SEVERITIES
    knn: KNN = KNN()
    linear: ProbeRule = field(default_factory=ProbeRule)

    def __post_init__(self) -> None:
        for name, known in (("corruptions", CORRUPTIONS), ("severities", SEVERITIES)):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given) or not set(given) <= set(known):
                raise ValueError(f"{name}: expected some of {known}, each once, got {given}")

    def __str__(self) -> str:
        severities = ", ".join(map(str, self.severities))
        return (
            f"corruptions: train images clean, test images at severities {severities} (means); {self.knn}; "
            f"{Linear(**dataclasses.asdict(self.linear))}"
        )


@dataclass(frozen=True)
class FineTune(FineTuneRule):
    """The backbone and a linear layer, trained end to end.

    Raises:
        ValueError: A value is out of range.
    """

    labels: Labels = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, labels=self.labels in ("all", *SHARES))

    def __str__(self) -> str:
        views = {"none": "plain images", "crop": "crops", "pretraining": "the run's views"}[self.augmentation]
        return (
            f"fine-tuned: {self.epochs} epochs of Nesterov's SGD {self.lr:g}, cosine, on {views}"
            f"{_labels(self.labels)}"
        )


@dataclass(frozen=True)
class Online:
    """The linear layer that was trained along with the backbone (``--online_probe``); no baselines."""

    def __str__(self) -> str:
        return "online: a linear layer trained along with the backbone, on augmented images"


Measurement = KNN | Linear | Grid | Logistic | Geometry | Corruptions | FineTune | Online

KINDS: dict[str, type[Measurement]] = {
    "knn": KNN,
    "linear": Linear,
    "grid": Grid,
    "logistic": Logistic,
    "geometry": Geometry,
    "corruptions": Corruptions,
    "finetune": FineTune,
    "online": Online,
}


class Protocol(NamedTuple):
    """What is measured: the bank is the labelled train split, the queries are the test split."""

    name: str
    layers: tuple[str, ...]
    measurements: tuple[Measurement, ...]


def _labels(labels: Labels) -> str:
    return "" if labels == "all" else f", with {labels} of the labels"


def shipped() -> list[str]:
    """Names of the protocols that come with the package."""
    return sorted(
        file.name.removesuffix(".yaml") for file in _SHIPPED.iterdir() if file.name.endswith(".yaml")
    )


def read_protocol(name: str, *, k: int = KNN.k) -> Protocol:
    """A protocol of the package by its name, or of a user's own file by its path.

    The file holds ``layers``, a list, and ``measurements``, a list whose items have one key, the kind,
    and the options of that kind, as in ``- knn: {k: 20, temperature: 0.07}``.

    Args:
        name: of a protocol of the package, or a path that ends in .yaml or .yml.
        k: neighbours that vote where the file does not say it.

    Raises:
        InputError: no such protocol, or a file that is none.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        text = read_text(path)
    elif name in shipped():
        text = (_SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        raise InputError(
            f"no protocol '{name}'; there are {', '.join(shipped())}, all, and your own .yaml file"
        )
    content = parse_yaml(text, where=f"protocol {name}")
    if not isinstance(content, Mapping) or content.keys() - {"layers", "measurements"}:
        raise InputError(f"protocol {name}: expected the keys layers and measurements")
    layers, items = content.get("layers", ["backbone"]), content.get("measurements")
    if not isinstance(layers, list) or not layers or not set(layers) <= set(Layers._fields):
        raise InputError(
            f"protocol {name}: layers must be a list out of {', '.join(Layers._fields)}, not {layers}"
        )
    if not isinstance(items, list) or not items:
        raise InputError(f"protocol {name}: measurements must be a list")
    measurements = tuple(
        _measurement(item, k, f"protocol {name}: measurement {i}") for i, item in enumerate(items, 1)
    )
    if "backbone" not in layers and any(isinstance(each, FineTune) for each in measurements):
        raise InputError(f"protocol {name}: finetune is of the backbone, which layers must name")
    return Protocol(path.stem, tuple(layers), measurements)


def _measurement(item: Any, k: int, where: str) -> Measurement:
    if not isinstance(item, Mapping) or len(item) != 1 or next(iter(item)) not in KINDS:
        raise InputError(f"{where}: expected one of {', '.join(KINDS)} with its options, not {item}")
    ((kind, options),) = item.items()
    if not isinstance(options or {}, Mapping):
        raise InputError(f"{where}: expected options of {kind} by name, not {options}")
    parser = OneLineErrors()
    parser.add_class_arguments(KINDS[kind], kind)
    parser.set_defaults({"knn": {"knn.k": k}, "corruptions": {"corruptions.knn.k": k}}.get(kind, {}))
    try:
        made: Measurement = parser.instantiate(parser.parse_object({kind: options or {}}))[kind]
    except (InputError, ValueError) as error:
        raise InputError(f"{where}: {one_line(str(error))}") from error
    return made
