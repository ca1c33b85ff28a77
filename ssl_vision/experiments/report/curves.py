"""Curves of the logged metrics over the epochs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ssl_vision.descriptions import LAYERS, MetricDescription, described, description_of
from ssl_vision.experiments.report.markup import COLOURS, DASHES, macros, number, numbers
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.runs.registry import Run

SIGNS = "━╍┅┉╌"
"""Characters that represent the dashes."""

_MOST = 1500
"""Largest number of points of a line; longer lines are thinned evenly."""


def steps_per_epoch(run: Run) -> float:
    """Estimate the steps of an epoch from the logged rows."""
    every = [*run.history, *run.times]
    return max(((row["step"] + 1) / (row.get("epoch", 0) + 1) for row in every), default=1.0)


def line(run: Run, metric: str, *, most: int = _MOST) -> tuple[list[float | None], list[float | None]]:
    """Epochs and values of a metric, with accuracies in percent."""
    curve, per_epoch = run.curve(metric), steps_per_epoch(run)
    points = [curve[i] for i in _spaced(len(curve), most)]
    scale = description_of(metric).scale
    epochs = numbers([(step + 1) / per_epoch for step, _, _ in points])
    return epochs, [number(scale * value) for _, _, value in points]


def section(run: Run) -> Section:
    """Draw a chart for each logged metric, with a line for each layer; list metrics that did not vary.

    Raises:
        Missing: Nothing was logged.
    """
    charts: list[Markup] = []
    drawn: dict[str, None] = {}
    constants: list[list[Any]] = []
    for metric in described("curves"):
        traces = []
        for place, (layer, suffix) in enumerate(LAYERS.items()):
            name = metric.logged_name + suffix
            if run.curve(name):
                traces.append(_trace(*line(run, name), layer, place))
        if not any(map(_varies, traces)):
            constants += [[metric.chart_title, *_ends(traces, LAYERS)]] if traces else []
            continue
        if len(traces) > 1:
            drawn |= {trace["name"]: None for trace in traces}
        else:
            for trace in traces:
                trace |= {"meta": "", "name": metric.chart_title}
        charts.append(_chart(metric, traces))
    if not charts and not constants:
        raise Missing(f"{run.folder.metrics_file} has no numbers yet")
    boxes = macros.switches("Layers", marks(list(drawn))) if drawn else Markup()
    lead = (
        "In a successful run, the loss falls and the kNN accuracy rises. RankMe near 1 or uniformity near 0 "
        "indicates a collapse. Drag to zoom and double-click to reset."
    )
    content = boxes + _grid(charts) + _constants(["", *LAYERS], constants) + _table(run)
    return Section("curves", "Training curves", lead, content)


def overlaid(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """Draw a chart for each metric, with a line for each run; list metrics that did not vary in any run.

    Raises:
        Missing: Nothing was logged.
    """
    charts: list[Markup] = []
    constants: list[list[Any]] = []
    for metric in described("curves"):
        traces = [
            _trace(*line(run, metric.logged_name, most=_MOST // 3), name, place)
            for place, (run, name) in enumerate(zip(runs, names, strict=True))
            if run.curve(metric.logged_name)
        ]
        if any(map(_varies, traces)):
            charts.append(_chart(metric, traces))
        elif traces:
            constants.append([metric.chart_title, *_ends(traces, names)])
    if not charts and not constants:
        raise Missing("none of the runs has logged numbers")
    boxes = macros.switches("Runs", marks(names)) if charts else Markup()
    lead = "All runs are on the same axes. Clear the checkbox of a run to hide it."
    content = boxes + _grid(charts) + _constants(["", *names], constants)
    return Section("curves", "Training curves", lead, content)


def marks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Symbol and colour of each line, by its name."""
    places = (style(place) for place in range(len(names)))
    return {name: (SIGNS[dash], COLOURS[colour]) for name, (colour, dash) in zip(names, places, strict=True)}


def style(place: int) -> tuple[int, int]:
    """Indices of the colour and the dash of the n-th line."""
    return place % len(COLOURS), (place + place // len(COLOURS)) % len(DASHES)


def _trace(x: Sequence[Any], y: Sequence[Any], name: str, place: int) -> dict[str, Any]:
    colour, dash = style(place)
    return {
        "x": x, "y": y, "name": name, "meta": name, "mode": "lines+markers" if len(x) < 30 else "lines",
        "line": {"color": COLOURS[colour], "dash": DASHES[dash], "width": 2}, "marker": {"size": 5},
        "hovertemplate": "%{y:.4g}",
    }  # fmt: skip


def _chart(metric: MetricDescription, traces: Sequence[dict[str, Any]]) -> Markup:
    title = metric.chart_title
    ends = "; ".join(f"{trace['name']} ends at {trace['y'][-1]}" for trace in traces)
    layout = {"hovermode": "x unified", "xaxis": {"title": {"text": "epoch"}, "rangemode": "tozero"}}
    return macros.chart(title, traces, layout, about=f"{title} over the epochs: {ends}", note=metric.note)


def _varies(trace: Mapping[str, Any]) -> bool:
    """Return True if a line has at least two different values."""
    return len(set(trace["y"])) > 1


def _ends(traces: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """The last value of each named line, or an empty text without it."""
    ends = {trace["name"]: f"{trace['y'][-1]:.4g}" for trace in traces if trace["y"][-1] is not None}
    return [ends.get(name, "") for name in names]


def _constants(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> Markup:
    """A table of the metrics that have one value only, without its empty columns."""
    if not lines:
        return Markup()
    filled = [column for column in range(len(head)) if column == 0 or any(line[column] for line in lines)]
    caption = "Constant during training, or measured only once"
    names = [head[i] for i in filled] if len(filled) > 2 else ["", "value"]
    return macros.table(names, [[line[i] for i in filled] for line in lines], caption=caption)


def _grid(charts: Sequence[Markup]) -> Markup:
    return Markup('<div class="grid">{}</div>').format(Markup().join(charts))


def _table(run: Run) -> Markup:
    """A table of all validations."""
    metrics = [
        metric
        for metric in described("curves")
        if metric.logged_name.startswith("val/") and run.curve(metric.logged_name)
    ]
    measured = [row for row in run.history if any(metric.logged_name in row for metric in metrics)]
    if not measured:
        return Markup()
    lines = []
    for i in _spaced(len(measured), 100):
        row = measured[i]
        cells = [
            metric.shown(row[metric.logged_name], ".4g") if metric.logged_name in row else ""
            for metric in metrics
        ]
        lines.append([int(row.get("epoch", 0)) + 1, *cells])
    head = ["epoch", *(metric.heading for metric in metrics)]
    table = macros.table(head, lines, caption="Validation metrics of the backbone")
    return macros.details("Validation metrics as a table", table)


def _spaced(count: int, most: int) -> list[int]:
    """Evenly spaced indices of a list, at most so many, including the last."""
    length = min(count, most)
    return [(i + 1) * count // length - 1 for i in range(length)]
