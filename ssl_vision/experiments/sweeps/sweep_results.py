"""The results of a sweep: a table as text, Markdown and CSV, and a page with Optuna's charts."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from markupsafe import Markup
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial
from optuna.visualization import plot_contour, plot_intermediate_values, plot_slice

from ssl_vision.descriptions import description_of, layer_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.metric_values import BASELINES
from ssl_vision.experiments.compare.statistics import t_interval
from ssl_vision.experiments.report.page import Section, macros, render
from ssl_vision.experiments.sweeps.study import Record
from ssl_vision.experiments.sweeps.sweep_file import SweepMetric
from ssl_vision.experiments.sweeps.trials import label
from ssl_vision.progress import number
from ssl_vision.runs.evaluation_file import named_rows
from ssl_vision.runs.files import write_text
from ssl_vision.runs.registry import Run
from ssl_vision.tables import as_csv, as_markdown

_ORDER = ("finished", "pruned", "running", "interrupted", "waiting", "failed")
_SEED = "seed_everything"
_COLUMNS = ("name", "state", "epochs", "seconds", "note", "seeds", "setting", "test images")
"""Columns other than parameters and metrics."""

_WIDE = 10.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

Rows = Mapping[str, Mapping[str, Any]]
"""Rows of evaluation.json by names such as ``test/linear_top1``."""

Texts = Sequence[Mapping[str, str]]
"""Texts of a table, as texts by column."""


class SweepResults:
    """The results of a sweep.

    Args:
        folder: directory of the sweep.
        records: its trials.
        metric: metric by which trials are ranked, and never by values of ``ssl-vision evaluate``.
    """

    def __init__(self, folder: Path, records: Sequence[Record], metric: SweepMetric) -> None:
        self.metric = metric

        def place(record: Record) -> tuple[int, float, str]:
            value = 0.0 if record.value is None else -metric.sign * record.value
            return _ORDER.index(record.state), value, record.trial.name

        self.records = sorted(records, key=place)
        """Finished trials first, the best at the top, then the others."""
        self.runs = {record.trial.name: Run(folder / record.trial.name) for record in self.records}
        self.measured = {name: _measured(run) for name, run in self.runs.items()}
        self.names = list(dict.fromkeys(name for rows in self.measured.values() for name in rows))
        self.accuracies = [name for name in self.names if description_of(name).percent]

    @cached_property
    def baselines(self) -> dict[str, Rows]:
        """The rows of the untrained network and of raw pixels, and the accuracy of chance."""
        values: dict[str, dict[str, Mapping[str, Any]]] = {}
        for title, features in BASELINES.items():
            for run in self.runs.values():
                rows = baseline_rows(run, features)
                named = named_rows(rows, run.config, epoch=run.epoch) if rows else {}
                values |= {title: {**named, **values.get(title, {})}} if named else {}
        every = [row for each in self.measured.values() for row in each.items()]
        chance = {name: {"value": row["chance"]} for name, row in every if "chance" in row}
        return {**values, **({"chance": chance} if chance else {})}

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """A line for each trial, in which measured values are rows of evaluation.json."""
        lines = []
        for record in self.records:
            run = self.runs[record.trial.name]
            lines.append({
                "name": record.trial.name,
                **self._columns(record.trial.varied),
                "state": record.state,
                self.metric.name: record.value,
                "epochs": run.epoch or None,
                "seconds": None if run.seconds is None else round(run.seconds, 1),
                **self._values(self.measured[record.trial.name]),
                "note": record.note,
            })  # fmt: skip
        return lines

    def csv(self) -> str:
        """Return the trials and baselines with numbers; accuracies are fractions of 1."""
        baselines = [
            {**dict.fromkeys(self.lines[0]), "name": title, "state": "baseline", **self._values(rows)}
            for title, rows in (self.baselines.items() if self.lines else ())
        ]
        return as_csv([
            {key: value["value"] if key in self.names and value else value for key, value in line.items()}
            for line in (*self.lines, *baselines)
        ])  # fmt: skip

    def table(self) -> Texts:
        """Return the table of the trials and baselines."""
        hidden = {*self.names} - {*self.accuracies}
        if self.records and self.records[0].trial.varied:
            hidden.add("name")
        return self._with_baselines([
            {key: self._text(key, value) for key, value in line.items() if key not in hidden}
            for line in self.lines
        ])  # fmt: skip

    def seeds_table(self) -> Texts:
        """Return the mean of each setting with several seeds, with its 95 % interval, and the baselines."""
        groups: dict[str, list[dict[str, Any]]] = {}
        varied = self.records[0].trial.varied if self.records else {}
        setting = [key for key in self._columns(varied) if key != _SEED]
        for line in self.lines:
            if line["state"] == "finished" and _SEED in line:
                groups.setdefault(str([line[key] for key in setting]), []).append(line)
        several = [group for group in groups.values() if len(group) > 1]
        several.sort(key=lambda group: -self.metric.sign * fmean(line[self.metric.name] for line in group))
        return self._with_baselines([
            ({key: label(group[0][key]) for key in setting} or {"setting": "all"})
            | {"seeds": str(len(group))}
            | {key: _mean(key, [line[key] for line in group]) for key in (self.metric.name, *self.accuracies)}
            | {"test images": group[0].get("test images", "")}
            for group in several
        ])  # fmt: skip

    def _columns(self, varied: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by their columns; one with the name of another column becomes ``--name``."""
        taken = (*_COLUMNS, self.metric.name)
        return {f"--{name}" if name in taken else name: value for name, value in varied.items()}

    def _values(self, rows: Rows) -> dict[str, Any]:
        values = {name: rows.get(name) for name in self.names}
        return {**values, **({"test images": _images(rows)} if self.names else {})}

    def _text(self, key: str, value: Any) -> str:
        """Return a cell of a table; an accuracy has half the width of its interval."""
        if value is None:
            return ""
        if key in self.names:
            half = f" ± {_shown(key, (value['high'] - value['low']) / 2)}" if "low" in value else ""
            return f"{_shown(key, value['value'])}{half}"
        if key == self.metric.name:
            return _shown(key, value)
        return number(value) if key in ("epochs", "seconds") else label(value)

    def _with_baselines(self, lines: list[dict[str, str]]) -> Texts:
        """Add the baselines and the units, and leave out the columns without values."""
        for title, rows in self.baselines.items() if lines else ():
            texts = {key: self._text(key, value) for key, value in self._values(rows).items()}
            shown = {key: texts.get(key, "") for key in lines[0]}
            lines.append({**shown, next(iter(shown)): title})
        used = [name for name in lines[0] if any(line[name] for line in lines)] if lines else []
        return [{titled(name): line[name] for name in used} for line in lines]

    def notes(self) -> list[str]:
        """Return sentences about the table."""
        order = [record for record in self.records if record.state == "finished"]
        if not order:
            return []
        best, name = order[0], self.metric.name
        notes = [f"best: {best.trial.name}, {name} {description_of(name).text(best.value or 0.0, '.4g')}"]
        with suppress(InputError):  # other programs may write no config.yaml
            place = self.runs[best.trial.name].validated_on
            notes += [f"{name} was measured in validation, on {place}."] if name.startswith("val/") else []
        if self.accuracies:
            notes.append("After ±: half of the 95 % interval for this number of test images.")
        if self.baselines:
            notes.append("Training has not helped where a trial does not exceed the baselines.")
        return notes


