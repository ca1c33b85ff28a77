"""Time and memory of a run."""

from typing import Any

from markupsafe import Markup

from ssl_vision.progress import duration
from ssl_vision.report.markup import COLOURS, macros, number, numbers
from ssl_vision.report.page import Missing, Section
from ssl_vision.runs.csv_files import rows
from ssl_vision.runs.registry import Run

_PARTS = {"time/train_seconds": "training", "time/val_seconds": "validation"}
_MEMORY = {
    "memory/process_mb": "process memory, peak",
    "memory/device_mb": "device memory, peak",
}


def section(run: Run) -> Section:
    """Draw the seconds of each epoch, and list the total time and peak memory.

    Raises:
        Missing: No epoch was completed.
    """
    timed = rows(run.folder.times_file)
    if not timed:
        raise Missing(f"{run.folder.times_file} has no rows: no epoch was completed")
    facts = []
    for key, name in _PARTS.items():
        seconds = [row[key] for row in timed if key in row]
        if seconds:
            facts.append([f"{name}, total", clock(sum(seconds))])
            facts.append([f"{name}, median", f"{sorted(seconds)[len(seconds) // 2]:.3g} s"])
    for key, name in _MEMORY.items():
        peaks = [row[key] for row in timed if key in row]
        if peaks:
            facts.append([name, f"{max(peaks):,.0f} MiB"])
    content = macros.table(["", "value"], facts, caption="The whole run")
    if len(timed) < 2:
        return Section("costs", "Time and memory", "", content)
    lead = "The first epoch often takes longer, because libraries are loaded and kernels are selected."
    return Section("costs", "Time and memory", lead, _chart(timed) + content)


def _chart(timed: list[dict[str, float]]) -> Markup:
    marks: dict[str, tuple[str, str]] = {}
    traces: list[dict[str, Any]] = []
    for place, (key, name) in enumerate(_PARTS.items()):
        epochs = [row for row in timed if key in row]
        if epochs:
            marks[name] = ("■", COLOURS[place])
            traces.append({
                "type": "bar", "name": name, "meta": name,
                "x": [int(row.get("epoch", 0)) + 1 for row in epochs],
                "y": numbers([row[key] for row in epochs], 4), "marker": {"color": COLOURS[place]},
                "hovertemplate": "%{y:.3g} s",
            })  # fmt: skip
    layout = {
        "barmode": "stack", "hovermode": "x unified", "xaxis": {"title": {"text": "epoch"}},
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
    }  # fmt: skip
    longest = number(max(row.get("time/train_seconds", 0) for row in timed), 3)
    about = f"Seconds of each epoch; training took at most {longest} in an epoch"
    chart = macros.chart("Seconds of each epoch", traces, layout, about=about)
    return macros.switches("Bars", marks) + chart


def clock(seconds: float) -> str:
    """Format a duration with its unit: seconds below 100, otherwise minutes and seconds, or hours."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{duration(seconds)} {'h' if round(seconds) >= 3600 else 'min'}"
