"""Charts of what training logged: curves, alignment against uniformity, and the histogram of W."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from ssl_vision.descriptions import LAYERS, described, description_of
from ssl_vision.experiments.report.page import COLOURS, DASHES, Missing, macros, number, numbers
from ssl_vision.runs.files import read_csv
from ssl_vision.runs.registry import Run

SHADES = [[0, "rgba(40,140,210,0)"], [1, "rgba(40,140,210,0.75)"]]
"""From transparent to a blue on which dark and light text are readable."""

_SIGNS = "━╍┅┉╌"
"""Characters that represent the dashes."""

_SYMBOLS = {"circle": "●", "square": "■", "diamond": "◆"}

_MOST = 1500
"""Largest number of points of a line; longer lines are thinned evenly."""

_COLUMNS = 150
_QUANTILES = {"q05": "5 %", "q50": "median", "q95": "95 %"}
_BIN = "weight/"
_TICKS = 11

_SMALLEST = 1e-3
"""The axis shows every bin that has at least this share of the anchors of a column."""

_OPEN = 0.25
"""Drawn width of the first and the last bin, which have no outer end."""


def steps_per_epoch(run: Run) -> float:
    """Estimate the steps of an epoch from the logged rows."""
    every = [*run.history, *run.times]
    trained = (row for row in every if row["step"] >= 0)  # without the validation of initial weights
    return max(((row["step"] + 1) / (row.get("epoch", 0) + 1) for row in trained), default=1.0)


def line(run: Run, metric: str, *, most: int = _MOST) -> tuple[list[float | None], list[float | None]]:
    """Epochs and values of a metric, with accuracies in percent, thinned evenly but with the last."""
    curve, per_epoch = run.curve(metric), steps_per_epoch(run)
    length = min(len(curve), most)
    points = [curve[(i + 1) * len(curve) // length - 1] for i in range(length)]
    scale = description_of(metric).scale
    epochs = numbers([(step + 1) / per_epoch for step, _, _ in points])
    return epochs, [number(scale * value) for _, _, value in points]


def of_layers(run: Run) -> tuple[str, Markup]:
    """Draw a chart for each logged metric, with a line for each layer; list metrics that did not vary.

    Raises:
        Missing: Nothing was logged.
    """
    content = _charts("Layers", {layer: (run, suffix) for layer, suffix in LAYERS.items()}, most=_MOST)
    if not content:
        raise Missing(f"{run.folder.metrics_file} has no numbers yet")
    lead = (
        "In a successful run, the loss falls and the kNN accuracy rises. RankMe near 1 or uniformity near 0 "
        "indicates a collapse. Drag to zoom and double-click to reset."
    )
    return lead, content


def of_runs(runs: Sequence[Run], names: Sequence[str]) -> tuple[str, Markup]:
    """Draw a chart for each metric, with a line for each run; list metrics that did not vary in any run.

    Raises:
        Missing: Nothing was logged.
    """
    lines = {name: (run, "") for run, name in zip(runs, names, strict=True)}
    content = _charts("Runs", lines, most=_MOST // 3)
    if not content:
        raise Missing("none of the runs has logged numbers")
    return "All runs are on the same axes. Clear the checkbox of a run to hide it.", content


def _charts(legend: str, lines: Mapping[str, tuple[Run, str]], *, most: int) -> Markup:
    """Draw the metrics of runs and layers, given by their suffixes, as lines with these names."""
    charts, constants, named = Markup(), list[list[Any]](), False
    for metric in described("curves"):
        traces: list[dict[str, Any]] = []
        for place, (name, (run, suffix)) in enumerate(lines.items()):
            if run.curve(metric.logged_name + suffix):
                x, y = line(run, metric.logged_name + suffix, most=most)
                colour, dash = _style(place)
                traces.append({
                    "x": x, "y": y, "name": name, "meta": name, "hovertemplate": "%{y:.4g}",
                    "mode": "lines+markers" if len(x) < 30 else "lines", "marker": {"size": 5},
                    "line": {"color": COLOURS[colour], "dash": DASHES[dash], "width": 2},
                })  # fmt: skip
        title = metric.chart_title
        if not any(len(set(trace["y"])) > 1 for trace in traces):
            last = {trace["name"]: f"{trace['y'][-1]:.4g}" for trace in traces if trace["y"][-1] is not None}
            constants += [[title, *(last.get(name, "") for name in lines)]] if traces else []
            continue
        if legend == "Layers" and len(traces) == 1:
            traces[0] |= {"meta": "", "name": title}
        else:
            named = True
        ends = "; ".join(f"{trace['name']} ends at {trace['y'][-1]}" for trace in traces)
        layout = {"hovermode": "x unified", "xaxis": {"title": {"text": "epoch"}, "rangemode": "tozero"}}
        about = f"{title} over the epochs: {ends}"
        charts += macros.chart(title, traces, layout, about=about, note=metric.note)
    styles = map(_style, range(len(lines)))
    marks = {
        name: (_SIGNS[dash], COLOURS[colour]) for name, (colour, dash) in zip(lines, styles, strict=True)
    }
    content = macros.switches(legend, marks) if named else Markup()
    content += Markup('<div class="grid">{}</div>').format(charts) if charts else Markup()
    return content + _constants(["", *lines], constants)


def _style(place: int) -> tuple[int, int]:
    """Indices of the colour and the dash of the n-th line."""
    return place % len(COLOURS), (place + place // len(COLOURS)) % len(DASHES)


def _constants(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> Markup:
    """A table of the metrics that have one value only, without its empty columns."""
    if not lines:
        return Markup()
    filled = [column for column in range(len(head)) if column == 0 or any(line[column] for line in lines)]
    caption = "Constant during training, or measured only once"
    names = [head[i] for i in filled] if len(filled) > 2 else ["", "value"]
    return macros.table(names, [[line[i] for i in filled] for line in lines], caption=caption)


def alignment_uniformity(run: Run) -> tuple[str, Markup]:
    """Draw alignment over uniformity, with a point for each validation (Wang & Isola 2020).

    Raises:
        Missing: There were fewer than two validations, which make no path.
    """
    traces: list[dict[str, Any]] = []
    marks = {}
    for place, (layer, suffix) in enumerate(LAYERS.items()):
        keys = [f"val/{name}{suffix}" for name in ("uniformity", "alignment")]
        both = [row for row in run.history if all(key in row for key in keys)]
        if len(both) < 2:
            continue
        symbol, sign = list(_SYMBOLS.items())[place]
        marks[layer] = (sign, COLOURS[place])
        epochs = [int(row.get("epoch", 0)) + 1 for row in both]
        last = len(both) - 1
        traces.append({
            "x": [number(row[keys[0]]) for row in both], "y": [number(row[keys[1]]) for row in both],
            "customdata": epochs, "text": [""] * last + [f"epoch {epochs[-1]}"], "textposition": "top center",
            "name": layer, "meta": layer, "mode": "lines+markers+text", "cliponaxis": False,
            "line": {"color": COLOURS[place], "dash": DASHES[place], "width": 1.5},
            "marker": {"size": [6] * last + [11], "symbol": symbol, "line": {"width": 0}, "opacity": 1},
            "hovertemplate": "epoch %{customdata}<br>uniformity %{x:.3f}<br>alignment %{y:.3f}",
        })  # fmt: skip
    if not traces:
        raise Missing(
            "this section requires two validations that measured alignment and uniformity. Train longer, or "
            "validate more often (--trainer.check_val_every_n_epoch)"
        )
    layout = {"xaxis": {"title": {"text": "uniformity"}}, "yaxis": {"title": {"text": "alignment"}}}
    about = "; ".join(
        f"{trace['name']} ends at uniformity {trace['x'][-1]}, alignment {trace['y'][-1]}" for trace in traces
    )
    lead = (
        "Lower is better on both axes: the views of an image are close together, and the images spread over "
        "the sphere. Training usually trades one for the other. The large mark is the last validation."
    )
    chart = macros.chart("Alignment against uniformity", traces, layout, about=about, tall=True)
    return lead, macros.switches("Layers", marks) + chart


def weights(run: Run) -> tuple[str, Markup]:
    """Draw the histogram of W at every logged step, and its quantiles.

    The axis is linear in the logit margin d = log(W / (1 − W)), so that weights near 0 and near 1 are
    resolved, and it is labelled with values of W.

    Raises:
        Missing: The objective has no W, or no step was logged.
    """
    quantiles = [
        (label, *line(run, f"train/weight_{key}", most=_COLUMNS))
        for key, label in _QUANTILES.items()
        if run.curve(f"train/weight_{key}")
    ]
    margins = [[None if w is None else number(_logit(w), 4) for w in y] for _, _, y in quantiles]
    finite = [d for line_margins in margins for d in line_margins if d is not None]
    traces, occupied = _histogram(run, finite)
    if not finite and not traces:
        raise Missing(f"{run.setting('objective')} has no gradient weight W, or no step was logged")
    for (label, x, y), d in zip(quantiles, margins, strict=True):
        dash, width = ("solid", 2) if label == "median" else ("dot", 1.5)
        traces.append({
            "x": x, "y": d, "customdata": y, "name": label, "mode": "lines",
            "line": {"color": COLOURS[1], "dash": dash, "width": width},
            "hovertemplate": "%{customdata:.4g}",
        })  # fmt: skip
    low, high = min([*finite, *occupied]), max([*finite, *occupied])
    ticks = _ticks(low, high)
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "epoch"}},
        "yaxis": {
            "title": {"text": "W"}, "range": [low - 0.1, high + 0.1], "tickmode": "array",
            "tickvals": numbers([_logit(w) for w in ticks]), "ticktext": [f"{w:.10g}" for w in ticks],
        },
    }  # fmt: skip
    ends = ", ".join(f"{label} ends at {y[-1]}" for label, _, y in quantiles)
    lead = (
        "W is the share of its full gradient that InfoNCE gives an anchor. At 1, the negatives outweigh the "
        "positive. Near 0, the anchor is solved and contributes nothing. Darker cells contain more anchors. "
        "The axis is linear in log(W / (1 − W)), which resolves both ends."
    )
    note = "Lines: median, 5 % and 95 %"
    return lead, macros.chart("W of the anchors", traces, layout, about=f"W: {ends}", note=note, tall=True)


def _histogram(run: Run, known: Sequence[float]) -> tuple[list[dict[str, Any]], list[float]]:
    """A heat map of the share of anchors by epoch and W, and the ends of the bins that it occupies.

    Long runs are averaged over adjacent steps. The bins are those of the last logged step; their columns
    name their lower ends.

    Args:
        run: the run.
        known: quantiles of the logit margin, which the outer bins contain.
    """
    logged = read_csv(run.folder.weights_file)[1]
    ends = {name: float(name.removeprefix(_BIN)) for name in (logged or [{}])[-1] if name.startswith(_BIN)}
    bins = dict(sorted(ends.items(), key=lambda item: item[1]))
    logged = [row for row in logged if all(name in row for name in bins)]
    if len(bins) < 2:
        return [], []
    lower = list(bins.values())
    inner = [_logit(w) for w in lower[1:]]
    edges = [min([inner[0] - _OPEN, *known]), *inner, max([inner[-1] + _OPEN, *known])]
    parts = np.array_split(np.arange(len(logged)), min(_COLUMNS, len(logged)))
    shares = np.array([[row[name] for name in bins] for row in logged])
    epochs = np.array([row["step"] + 1 for row in logged]) / steps_per_epoch(run)
    means = np.stack([shares[part].mean(axis=0) for part in parts], axis=1)
    occupied = np.flatnonzero((means >= _SMALLEST).any(axis=1))
    if len(occupied) < 2:  # quantiles show more of the distribution than a single bin
        return [], []
    first, last = int(occupied[0]), int(occupied[-1]) + 1
    labels = [f"W from {low:.4g} to {high:.4g}" for low, high in pairwise([*lower, 1.0])][first:last]
    trace = {
        "type": "heatmap", "x": numbers([float(epochs[part].mean()) for part in parts]),
        "y": numbers(edges[first : last + 1]), "name": "share",
        "z": [[number(float(share), 3) for share in row] for row in means[first:last]],
        "customdata": [[label] * len(parts) for label in labels],
        "colorscale": SHADES, "zmin": 0, "zmax": number(float(means.max()), 3),
        "colorbar": {"title": {"text": "share of anchors"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "epoch %{x:.1f}<br>%{customdata}: %{z:.1%} of the anchors<extra></extra>",
    }  # fmt: skip
    return [trace], [edges[first], edges[last]]


def _logit(weight: float) -> float:
    """The logit margin of a weight, limited to that of float32's largest number below 1."""
    weight = min(max(weight, 2**-24), 1 - 2**-24)
    return math.log(weight / (1 - weight))


def _ticks(low: float, high: float) -> list[float]:
    """Values of W to write at an axis from one logit margin to another."""
    tails = [(first, first * 10.0**-place) for place in range(1, 8) for first in (1, 2, 5)]
    every = {(first, w) for first, tail in tails for w in (tail, 1 - tail)}
    shown = sorted((w, first) for first, w in every if low - 0.1 <= _logit(w) <= high + 0.1)
    few = shown if len(shown) <= _TICKS else [(w, first) for w, first in shown if first == 1 or w == 0.5]
    return [w for w, _ in few]