def write_results(folder: Path, records: Sequence[Record], metric: SweepMetric) -> tuple[str, list[str]]:
    """Write ``sweep.csv``, ``sweep.md`` and ``sweep.html``; return the text of the second and the file names.

    The page is one file that works offline, and is written once a trial has a value.
    """
    results = SweepResults(folder, records, metric)
    means = "Means over the seeds, with 95 % intervals by Student's t"
    captions = {"Trials": results.table(), means: results.seeds_table()}
    tables = {
        caption: [list(lines[0]), *(list(line.values()) for line in lines)]
        for caption, lines in captions.items()
        if lines
    }
    parts = [f"{caption}:\n\n{as_markdown(cells)}" for caption, cells in tables.items()]
    text = "\n\n".join([*(parts or ["no trials yet"]), *results.notes()])
    write_text(folder / "sweep.csv", results.csv())
    write_text(folder / "sweep.md", f"{text}\n")
    if not any(record.value is not None for record in records):
        return text, ["sweep.csv", "sweep.md"]
    html = Markup().join(macros.table(head, rows, caption) for caption, (head, *rows) in tables.items())
    sections = [Section("trials", "Results of the trials", html=html), *_charts(results)]
    summary = Markup("<p>{}</p>").format(" ".join(results.notes()))
    write_text(folder / "sweep.html", render(folder.name, summary, sections))
    return text, ["sweep.csv", "sweep.md", "sweep.html"]


def baseline_rows(run: Run, features: str) -> list[dict[str, Any]]:
    """Return the rows of the untrained network or of the pixels, as if they were those of the last epoch."""
    with suppress(InputError):
        rows = [row for row in run.evaluation if row.get("features") == features]
        return [row | {"features": "trained", "epoch": run.epoch} for row in rows]
    return []


def titled(name: str) -> str:
    """The name of a metric with its unit."""
    return f"{name}, %" if description_of(name).percent else name


def _measured(run: Run) -> Rows:
    with suppress(InputError):  # other programs may write no config.yaml
        return named_rows(run.evaluation, run.config, epoch=run.epoch)
    return {}


