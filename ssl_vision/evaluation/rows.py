"""Rows of results with the conditions of each measurement, as JSON and as tables."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.runs.evaluation_file import Variant, stated_differences, variant_of

_Column = tuple[str, Variant]


@dataclass(frozen=True)
class Row:
    """A measured number with the conditions of its measurement."""

    features: str
    """``trained``, ``untrained`` (the same network before training), ``pixels`` or a name of ``--beside``."""
    layer: str
    """``backbone``, ``hidden``, ``projector`` or ``raw``."""
    metric: str
    value: float
    """Accuracies as fractions of 1."""
    split: str
    """Split on which it is measured; for kNN and linear, the split that is classified."""
    bank: str | None = None
    """Labelled split in which kNN searches or on which the linear layer is trained."""
    k: int | None = None
    temperature: float | None = None
    epoch: int = 0
    seed: int = 0
    protocol: str | None = None
    distance: str | None = None
    """Distance between neighbours."""
    vote: str | None = None
    """``weighted`` or ``majority``."""
    index: str | None = None
    """``ivf`` for neighbours by approximate search."""
    recall: float | None = None
    """Share of the exact k nearest neighbours of a sample that the approximate search found."""
    augmentation: str = "none"
    """Augmentation of the images; for a linear layer, of its training images."""
    labels: str | None = None
    """Share of the labelled train images that a linear layer was trained on."""
    lr: float | None = None
    weight_decay: float | None = None
    data: str | None = None
    """Class of the data set."""
    corruption: str | None = None
    """Corruption of the classified images; ``none`` for the clean images of the comparison."""
    severity: int | None = None
    """Severity of the corruption from 1 to 5; 0 for ``none``."""
    root: str | None = None
    """Directory of the data set, as in the run's config, or an absolute path with ~ for the home."""
    folder: str | None = None
    """Subfolder of ``root`` whose images are classified, for an ImageFolder."""
    settings: str | None = None
    """Options of the data that affect the images and differ from the run's config."""
    options: str | None = None
    """Further training options of a layer or a network."""
    weights: str | None = None
    """The first digits of a hash of the network."""
    title: str | None = None
    """Title of a metric that is described outside this package, as ``unit`` and ``direction``."""
    unit: str | None = None
    direction: str | None = None

    def as_dict(self) -> dict[str, str | float | int]:
        """The fields that apply."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @property
    def description(self) -> MetricDescription:
        """Description of the metric, from the row itself where the metric's module is not imported."""
        return description_of(self.metric, stored=self.as_dict())


def render(rows: Sequence[Row]) -> str:
    """Format a table with a row for each (features, layer) and a column for each metric.

    A metric that was measured in several ways has a column for each, and the headings state the differences.
    Values under corruptions are in a separate table, as means over the severities.
    """
    return "\n".join(map(aligned, tables(rows)))


def tables(rows: Sequence[Row]) -> list[list[list[str]]]:
    """Return the tables of `render` as cells, headings first, without empty tables."""
    return [lines for lines in (_metrics(rows), _corruptions(rows)) if len(lines) > 1]


def _metrics(rows: Sequence[Row]) -> list[list[str]]:
    rows = [row for row in rows if row.corruption is None and "table" in row.description.sections]
    about = {row.metric: row.description for row in rows}
    order = sorted(about, key=lambda metric: about[metric].order)
    columns = sorted(dict.fromkeys(map(_column, rows)), key=lambda column: order.index(column[0]))
    cells = {
        (row.features, row.layer, _column(row)): about[row.metric].shown(row.value) + _recall(row)
        for row in rows
    }
    names = list(dict.fromkeys((row.features, row.layer) for row in rows))
    lines = [["", *(_heading(about[column[0]].heading, column, columns) for column in columns)]]
    for features, layer in names:
        values = [cells.get((features, layer, column), "") for column in columns]
        lines.append([_name(features, layer), *values])
    return lines


def _corruptions(rows: Sequence[Row]) -> list[list[str]]:
    """Return a row for each accuracy: clean, the mean of each corruption, and the mean of all."""
    rows = [row for row in rows if row.corruption is not None and "table" in row.description.sections]
    columns = list(dict.fromkeys(map(_column, rows)))
    corruptions = list(dict.fromkeys(row.corruption for row in rows if row.severity))
    by_column: dict[tuple[str, _Column], list[Row]] = {}
    for row in rows:
        by_column.setdefault((_name(row.features, row.layer), _column(row)), []).append(row)
    lines = [["top-1 %", "clean", *map(str, corruptions), "mean"]]
    for (name, column), members in by_column.items():
        about = members[0].description
        groups = [
            [row for row in members if row.corruption == corruption] for corruption in ("none", *corruptions)
        ]
        groups.append([row for row in members if row.severity])
        means = [about.shown(fmean(row.value for row in group)) if group else "" for group in groups]
        lines.append([f"{name}, {_heading(about.title, column, columns)}", *means])
    return lines


def aligned(lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Format rows of cells as text, with ``left`` left-aligned and then right-aligned columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _recall(row: Row) -> str:
    return "" if row.recall is None else f" (recall {100 * row.recall:.1f})"


def _column(row: Row) -> _Column:
    """Return the metric and the variant, which distinguish the columns."""
    texts = {name: value if isinstance(value, str) else f"{value:g}" for name, value in row.as_dict().items()}
    return row.metric, variant_of(texts)


def _heading(name: str, column: _Column, columns: Sequence[_Column]) -> str:
    metric, variant = column
    same = [each for other, each in columns if other == metric]
    return " ".join([name, *stated_differences(variant, same)])


def _name(features: str, layer: str) -> str:
    return "raw pixels" if features == "pixels" else f"{features} {layer}"
