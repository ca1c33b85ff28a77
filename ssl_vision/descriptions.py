"""Metric descriptions: title, unit, direction and place of each number that is logged or evaluated.

A metric is described once, by attributes of its class; see `DescribedMetric`. Tables, curves, reports, the
documentation and ``ssl-vision compare`` read the descriptions and have no lists of metrics of their own.

Commands such as ``ssl-vision runs`` must not import torch. They read the descriptions of this package from
catalogue.json, which ``make catalogue`` writes. The descriptions of other modules are known once the module
is imported.
"""

import json
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Direction = Literal["higher", "lower", "none"]
Section = Literal["table", "curves", "summary", "progress", "headline"]

LAYERS = {"backbone": "", "hidden": "_hidden", "projector": "_projector"}
"""Layers at which representations are measured, and the suffix of their metrics in metrics.csv."""

_LAST = 1000


@dataclass(frozen=True)
class MetricDescription:
    """Everything except the values that tables, charts and comparisons show about a metric.

    Args:
        name: name in a row of evaluation.json, which is logged as ``val/NAME``; with a slash, such as
            ``train/loss``, the logged name itself.
        title: short title for the head of a column, such as "kNN".
        unit: "%" for a share of 1 that is shown as a percentage, otherwise the unit as it is shown, or "".
        direction: "higher" or "lower", whichever is better, or "none" where neither is.
        sections: where the metric is shown. "table" is the table of ``ssl-vision evaluate``, "curves" the
            charts of the report, "summary" the last lines of ``fit``, "progress" its progress bar, and
            "headline" the first lines of the report and its paired comparison.
        needs: what the metric needs besides features: "labels", "views", "superclasses".
        note: how to read the metric, in one line.
        long_title: title in a chart or a sentence, such as "kNN top-1"; by default ``title``.
        order: position among the metrics of a section, lowest first.

    Raises:
        ValueError: The name or the title is empty, or direction or a section is unknown.

    Example:
        >>> MetricDescription("purity", title="purity", unit="%", direction="higher").heading
        'purity %'
    """

    name: str
    title: str
    unit: str = ""
    direction: Direction = "none"
    sections: tuple[Section, ...] = ("table", "curves")
    needs: tuple[str, ...] = ()
    note: str = ""
    long_title: str = ""
    order: int = _LAST

    def __post_init__(self) -> None:
        texts = (self.name, self.title, self.unit)
        if not all(isinstance(text, str) for text in texts) or not self.name or not self.title:
            raise ValueError(f"expected a name, a title and a unit, got {texts}")
        if self.direction not in get_args(Direction):
            raise ValueError(f"direction: expected one of {get_args(Direction)}, got {self.direction!r}")
        if unknown := set(self.sections) - set(get_args(Section)):
            raise ValueError(f"sections: expected some of {get_args(Section)}, got {sorted(unknown)}")
        for name, value in (
            ("sections", tuple(self.sections)),
            ("needs", tuple(self.needs)),
            ("long_title", self.long_title or self.title),
        ):
            object.__setattr__(self, name, value)

    @property
    def percent(self) -> bool:
        """True if values are shares of 1 that are shown as percentages."""
        return self.unit == "%"

    @property
    def scale(self) -> int:
        """Factor from a value to the number that is shown."""
        return 100 if self.percent else 1

    @property
    def heading(self) -> str:
        """Title and unit, for the head of a column."""
        return f"{self.title} {self.unit}".rstrip()

    @property
    def chart_title(self) -> str:
        """Title of a chart."""
        title = self.long_title
        return f"Validation {title}, {self.unit}" if self.percent else title[0].upper() + title[1:]

    @property
    def logged_name(self) -> str:
        """Name in metrics.csv, at the backbone."""
        return self.name if "/" in self.name else f"val/{self.name}"

    def shown(self, value: float, plain: str = ".3f") -> str:
        """A value as text: with two decimals if it is a percentage, otherwise in the format ``plain``."""
        return format(self.scale * value, ".2f" if self.percent else plain)

    def text(self, value: float, plain: str = ".3f") -> str:
        """A value with its unit, for a sentence."""
        return f"{self.shown(value, plain)} {self.unit}".rstrip()


