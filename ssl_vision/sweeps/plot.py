"""A page about a sweep: its trials in a table, and charts of its metric and accuracies."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from ssl_vision.descriptions import LAYERS, description_of, layer_of
from ssl_vision.progress import duration
from ssl_vision.report.curves import marks, style
from ssl_vision.report.markup import COLOURS, DASHES, macros, number, numbers
from ssl_vision.report.page import Section, render
from ssl_vision.report.weights import SHADES
from ssl_vision.runs.atomic_files import write_text
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.results_table import baselines, columns, ranked, test_metrics, titled
from ssl_vision.sweeps.sweep_file import SweepMetric
from ssl_vision.sweeps.sweep_plan import Record
from ssl_vision.sweeps.trials import label

_SEED = "seed_everything"
_WIDE = 10.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

_MOST_TICKS = 8
_MOST_BOXES = 20
"""Largest number of trials with a checkbox each."""

_SYMBOLS = {"circle": "●", "diamond": "◆", "square": "■", "triangle-up": "▲", "cross": "✚"}
"""Symbols of the settings, which change each time the colours repeat."""

_DASHES = dict(zip(LAYERS, ("solid", "dash", "dot"), strict=True))

Values = Mapping[str, float | None]
"""Values of a metric, in percent if it is an accuracy, by the name of the trial."""


@dataclass(frozen=True)
class SweepResults:
    """The results from which the page of a sweep is made.

    Args:
        records: trials with a value, best first.
        metric: metric of the sweep.
        values: values of the sweep's metric and of all accuracies, by the name of the metric.
        baselines: accuracies of the untrained network and of raw pixels, in [0, 1].
    """

    records: Sequence[Record]
    metric: SweepMetric
    values: Mapping[str, Values]
    baselines: Mapping[str, Mapping[str, float]]

    @property
    def axis(self) -> str | None:
        """The parameter to plot against: the one with the most values, numeric if there is one."""
        varied = self.records[0].trial.varied
        names = [name for name in varied if name != _SEED] or list(varied)

        def weight(name: str) -> tuple[bool, int]:
            values = [record.trial.varied.get(name) for record in self.records]
            return _numeric(values), len(set(map(str, values)))

        return max(names, key=weight, default=None)

    @property
    def settings(self) -> dict[str, list[Record]]:
        """Trials that differ only in the axis and the seed, by their other parameters."""
        return _grouped(self.records, (self.axis, _SEED))

    @property
    def accuracies(self) -> list[list[str]]:
        """Names of the evaluated accuracies, one list for each metric with all of its layers."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name in list(self.values)[1:]:
            groups[layer_of(name)[0]].append(name)
        return list(groups.values())

    def x(self, record: Record) -> Any:
        """Position of a trial on the axis."""
        value = record.trial.varied.get(self.axis) if self.axis else record.trial.name
        return value if _numeric([value]) else label(value)


def write_plot(folder: Path, records: Sequence[Record], metric: SweepMetric) -> Path | None:
    """Write ``sweep.html``, one file that works offline; return None if no trial has a value yet.

    The page lists the trials and draws the metric of the sweep and each accuracy of ``ssl-vision evaluate``
    against the parameter with the most values, with a line through the means of each setting of the other
    parameters. Heat maps follow if two parameters are numeric, and the metric over the epochs. Charts whose
    values are all equal are left out.
    """
    order = [record for record in ranked(records, metric) if record.value is not None]
    if not order:
        return None
    scale = description_of(metric.name).scale
    values: dict[str, Values] = {metric.name: {r.trial.name: scale * (r.value or 0.0) for r in order}}
    measured = {record.trial.name: test_metrics(folder, record) for record in order}
    for name in dict.fromkeys(name for each in measured.values() for name in each):
        if description_of(name).percent:
            values[name] = {
                trial: 100 * metrics[name] if name in metrics else None for trial, metrics in measured.items()
            }
    results = SweepResults(order, metric, values, baselines(folder, records))
    axis = results.axis or "trial"
    sections = [
        _trials(folder, ranked(records, metric), results),
        _against_axis("metric", f"{metric.name} by {axis}", [[metric.name]], results),
        _against_axis("accuracies", f"Test accuracy by {axis}", results.accuracies, results),
        _heat_maps(results),
        _over_epochs(folder, results),
    ]
    page = render(folder.name, _summary(folder, records, results), [each for each in sections if each.html])
    path = folder / "sweep.html"
    write_text(path, page)
    return path


def _summary(folder: Path, records: Sequence[Record], results: SweepResults) -> Markup:
    """State what was varied, how many trials have finished, and which one is the best."""
    finished = sum(record.state == "finished" for record in records)
    best, name = results.records[0].trial, results.metric.name
    unit = " %" if description_of(name).percent else ""
    settings = _listed([f"{key} {label(value)}" for key, value in best.varied.items()])
    sentences = [
        f"{finished} of {len(records)} trials have finished. "
        f"They vary {_listed(list(best.varied)) or 'nothing'}.",
        f"The best {name} is {_shown(name, results.values[name][best.name])}{unit}, "
        f"with {settings or best.name}.",
    ]
    if name.startswith("val/") and (folder / best.name / "config.yaml").exists():
        sentences.append(f"{name} is measured in validation, on {Run(folder / best.name).validated_on}.")
    return Markup("<p>{}</p>").format(" ".join(sentences))


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence, such as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _trials(folder: Path, records: Sequence[Record], results: SweepResults) -> Section:
    """A table of all trials, best first, with the accuracies of the backbone."""
    names = [name for name in results.values if not layer_of(name)[1]]
    rows = []
    for record in records:
        run, trial = Run(folder / record.trial.name), record.trial
        varied = {key: label(value) for key, value in columns(trial.varied, results.metric).items()}
        seconds = run.seconds if run.log_damage is None else None
        rows.append({
            **(varied or {"trial": trial.name}),
            **{titled(name): _shown(name, results.values[name].get(trial.name)) for name in names},
            "state": record.state, "time": "" if seconds is None else duration(seconds), "note": record.note,
        })  # fmt: skip
    first = next(iter(rows[0]))
    for title, each in results.baselines.items():
        accuracies = {titled(name): _shown(name, 100 * each[name]) for name in names if name in each}
        rows.append(dict.fromkeys(rows[0], "") | {first: title} | accuracies)
    head = [name for name in rows[0] if any(row[name] for row in rows)]
    table = macros.table(head, [[row[name] for name in head] for row in rows], caption="All trials")
    lead = f"Trials are ranked by {results.metric.name} alone, best first."
    if len(names) > 1:
        lead += " Test accuracies were measured by ssl-vision evaluate after training, on the backbone."
    return Section("trials", "Results of the trials", lead, table)


def _against_axis(key: str, title: str, metrics: Sequence[Sequence[str]], results: SweepResults) -> Section:
    """A chart for each metric, with a point for each trial and a line through the means of each setting.

    Args:
        key: anchor of the section.
        title: heading of the section.
        metrics: metrics, each as a list of its names at several layers.
        results: the results.
    """
    settings = list(results.settings)
    symbols = list(_SYMBOLS)
    charts, constants, layers = list[Markup](), list[str](), dict[str, int]()
    for names in metrics:
        distinct = {value for name in names for value in results.values[name].values() if value is not None}
        if len(distinct) < 2:
            constants += [f"{titled(names[0])} is {value:.4g} in every trial." for value in distinct]
            continue
        traces: list[dict[str, Any]] = []
        for (place, (setting, group)), name in itertools.product(enumerate(results.settings.items()), names):
            layer = layer_of(name)[1] or "backbone"
            layers[layer] = list(LAYERS).index(layer)
            single = settings == [""] and len(names) > 1
            colour = COLOURS[(layers[layer] if single else place) % len(COLOURS)]
            traces += _points(
                results, group, name, meta=layer if single else setting, colour=colour,
                label=" ".join(filter(None, [setting, layer if len(names) > 1 else ""])),
                symbol=symbols[place // len(COLOURS) % len(symbols)],
            )  # fmt: skip
        places = _ascending({results.x(record) for record in results.records})
        for (title, each), dash in zip(results.baselines.items(), DASHES[1:], strict=False):
            if names[0] in each:
                y, line = numbers([100 * each[names[0]]] * len(places)), {"color": "#888", "dash": dash}
                traces.append({"x": places, "y": y, "name": title, "mode": "lines", "line": line})
        layout = {"xaxis": _axis(results), "yaxis": {}}
        about = "; ".join(f"{t['name']}: {t['y']} at {t['x']}" for t in traces if t["mode"] == "lines")
        note = "Solid: backbone. Dashed: hidden layer. Dotted: projector." if len(names) > 1 else ""
        charts.append(macros.chart(titled(names[0]), traces, layout, about=about, note=note, tall=True))
    boxes = {}
    if len(settings) > 1:
        signs = list(_SYMBOLS.values())
        boxes = {
            setting: (signs[place // len(COLOURS) % len(signs)], COLOURS[place % len(COLOURS)])
            for place, setting in enumerate(settings)
        }
    elif len(layers) > 1:
        boxes = {layer: ("●", COLOURS[place]) for layer, place in layers.items()}
    text = Markup("<p>{}</p>").format(" ".join(constants)) if constants else Markup()
    if not charts:
        return Section(key, title, html=text)
    lead = "Each point is a trial, and lines connect the means of finished trials."
    if any(record.state != "finished" for record in results.records):
        lead += " Open points are trials that have not finished."
    switches = macros.switches("Settings" if len(settings) > 1 else "Layers", boxes) if boxes else Markup()
    return Section(key, title, lead, switches + Markup().join(charts) + text)


def _points(
    results: SweepResults,
    group: Sequence[Record],
    name: str,
    *,
    meta: str,
    colour: str,
    label: str,
    symbol: str,
) -> list[dict[str, Any]]:
    """A line through the means of the finished trials of a setting, and a point for each of its trials."""
    measured = [(r, value) for r in group if (value := results.values[name].get(r.trial.name)) is not None]
    finished: dict[Any, list[float]] = defaultdict(list)
    for record, value in measured:
        if record.state == "finished":
            finished[results.x(record)].append(value)
    places = _ascending(finished)
    dash = _DASHES[layer_of(name)[1] or "backbone"]
    line = {
        "x": places, "y": numbers([fmean(finished[x]) for x in places]), "name": label, "meta": meta,
        "mode": "lines", "line": {"color": colour, "dash": dash, "width": 2}, "hoverinfo": "skip",
    }  # fmt: skip
    points = {
        "x": [results.x(record) for record, _ in measured], "y": numbers([value for _, value in measured]),
        "name": label, "meta": meta, "mode": "markers",
        "text": [f"{record.trial.name} ({record.state})" for record, _ in measured],
        "hovertemplate": "%{text}: %{y:.4g}<extra></extra>",
        "marker": {
            "color": colour, "size": 8,
            "symbol": [symbol if r.state == "finished" else f"{symbol}-open" for r, _ in measured],
        },
    }  # fmt: skip
    return [line, points]


def _axis(results: SweepResults) -> dict[str, Any]:
    """The layout of the axis, with the values of the trials as ticks if they are few."""
    axis: dict[str, Any] = {"title": {"text": results.axis or "trial"}}
    values = _ascending({results.x(record) for record in results.records})
    if not _numeric(values):
        return axis | {"type": "category"}
    if values[0] > 0 and values[-1] / values[0] >= _WIDE:
        axis["type"] = "log"
    if len(values) <= _MOST_TICKS:
        axis |= {"tickmode": "array", "tickvals": values, "ticktext": list(map(label, values))}
    return axis


def _ascending(places: Iterable[Any]) -> list[Any]:
    """Positions on the axis in ascending order, numbers before texts."""
    return sorted(places, key=lambda x: (isinstance(x, str), x))


def _over_epochs(folder: Path, results: SweepResults) -> Section:
    """The metric of the sweep over the epochs, with a line for each trial."""
    name = results.metric.name
    scale, traces = description_of(name).scale, list[dict[str, Any]]()
    lines = marks([record.trial.name for record in results.records])
    for place, record in enumerate(results.records):
        run = Run(folder / record.trial.name)
        curve = run.curve(name) if run.log_damage is None else []
        colour, dash = style(place)
        traces.append({
            "x": [epoch + 1 for _, epoch, _ in curve], "y": numbers([scale * value for _, _, value in curve]),
            "name": record.trial.name, "meta": record.trial.name, "mode": "lines+markers",
            "marker": {"size": 5},
            "line": {"color": COLOURS[colour], "dash": DASHES[dash], "width": 2},
            "hovertemplate": "%{fullData.name}<br>epoch %{x}: %{y:.4g}<extra></extra>",
        })  # fmt: skip
    if not any(len(set(trace["y"])) > 1 for trace in traces):
        return Section("epochs", "")
    layout = {
        "xaxis": {"title": {"text": "epoch"}, "rangemode": "tozero"},
        "yaxis": {},
    }
    about = "; ".join(f"{trace['name']} ends at {trace['y'][-1]}" for trace in traces if trace["y"])
    content = macros.chart(titled(name), traces, layout, about=about, tall=True)
    boxes = macros.switches("Trials", lines) if len(lines) <= _MOST_BOXES else Markup()
    return Section("epochs", f"{name} during training", "Each line is a trial.", boxes + content)


def _heat_maps(results: SweepResults) -> Section:
    """Means over the two numeric parameters with the most values, one map for each metric and setting."""
    counts = {
        name: levels for name in results.records[0].trial.varied if (levels := _levels(results.records, name))
    }
    if len(counts) < 2:
        return Section("heat", "")
    first, second = sorted(counts, key=lambda name: -len(counts[name]))[:2]
    charts = []
    for (setting, group), (name, by_trial) in itertools.product(
        _grouped(results.records, (first, second, _SEED)).items(), results.values.items()
    ):
        if layer_of(name)[1]:
            continue
        cells: dict[tuple[Any, Any], list[float]] = defaultdict(list)
        for record in group:
            if record.state == "finished" and (value := by_trial.get(record.trial.name)) is not None:
                cells[record.trial.varied[second], record.trial.varied[first]].append(value)
        x, y = counts[first], counts[second]
        means = {cell: number(fmean(values)) for cell, values in cells.items()}
        if len(set(means.values())) < 2:
            continue
        trace = {
            "type": "heatmap", "x": list(map(str, x)), "y": list(map(str, y)), "hoverongaps": False,
            "z": [[means.get((row, column)) for column in x] for row in y],
            "colorscale": SHADES, "showscale": False, "xgap": 1, "ygap": 1, "texttemplate": "%{z:.4g}",
            "hovertemplate": f"{first} %{{x}}, {second} %{{y}}: %{{z:.4g}}<extra></extra>",
        }  # fmt: skip
        layout = {
            "xaxis": {"title": {"text": first}, "type": "category", "showgrid": False},
            "yaxis": {"title": {"text": second}, "type": "category", "showgrid": False},
        }
        title = " ".join(filter(None, [titled(name), setting]))
        about = "; ".join(
            f"{second} {row}, {first} {column}: {mean}" for (row, column), mean in means.items()
        )
        charts.append(macros.chart(title, [trace], layout, about=about))
    grid = Markup('<div class="grid wide">{}</div>').format(Markup().join(charts)) if charts else Markup()
    lead = "Each cell is the mean over the finished trials with these two values."
    return Section("heat", f"Means by {first} and {second}", lead, grid)


def _shown(name: str, value: float | None) -> str:
    """A value of a metric in a table or a sentence; an empty text without one."""
    return "" if value is None else f"{value:.2f}" if description_of(name).percent else f"{value:.4g}"


def _levels(records: Sequence[Record], name: str) -> list[Any]:
    """The values of a numeric parameter in ascending order; empty if it has one or is not numeric."""
    values = [record.trial.varied.get(name) for record in records]
    levels = sorted(set(values)) if name != _SEED and _numeric(values) else []  # type: ignore[type-var]
    return levels if len(levels) > 1 else []


def _grouped(records: Sequence[Record], without: Sequence[str | None]) -> dict[str, list[Record]]:
    """Trials by the values of all parameters except some."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        others = {name: value for name, value in record.trial.varied.items() if name not in without}
        groups[", ".join(f"{name} {label(value)}" for name, value in others.items())].append(record)
    return groups


def _numeric(values: Sequence[Any]) -> bool:
    return bool(values) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )
