"""Result rows: what was measured, under which protocol, as JSON and as a table to read."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

COLUMNS = {
    "knn_top1": ("kNN %", 100),
    "linear_top1": ("linear %", 100),
    "alignment": ("alignment", 1),
    "uniformity": ("uniformity", 1),
    "tolerance": ("tolerance", 1),
    "same_cosine": ("same cos", 1),
    "different_cosine": ("diff cos", 1),
    "sensitivity": ("sensitivity", 1),
    "rankme": ("RankMe", 1),
}


@dataclass(frozen=True)
class Row:
    """One number with everything that says how it came about."""

    features: str
    """``trained``, ``untrained`` (the same network before training) or ``pixels``."""
    layer: str
    """``backbone``, ``hidden``, ``projector`` or ``raw``."""
    metric: str
    value: float
    """Accuracies as shares of 1."""
    split: str
    """Where it is measured; for kNN and linear the split that is classified."""
    bank: str | None = None
    """The labelled split that kNN looks in or that the linear layer is trained on."""
    k: int | None = None
    temperature: float | None = None
    epoch: int = 0
    seed: int = 0

    def as_dict(self) -> dict[str, str | float | int]:
        """The fields that apply."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def render(rows: Sequence[Row]) -> str:
    """A table with a line for each (features, layer) and a column for each metric that was measured."""
    shown = [metric for metric in COLUMNS if any(row.metric == metric for row in rows)]
    cells = {(row.features, row.layer, row.metric): row.value for row in rows}
    names = list(dict.fromkeys((row.features, row.layer) for row in rows))
    lines = [["", *(COLUMNS[metric][0] for metric in shown)]]
    for features, layer in names:
        values = [cells.get((features, layer, metric)) for metric in shown]
        lines.append([_name(features, layer), *map(_cell, values, shown)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if i else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _name(features: str, layer: str) -> str:
    return "raw pixels" if features == "pixels" else f"{features} {layer}"


def _cell(value: float | None, metric: str) -> str:
    if value is None:
        return ""
    scale = COLUMNS[metric][1]
    return f"{scale * value:.2f}" if scale == 100 else f"{value:.3f}"
