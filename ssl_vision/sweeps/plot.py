"""Charts of a sweep: its metric and accuracies against the varied parameters."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ssl_vision.descriptions import LAYERS, description_of, layer_of
from ssl_vision.optional import needed
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.results_table import ranked, test_metrics
from ssl_vision.sweeps.sweep_file import SweepMetric
from ssl_vision.sweeps.sweep_plan import Record
from ssl_vision.sweeps.trials import short_value

_SEED = "seed_everything"
_WIDE = 10.0
"""Minimum ratio of the largest to the smallest value for a logarithmic axis."""

_DASHES = dict(zip(LAYERS, ("solid", "dash", "dot"), strict=True))
_HEIGHT, _COLUMNS = 420, 2

Values = Mapping[str, float | None]
"""Values of a metric by the name of the trial."""

Panel = tuple[str, Callable[[Any, dict[str, int]], None]]
"""Title of a chart and a function that draws it, given the figure and the row and column."""


@dataclass(frozen=True)
class Page:
    """Data of the charts of a sweep."""

    records: Sequence[Record]
    """Trials with a value, best first."""
    axis: str | None
    """Parameter of the horizontal axis."""

    @property
    def settings(self) -> dict[str, list[Record]]:
        """Trials that differ only in the axis and the seed, grouped by their other parameters."""
        return _grouped(self.records, (self.axis, _SEED))

    def x(self, record: Record) -> Any:
        """Position of a trial on the axis."""
        value = record.trial.varied.get(self.axis) if self.axis else record.trial.name
        return value if _numbers([value]) else short_value(value)


def write_plot(folder: Path, records: Sequence[Record], metric: SweepMetric) -> Path | None:
    """Write the self-contained ``sweep.html``; return None if no trial has a value yet.

    It contains charts of the metric and of each accuracy of ``ssl-vision evaluate`` against the parameter
    with the most values, with a line through the means of each setting of the other parameters. It also
    contains a chart of the metric over the epochs and, if two parameters have numbers, heat maps.
    """
    order = [record for record in ranked(records, metric) if record.value is not None]
    if not order:
        return None
    page = Page(order, _axis(order))
    values: dict[str, Values] = {metric.name: {record.trial.name: record.value for record in order}}
    measured = {record.trial.name: test_metrics(folder, record) for record in order}
    for name in dict.fromkeys(name for each in measured.values() for name in each):
        if description_of(name).percent:
            values[name] = {trial: each.get(name) for trial, each in measured.items()}
    panels = [_against_axis(page, [metric.name], values, legend=True), _over_epochs(page, folder, metric)]
    accuracies = _by_layer(list(values)[1:])
    panels += [_against_axis(page, names, values, legend=not i) for i, names in enumerate(accuracies)]
    panels += _heat_maps(page, {name: own for name, own in values.items() if not layer_of(name)[1]})
    rows = math.ceil(len(panels) / _COLUMNS)
    figure = needed("plotly.subplots", extra="sweep").make_subplots(
        rows=rows,
        cols=_COLUMNS,
        horizontal_spacing=0.12,
        vertical_spacing=0.25 / rows,
        subplot_titles=[title for title, _ in panels],
    )
    for number, (_, draw) in enumerate(panels):
        draw(figure, {"row": number // _COLUMNS + 1, "col": number % _COLUMNS + 1})
    height = _HEIGHT * rows + 180
    legend = {"orientation": "h", "y": 1 + 40 / height, "yanchor": "bottom"}
    figure.update_layout(title=folder.name, template="plotly_white", legend=legend, height=height)
    path = folder / "sweep.html"
    with atomic_write(path) as partial:
        figure.write_html(partial, include_plotlyjs=True)
    return path


def _against_axis(page: Page, names: Sequence[str], values: Mapping[str, Values], *, legend: bool) -> Panel:
    """Chart of the trials as points and of the means of finished ones as lines, by setting.

    Args:
        page: data of the charts.
        names: a metric at one or several layers, which have different dashes.
        values: values of the metrics.
        legend: show the lines in the legend.
    """

    def draw(figure: Any, place: dict[str, int]) -> None:
        for (number, (setting, group)), name in itertools.product(enumerate(page.settings.items()), names):
            measured = [record for record in group if values[name].get(record.trial.name) is not None]
            y = {record.trial.name: values[name][record.trial.name] for record in measured}
            layer = layer_of(name)[1] if len(names) > 1 else ""
            colour = f"hsl({(number * 137.5) % 360:.0f},60%,45%)"
            finished: dict[Any, list[float]] = defaultdict(list)
            for record in measured:
                if record.state == "finished":
                    finished[page.x(record)].append(y[record.trial.name] or 0.0)
            places = sorted(finished, key=lambda x: x if _numbers([x]) else str(x))
            label = " ".join(filter(None, [setting, layer or ("backbone" if len(names) > 1 else "")]))
            line = {"color": colour, "dash": _DASHES[layer or "backbone"]}
            figure.add_scatter(
                x=places, y=[fmean(finished[x]) for x in places], name=label, mode="lines", line=line,
                legendgroup=label, showlegend=legend and bool(label), **place,
            )  # fmt: skip
            figure.add_scatter(
                x=[page.x(record) for record in measured],
                y=[y[record.trial.name] for record in measured],
                text=[f"{record.trial.name} ({record.state})" for record in measured],
                mode="markers",
                marker={
                    "color": colour,
                    "symbol": ["circle" if r.state == "finished" else "circle-open" for r in measured],
                },
                legendgroup=label,
                showlegend=False,
                **place,
            )
        numbers: list[Any] = [page.x(record) for record in page.records]
        if page.axis and _numbers(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= _WIDE:
            figure.update_xaxes(type="log", **place)
        figure.update_xaxes(title=page.axis or "trial", **place)
        figure.update_yaxes(title=names[0], **place)

    return names[0], draw


def _over_epochs(page: Page, folder: Path, metric: SweepMetric) -> Panel:
    """Chart of the metric over the epochs of every trial."""

    def draw(figure: Any, place: dict[str, int]) -> None:
        for record in page.records:
            run = Run(folder / record.trial.name)
            curve = run.curve(metric.name) if run.log_damage is None else []
            x, y = [epoch + 1 for _, epoch, _ in curve], [value for _, _, value in curve]
            figure.add_scatter(
                x=x, y=y, name=record.trial.name, mode="lines+markers", showlegend=False, **place
            )
        figure.update_xaxes(title="epoch", **place)

    return f"{metric.name} over the epochs", draw


def _heat_maps(page: Page, values: Mapping[str, Values]) -> list[Panel]:
    """Heat maps of means over the two numeric parameters with the most values."""
    counts = {
        name: page_values for name in page.records[0].trial.varied if (page_values := _levels(page, name))
    }
    if len(counts) < 2:
        return []
    first, second = sorted(counts, key=lambda name: -len(counts[name]))[:2]
    panels: list[Panel] = []
    for (setting, group), (name, own) in itertools.product(
        _grouped(page.records, (first, second, _SEED)).items(), values.items()
    ):
        cells: dict[tuple[Any, Any], list[float]] = defaultdict(list)
        for record in group:
            if record.state == "finished" and (value := own.get(record.trial.name)) is not None:
                cells[record.trial.varied[second], record.trial.varied[first]].append(value)
        x, y = counts[first], counts[second]
        z = [[fmean(cells[row, column]) if (row, column) in cells else None for column in x] for row in y]

        def draw(figure: Any, place: dict[str, int], z: Any = z, x: Any = x, y: Any = y) -> None:
            figure.add_heatmap(
                x=list(map(str, x)), y=list(map(str, y)), z=z, texttemplate="%{z:.4g}", showscale=False,
                colorscale="Viridis", hoverongaps=False, **place,
            )  # fmt: skip
            figure.update_xaxes(title=first, type="category", **place)
            figure.update_yaxes(title=second, type="category", **place)

        panels.append((" ".join(filter(None, [name, setting])), draw))
    return panels


def _levels(page: Page, name: str) -> list[Any]:
    """Sorted values of a numeric parameter; empty for other parameters and for a single value."""
    values = [record.trial.varied.get(name) for record in page.records]
    levels = sorted(set(values)) if name != _SEED and _numbers(values) else []  # type: ignore[type-var]
    return levels if len(levels) > 1 else []


def _by_layer(names: Sequence[str]) -> list[list[str]]:
    """Group metrics that differ only in the layer, the backbone first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[layer_of(name)[0]].append(name)
    return list(groups.values())


def _axis(records: Sequence[Record]) -> str | None:
    """Select the parameter with the most values for the axis, preferably a numeric one."""
    names = [name for name in records[0].trial.varied if name != _SEED] or list(records[0].trial.varied)

    def weight(name: str) -> tuple[bool, int]:
        values = [record.trial.varied.get(name) for record in records]
        return _numbers(values), len(set(map(str, values)))

    return max(names, key=weight, default=None)


def _grouped(records: Sequence[Record], without: Sequence[str | None]) -> dict[str, list[Record]]:
    """Group trials by the values of all parameters except some."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        others = {name: value for name, value in record.trial.varied.items() if name not in without}
        groups[", ".join(f"{name} {short_value(value)}" for name, value in others.items())].append(record)
    return groups


def _numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )
