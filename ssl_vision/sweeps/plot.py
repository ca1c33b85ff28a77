"""What came of a sweep as a page: the metric against what was varied, and over the epochs."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ssl_vision.optional import needed
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.results_table import ranked
from ssl_vision.sweeps.sweep_file import SweepMetric
from ssl_vision.sweeps.sweep_plan import Record
from ssl_vision.sweeps.trials import short_value

_SEED = "seed_everything"
_WIDE = 10.0
"""From this ratio of the largest to the smallest on, an axis is logarithmic."""


def write_plot(folder: Path, records: Sequence[Record], metric: SweepMetric) -> Path | None:
    """Writes ``sweep.html``, which needs nothing besides; None where no cell has a value yet.

    On the left the metric of each cell against the parameter with the most values, a line through the means
    of each setting of the others; on the right its course in every cell.
    """
    order = [record for record in ranked(records, metric) if record.value is not None]
    if not order:
        return None
    figure = needed("plotly.subplots", extra="sweep").make_subplots(rows=1, cols=2, horizontal_spacing=0.08)
    axis = _axis(order)
    for number, (setting, group) in enumerate(_settings(order, axis).items()):
        _add_setting(figure, number, setting, group, axis)
    for record in order:
        run = Run(folder / record.cell.name)
        curve = run.curve(metric.name) if run.log_damage is None else []
        figure.add_scatter(
            x=[epoch + 1 for _, epoch, _ in curve],
            y=[value for _, _, value in curve],
            name=record.cell.name,
            mode="lines+markers",
            showlegend=False,
            row=1,
            col=2,
        )
    x: list[Any] = [record.cell.varied.get(axis) for record in order] if axis else []
    if _numbers(x) and min(x) > 0 and max(x) / min(x) >= _WIDE:
        figure.update_xaxes(type="log", row=1, col=1)
    figure.update_xaxes(title=axis or "cell", row=1, col=1)
    figure.update_xaxes(title="epoch", row=1, col=2)
    figure.update_yaxes(title=metric.name, row=1, col=1)
    figure.update_layout(title=folder.name, template="plotly_white", legend={"orientation": "h", "y": -0.2})
    page = folder / "sweep.html"
    with atomic_write(page) as partial:
        figure.write_html(partial, include_plotlyjs=True)
    return page


def _axis(records: Sequence[Record]) -> str | None:
    """The parameter to plot against: one of numbers, if there is one, with the most values."""
    names = [name for name in records[0].cell.varied if name != _SEED] or list(records[0].cell.varied)

    def weight(name: str) -> tuple[bool, int]:
        values = [record.cell.varied.get(name) for record in records]
        return _numbers(values), len(set(map(str, values)))

    return max(names, key=weight, default=None)


def _settings(records: Sequence[Record], axis: str | None) -> dict[str, list[Record]]:
    """The cells that differ in the axis and the seed alone, by what the others have."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        others = {name: value for name, value in record.cell.varied.items() if name not in (axis, _SEED)}
        found[", ".join(f"{name} {short_value(value)}" for name, value in others.items())].append(record)
    return found


def _add_setting(figure: Any, number: int, setting: str, group: Sequence[Record], axis: str | None) -> None:
    places: dict[Any, list[float]] = defaultdict(list)
    points: list[tuple[Any, float, Record]] = []
    for record in group:
        value = record.cell.varied.get(axis) if axis else record.cell.name
        place = value if _numbers([value]) else short_value(value)
        points.append((place, record.value or 0.0, record))
        if record.state == "finished":
            places[place].append(record.value or 0.0)
    colour = f"hsl({(number * 137.5) % 360:.0f},60%,45%)"
    line = sorted(places.items(), key=lambda item: item[0] if _numbers([item[0]]) else str(item[0]))
    figure.add_scatter(
        x=[place for place, _ in line],
        y=[fmean(values) for _, values in line],
        name=setting,
        mode="lines",
        line={"color": colour},
        showlegend=bool(setting),
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=[place for place, _, _ in points],
        y=[value for _, value, _ in points],
        text=[f"{record.cell.name} ({record.state})" for _, _, record in points],
        mode="markers",
        marker={
            "color": colour,
            "symbol": ["circle" if record.state == "finished" else "circle-open" for _, _, record in points],
        },
        showlegend=False,
        row=1,
        col=1,
    )


def _numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )
