"""The distribution of the gradient weight W over training."""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from ssl_vision.experiments.report.curves import line, steps_per_epoch
from ssl_vision.experiments.report.markup import COLOURS, macros, number, numbers
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.runs.files import read_csv
from ssl_vision.runs.registry import Run

SHADES = [[0, "rgba(40,140,210,0)"], [1, "rgba(40,140,210,0.75)"]]
"""From transparent to a blue on which dark and light text are readable."""

_COLUMNS = 150
_QUANTILES = {"q05": "5 %", "q50": "median", "q95": "95 %"}
_BIN = "weight/"
_TICKS = 11

_SMALLEST = 1e-3
"""The axis shows every bin that has at least this share of the anchors of a column."""

_OPEN = 0.25
"""Drawn width of the first and the last bin, which have no outer end."""


def section(run: Run) -> Section:
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
    heat, occupied = _histogram(run, finite)
    if not finite and not heat:
        raise Missing(f"{run.setting('objective')} has no gradient weight W, or no step was logged")
    traces = [*heat]
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
    content = macros.chart(
        "W of the anchors", traces, layout, about=f"W: {ends}", note="Lines: median, 5 % and 95 %", tall=True
    )
    return Section("weights", "Gradient weight W", lead, content)


def _histogram(run: Run, known: Sequence[float]) -> tuple[list[dict[str, Any]], list[float]]:
    """A heat map of the share of anchors by epoch and W, and the ends of the bins that it occupies.

    Long runs are averaged over adjacent steps. The bins are those of the last logged step; their columns
    name their lower ends.

    Args:
        run: the run.
        known: quantiles of the logit margin, which the outer bins contain.
    """
    logged = read_csv(run.folder.weights_file)[1]
    bins = _bins(logged[-1]) if logged else {}
    logged = [row for row in logged if all(name in row for name in bins)]
    if len(bins) < 2:
        return [], []
    lower = list(bins.values())
    inner = [_logit(w) for w in lower[1:]]
    ends = [min([inner[0] - _OPEN, *known]), *inner, max([inner[-1] + _OPEN, *known])]
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
        "y": numbers(ends[first : last + 1]), "name": "share",
        "z": [[number(float(share), 3) for share in row] for row in means[first:last]],
        "customdata": [[label] * len(parts) for label in labels],
        "colorscale": SHADES, "zmin": 0, "zmax": number(float(means.max()), 3),
        "colorbar": {"title": {"text": "share of anchors"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "epoch %{x:.1f}<br>%{customdata}: %{z:.1%} of the anchors<extra></extra>",
    }  # fmt: skip
    return [trace], [ends[first], ends[last]]


def _bins(columns: Iterable[str]) -> dict[str, float]:
    """Lower end of each bin as a value of W, in ascending order, by the name of its column."""
    ends = {}
    for name in columns:
        with suppress(ValueError):
            if name.startswith(_BIN) and 0 <= (end := float(name.removeprefix(_BIN))) < 1:
                ends[name] = end
    return dict(sorted(ends.items(), key=lambda item: item[1]))


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