def _images(rows: Rows) -> str:
    """Number of images on which accuracies were measured; empty if it is unknown."""
    return ", ".join(dict.fromkeys(str(row["test_images"]) for row in rows.values() if "test_images" in row))


def _shown(name: str, value: float) -> str:
    return description_of(name).shown(value, ".4g")


def _mean(name: str, values: Sequence[Any]) -> str:
    """Return mean and interval of values or rows; empty unless every seed has one."""
    if None in values:
        return ""
    numbers = [value["value"] if isinstance(value, Mapping) else value for value in values]
    return f"{_shown(name, fmean(numbers))} ± {description_of(name).shown(t_interval(numbers), '.2g')}"


def _charts(results: SweepResults) -> Iterator[Section]:
    """Yield sections with Optuna's charts of the metric and of the accuracies of the backbone."""
    metric = results.metric.name
    slices, contours, curves = list[Markup](), list[Markup](), list[Markup]()
    for name in [metric, *(name for name in results.accuracies if not layer_of(name)[1])]:
        study, title = _study(results, name), titled(name)
        finished = [trial for trial in study.trials if trial.state is TrialState.COMPLETE]
        if any(len(set(trial.intermediate_values.values())) > 1 for trial in study.trials):
            figure = plot_intermediate_values(study).update_layout(xaxis_title="epoch", yaxis_title=title)
            for trace, trial in zip(
                figure.data, (t for t in study.trials if t.intermediate_values), strict=True
            ):
                trace.name = trial.user_attrs["name"]
            curves.append(_chart(title, figure))
        if len({trial.value for trial in finished}) < 2:
            continue
        varied = [key for key in finished[0].params if len({trial.params[key] for trial in finished}) > 1]
        parameters = [key for key in varied if key != _SEED] or varied
        for parameter in parameters:
            figure = plot_slice(study, [parameter], target_name=title)
            names = [trial.user_attrs["name"] for trial in finished]
            figure.update_traces(text=names, hovertemplate="%{text}: %{y:.4g}<extra></extra>")
            for baseline, rows in results.baselines.items():
                if name in rows:
                    value = description_of(name).scale * rows[name]["value"]
                    figure.add_hline(y=value, line_dash="dash", annotation_text=baseline)
            slices.append(_chart(f"{title} by {parameter}", figure))
        numeric = [key for key in parameters if isinstance(finished[0].params[key], (int, float))]
        if numeric[1:]:
            contours.append(_chart(title, plot_contour(study, numeric[:2], target_name=title)))
    for key, title, charts in (
        ("parameters", "Results by parameter", slices),
        ("contours", "Results by two parameters", contours),
        ("epochs", f"{metric} over the epochs", curves),
    ):
        if charts:
            yield Section(key, title, html=Markup().join(charts))


def _study(results: SweepResults, name: str) -> optuna.Study:
    """Return a study of the trials that have a value of a metric."""
    study, scale, metric = optuna.create_study(), description_of(name).scale, results.metric.name
    values = {record.trial.name: record.value for record in results.records}
    if name != metric:
        values = {trial: rows[name]["value"] for trial, rows in results.measured.items() if name in rows}
    records = [record for record in results.records if values.get(record.trial.name) is not None]
    distributions: dict[str, BaseDistribution] = {
        key: _distribution([record.trial.varied[key] for record in records])
        for key in (records[0].trial.varied if records else ())
    }
    for record in records:
        run = results.runs[record.trial.name]
        curve = run.curve(metric) if name == metric else []
        study.add_trial(create_trial(
            state=TrialState.COMPLETE if record.state == "finished" else TrialState.PRUNED,
            value=scale * (values[record.trial.name] or 0.0),
            params={
                key: value if isinstance(distributions[key], FloatDistribution) else label(value)
                for key, value in record.trial.varied.items()
            },
            distributions=distributions,
            intermediate_values={epoch + 1: scale * value for _, epoch, value in curve},
            user_attrs={"name": record.trial.name},
        ))  # fmt: skip
    return study


def _distribution(values: Sequence[Any]) -> FloatDistribution | CategoricalDistribution:
    if all(type(value) in (int, float) and math.isfinite(value) for value in values):
        low, high = min(values), max(values)
        return FloatDistribution(low, high, log=low > 0 and high >= _WIDE * low)
    return CategoricalDistribution(list(dict.fromkeys(map(label, values))))


def _chart(title: str, figure: Any) -> Markup:
    content = json.loads(figure.to_json())
    layout = {key: each for key, each in content["layout"].items() if key not in ("template", "title")}
    about = f"Chart of {title}; the table above has the values."
    return macros.chart(title, content["data"], layout, about=about, tall=True)
