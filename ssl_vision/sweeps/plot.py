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
_LEFT, _RIGHT = {"row": 1, "col": 1}, {"row": 1, "col": 2}
_WIDE = 10.0
"""From this ratio of the largest to the smallest on, an axis is logarithmic."""


def write_plot(folder: Path, records: Sequence[Record], metric: SweepMetric) -> Path | None:
    """Writes ``sweep.html``, which needs nothing besides; None where no trial has a value yet.

    On the left the metric of each trial against the parameter with the most values, a line through the means
    of each setting of the others; on the right its course in every trial.
    """
    order = [record for record in ranked(records, metric) if record.value is not None]
    if not order:
        return None
    figure = needed("plotly.subplots", extra="sweep").make_subplots(rows=1, cols=2, horizontal_spacing=0.08)
    axis = _axis(order)
    for number, (setting, group) in enumerate(_settings(order, axis).items()):
        _add_setting(figure, number, setting, group, axis)
    for record in order:
        run = Run(folder / record.trial.name)
        curve = run.curve(metric.name) if run.log_damage is None else []
        x, y = [epoch + 1 for _, epoch, _ in curve], [value for _, _, value in curve]
        name = record.trial.name
        figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", showlegend=False, **_RIGHT)
    values: list[Any] = [record.trial.varied.get(axis) for record in order] if axis else []
    if _numbers(values) and min(values) > 0 and max(values) / min(values) >= _WIDE:
        figure.update_xaxes(type="log", **_LEFT)
    figure.update_xaxes(title=axis or "trial", **_LEFT)
    figure.update_xaxes(title="epoch", **_RIGHT)
    figure.update_yaxes(title=metric.name, **_LEFT)
    figure.update_layout(title=folder.name, template="plotly_white", legend={"orientation": "h", "y": -0.2})
    page = folder / "sweep.html"
    with atomic_write(page) as partial:
        figure.write_html(partial, include_plotlyjs=True)
    return page


def _axis(records: Sequence[Record]) -> str | None:
    """The parameter to plot against: one of numbers, if there is one, with the most values."""
    names = [name for name in records[0].trial.varied if name != _SEED] or list(records[0].trial.varied)

    def weight(name: str) -> tuple[bool, int]:
        values = [record.trial.varied.get(name) for record in records]
        return _numbers(values), len(set(map(str, values)))

    return max(names, key=weight, default=None)


def _settings(records: Sequence[Record], axis: str | None) -> dict[str, list[Record]]:
    """The trials that differ in the axis and the seed alone, by what the others have."""
    settings: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        others = {name: value for name, value in record.trial.varied.items() if name not in (axis, _SEED)}
        settings[", ".join(f"{name} {short_value(value)}" for name, value in others.items())].append(record)
    return settings


def _add_setting(figure: Any, number: int, setting: str, group: Sequence[Record], axis: str | None) -> None:
    """A point for each trial, and a line through the means of the finished ones."""
    given = [record.trial.varied.get(axis) if axis else record.trial.name for record in group]
    x = [value if _numbers([value]) else short_value(value) for value in given]
    y = [record.value or 0.0 for record in group]
    finished: dict[Any, list[float]] = defaultdict(list)
    for place, value, record in zip(x, y, group, strict=True):
        if record.state == "finished":
            finished[place].append(value)
    places = sorted(finished, key=lambda place: place if _numbers([place]) else str(place))
    means = [fmean(finished[place]) for place in places]
    colour = f"hsl({(number * 137.5) % 360:.0f},60%,45%)"
    line = {"mode": "lines", "line": {"color": colour}, "showlegend": bool(setting)}
    figure.add_scatter(x=places, y=means, name=setting, **line, **_LEFT)
    text = [f"{record.trial.name} ({record.state})" for record in group]
    symbols = ["circle" if record.state == "finished" else "circle-open" for record in group]
    marker = {"color": colour, "symbol": symbols}
    figure.add_scatter(x=x, y=y, text=text, mode="markers", marker=marker, showlegend=False, **_LEFT)


def _numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )
