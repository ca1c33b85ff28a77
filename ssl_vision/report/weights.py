"""The distribution of the gradient weight W over training."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ssl_vision.callbacks.weights import names
from ssl_vision.report.curves import line, steps_per_epoch
from ssl_vision.report.markup import COLOURS, macros, number, numbers
from ssl_vision.report.page import Missing, Section
from ssl_vision.runs.csv_files import rows
from ssl_vision.runs.registry import Run

SHADES = [[0, "rgba(40,140,210,0)"], [1, "rgba(40,140,210,0.75)"]]
"""From transparent to a blue on which dark and light text are readable."""

_COLUMNS = 150
_QUANTILES = {"q05": "5 %", "q50": "median", "q95": "95 %"}


def section(run: Run) -> Section:
    """Draw the histogram of W at every logged step, and its quantiles.

    Raises:
        Missing: The objective has no W, or no step was logged.
    """
    traces = _histogram(run)
    quantiles = [
        (label, *line(run, f"train/weight_{key}", most=_COLUMNS))
        for key, label in _QUANTILES.items()
        if run.curve(f"train/weight_{key}")
    ]
    if not traces and not quantiles:
        raise Missing(f"{run.setting('objective')} has no gradient weight W, or no step was logged")
    for place, (label, x, y) in enumerate(quantiles):
        dash = "solid" if label == "median" else "dot"
        traces.append({
            "x": x, "y": y, "name": label, "mode": "lines", "hovertemplate": "%{y:.3f}",
            "line": {"color": COLOURS[1], "dash": dash, "width": 2 if place == 1 else 1.5},
        })  # fmt: skip
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "epoch"}},
        "yaxis": {"title": {"text": "W"}, "range": [_lowest(traces), 1]},
    }
    ends = ", ".join(f"{label} ends at {y[-1]}" for label, _, y in quantiles)
    lead = (
        "The weight of each anchor in the gradient. Darker cells contain more anchors. Near 1, an anchor "
        "contributes its full gradient; near 0, it is solved and contributes nothing."
    )
    content = macros.chart(
        "W of the anchors", traces, layout, about=f"W: {ends}", note="lines: median, 5 % and 95 %", tall=True
    )
    return Section("weights", "Gradient weight W", lead, content)


def _histogram(run: Run) -> list[dict[str, Any]]:
    """A heat map of the share of anchors by epoch and W; long runs are averaged over adjacent steps."""
    bins = names()
    logged = [row for row in rows(run.folder.weights_file) if all(name in row for name in bins)]
    if not logged:
        return []
    parts = np.array_split(np.arange(len(logged)), min(_COLUMNS, len(logged)))
    shares = np.array([[row[name] for name in bins] for row in logged])
    epochs = np.array([row["step"] + 1 for row in logged]) / steps_per_epoch(run)
    means = np.stack([shares[part].mean(axis=0) for part in parts], axis=1)
    middle = [(place + 0.5) / len(bins) for place in range(len(bins))]
    return [{
        "type": "heatmap", "x": numbers([float(epochs[part].mean()) for part in parts]), "y": middle,
        "z": [[number(float(share), 3) for share in row] for row in means],
        "colorscale": SHADES, "zmin": 0, "zmax": number(float(means.max()), 3), "name": "share",
        "colorbar": {"title": {"text": "share of anchors"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "epoch %{x:.1f}<br>W around %{y:.3f}: %{z:.1%} of the anchors<extra></extra>",
    }]  # fmt: skip


def _lowest(traces: Sequence[dict[str, Any]]) -> float:
    """Lower limit of the axis of W."""
    lowest = 1.0
    for trace in traces:
        if trace.get("type") == "heatmap":
            occupied = [place for place, row in enumerate(trace["z"]) if any(row)]
            lowest = min(lowest, occupied[0] / len(trace["z"]) if occupied else 1.0)
        else:
            lowest = min([lowest, *(value for value in trace["y"] if value is not None)])
    return max(0.0, math.floor(10 * lowest - 1e-6) / 10)