class DescribedMetric:
    """Base class of metrics, which says how a number that is logged or evaluated is shown.

    A subclass with a ``metric_name`` describes the metric of this name: it sets the fields of
    `MetricDescription` as class attributes, except for the direction, which follows from
    ``higher_is_better`` as in torchmetrics. A number that no class of its own computes has a class with
    these attributes only:

        class LearningRate(DescribedMetric):
            metric_name = "train/lr"
            title = "learning rate"

    Raises:
        ValueError: at the definition of a subclass, an attribute is invalid, or another class describes
            the metric differently.
    """

    metric_name = ""
    title = ""
    unit = ""
    higher_is_better: bool | None
    sections: tuple[Section, ...] = ("table", "curves")
    needs: tuple[str, ...] = ()
    note = ""
    long_title = ""
    order = _LAST

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "metric_name" not in vars(cls):
            return
        name = cls.metric_name
        better: Any = getattr(cls, "higher_is_better", None)
        attributes = {key: getattr(cls, key) for key in _ATTRIBUTES}
        description = MetricDescription(name, direction=_DIRECTIONS.get(better, better), **attributes)
        catalogued = {} if cls.__module__.startswith("ssl_vision.") else _built_in()
        known = defined.get(name, catalogued.get(name, description))
        again = _classes.get(name) == (cls.__module__, cls.__qualname__)  # a cell of a notebook
        if known != description and not again:
            raise ValueError(f"metric {name!r} of {cls.__qualname__} is already described, by another class")
        defined[name] = description
        _classes[name] = (cls.__module__, cls.__qualname__)


_ATTRIBUTES = ("title", "unit", "sections", "needs", "note", "long_title", "order")
_DIRECTIONS: dict[bool | None, Direction] = {True: "higher", False: "lower", None: "none"}

defined: dict[str, MetricDescription] = {}
"""Descriptions of the classes that are imported, by name."""

_classes: dict[str, tuple[str, str]] = {}
"""Module and name of the class of each of them."""


def description_of(name: str, *, stored: Mapping[str, Any] | None = None) -> MetricDescription:
    """Return the description of a metric by its name in evaluation.json or metrics.csv.

    Prefixes and layers need no description of their own: "uniformity" describes ``val/uniformity_projector``,
    unless the longer name has a description.

    Args:
        name: name of the metric.
        stored: row of evaluation.json, which holds title, unit and direction of a metric whose module is
            not imported.

    Returns:
        The description; for an unknown metric one that has its name as title and no unit.

    Raises:
        ValueError: The stored description is invalid.

    Example:
        >>> description_of("val/knn_top1").heading
        'kNN %'
        >>> description_of("no/such_metric").title
        'no/such_metric'
    """
    bare = name.rpartition("/")[2]
    for candidate in (text.removesuffix(suffix) for text in (name, bare) for suffix in LAYERS.values()):
        if candidate in _registered():
            return _registered()[candidate]
    fields = {key: stored[key] for key in _STORED if key in stored} if stored else {}
    return MetricDescription(name, **({"title": name} | fields))


def layer_of(name: str) -> tuple[str, str]:
    """Split the name of a metric into its name at the backbone and the layer, empty for the backbone.

    Example:
        >>> layer_of("val/uniformity_projector"), layer_of("test/knn_top1")
        (('val/uniformity', 'projector'), ('test/knn_top1', ''))
    """
    for layer, suffix in LAYERS.items():
        if suffix and name.endswith(suffix):
            return name.removesuffix(suffix), layer
    return name, ""


def described(section: Section | None = None) -> list[MetricDescription]:
    """Return the descriptions of a section, or all of them, in the order in which they are shown.

    Example:
        >>> " ".join(description.title for description in described("progress"))
        'loss kNN'
    """
    every = _registered().values()
    return sorted(
        (each for each in every if section is None or section in each.sections),
        key=lambda each: (each.order, each.name),
    )


def stored_description(name: str) -> dict[str, str]:
    """Return what a row of evaluation.json states about a metric that is described outside this package."""
    description = _registered().get(name)
    if description is None or name in _built_in():
        return {}
    return {key: getattr(description, key) for key in _STORED}


_STORED = ("title", "unit", "direction")


CATALOGUE = Path(__file__).parent / "catalogue.json"
"""What commands without torch know of the package's classes, which `ssl_vision.catalogue` writes."""


@cache
def read_catalogue() -> dict[str, Any]:
    """Return the contents of catalogue.json."""
    contents: dict[str, Any] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return contents


@cache
def _built_in() -> dict[str, MetricDescription]:
    """Return the descriptions of this package by name."""
    return {entry["name"]: MetricDescription(**entry) for entry in read_catalogue()["metrics"]}


def _registered() -> Mapping[str, MetricDescription]:
    """Return all descriptions by name; imported classes take precedence over the catalogue."""
    return ChainMap(defined, _built_in())
