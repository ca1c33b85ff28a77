"""Rows of results with the conditions of each measurement, as JSON and as tables."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.runs.evaluation_summary import Variant, stated_differences, variant_of

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
    augmentation: str = "none"
    """Augmentation of the images; for a linear layer, of its training images."""
    labels: str | None = None
    """Share of the labelled train images that a linear layer was trained on."""
    lr: float | None = None
    weight_decay: float | None = None
    data: str | None = None
    """Class of the data set."""
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


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of a table, headings first; empty if no metric belongs in a table.

    It has a line for each (features, layer) and a column for each metric. A metric that was measured in
    several ways has a column for each, and the headings state the differences.
    """
    rows = [row for row in rows if "table" in row.description.sections]
    if not rows:
        return []
    about = {row.metric: row.description for row in rows}
    order = sorted(about, key=lambda metric: about[metric].order)
    columns = sorted(dict.fromkeys(map(_column, rows)), key=lambda column: order.index(column[0]))
    cells = {(row.features, row.layer, _column(row)): about[row.metric].shown(row.value) for row in rows}
    names = list(dict.fromkeys((row.features, row.layer) for row in rows))
    lines = [["", *(_heading(about[column[0]].heading, column, columns) for column in columns)]]
    for features, layer in names:
        values = [cells.get((features, layer, column), "") for column in columns]
        lines.append([_name(features, layer), *values])
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
