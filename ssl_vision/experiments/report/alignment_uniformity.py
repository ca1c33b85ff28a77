"""Alignment and uniformity over training."""

from typing import Any

from ssl_vision.descriptions import LAYERS
from ssl_vision.experiments.report.markup import COLOURS, DASHES, macros, number
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.runs.registry import Run

_SYMBOLS = {"circle": "●", "square": "■", "diamond": "◆"}


def section(run: Run) -> Section:
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
        marked = [""] * (len(both) - 1) + [f"epoch {epochs[-1]}"]
        traces.append({
            "x": [number(row[keys[0]]) for row in both], "y": [number(row[keys[1]]) for row in both],
            "customdata": epochs, "text": marked, "textposition": "top center", "name": layer, "meta": layer,
            "mode": "lines+markers+text", "cliponaxis": False,
            "line": {"color": COLOURS[place], "dash": DASHES[place], "width": 1.5},
            "marker": {"size": [6] * (len(both) - 1) + [11], "symbol": symbol, "line": {"width": 0},
                       "opacity": 1},
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
    boxes = macros.switches("Layers", marks)
    return Section(
        "plane",
        "Alignment and uniformity",
        lead,
        boxes + macros.chart("Alignment against uniformity", traces, layout, about=about, tall=True),
    )
