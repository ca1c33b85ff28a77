"""The results of a sweep as printed, Markdown and CSV tables."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from ssl_vision.compare.metric_selector import BASELINES
from ssl_vision.compare.statistics import t_interval
from ssl_vision.descriptions import description_of
from ssl_vision.errors import InputError
from ssl_vision.progress import number
from ssl_vision.runs.atomic_files import write_text
from ssl_vision.runs.evaluation_file import evaluation_summary
from ssl_vision.runs.registry import Run
from ssl_vision.sweeps.sweep_file import SweepMetric
from ssl_vision.sweeps.sweep_plan import Record
from ssl_vision.sweeps.trials import label
from ssl_vision.tables import as_csv, as_markdown

_ORDER = ("finished", "pruned", "running", "interrupted", "waiting", "failed")
_SEED = "seed_everything"
_EVALUATED = "Evaluated after training; trials are ranked by the metric of the sweep, not by these values:"
_MEASURED_ONCE = "Baselines, measured once; training has not helped where a trial does not exceed them:"
_FIXED_COLUMNS = ("name", "state", "epochs", "seconds", "note", "seeds")
"""Columns other than parameters and metrics."""


def ranked(records: Sequence[Record], metric: SweepMetric) -> list[Record]:
    """Sort trials: finished ones first, the best at the top, then the others."""

    def place(record: Record) -> tuple[int, float, str]:
        value = 0.0 if record.value is None else -metric.sign * record.value
        return _ORDER.index(record.state), value, record.trial.name

    return sorted(records, key=place)


def write_tables(folder: Path, records: Sequence[Record], metric: SweepMetric) -> str:
    """Write ``sweep.csv`` and ``sweep.md``, and return the text of the latter.

    Trials are ranked only by the metric of the sweep. Values of ``ssl-vision evaluate`` are listed in
    addition, those of the baselines in rows of their own.
    """
    order = ranked(records, metric)
    measured = {record.trial.name: test_metrics(folder, record) for record in order}
    names = list(dict.fromkeys(name for values in measured.values() for name in values))
    rows = [
        _row(folder, record, metric) | {name: measured[record.trial.name].get(name) for name in names}
        for record in order
    ]
    untrained = baselines(folder, records)
    csv_rows = rows + [
        dict.fromkeys(rows[0])
        | {"name": title, "state": "baseline"}
        | {name: each.get(name) for name in names}
        for title, each in untrained.items()
    ]
    write_text(folder / "sweep.csv", as_csv(csv_rows))
    accuracies = [name for name in names if description_of(name).percent]
    shown = [
        _cells({key: value for key, value in row.items() if key != "name" and key not in names}, metric)
        for row in rows
    ]
    parts = [_table(shown)] if shown else ["no trials yet"]
    if accuracies:
        lines = [
            _cells(
                {key: row[key] for key in (*columns(record.trial.varied, metric), metric.name, *accuracies)},
                metric,
                accuracies,
            )
            for record, row in zip(order, rows, strict=True)
            if measured[record.trial.name]
        ]
        parts.append(f"{_EVALUATED}\n\n{_table(lines)}")
    if untrained:
        lines = [
            {"baseline": title, **_cells({name: each.get(name) for name in accuracies}, metric, accuracies)}
            for title, each in untrained.items()
        ]
        parts.append(f"{_MEASURED_ONCE}\n\n{_table(lines)}")
    if means := list(_over_seeds(order, metric, measured, accuracies)):
        parts.append("\n".join(["95 % intervals of the mean over seeds, by Student's t:", "", _table(means)]))
    if order and order[0].state == "finished":
        best = order[0].trial.name
        value = description_of(metric.name).text(order[0].value or 0.0, ".4g")
        parts.append(f"best: {best}, {metric.name} {value}")
        if metric.name.startswith("val/"):
            with suppress(InputError):  # other programs may write no config.yaml
                parts.append(
                    f"{metric.name} was measured in validation, on {Run(folder / best).validated_on}."
                )
    text = "\n\n".join(parts)
    write_text(folder / "sweep.md", f"{text}\n")
    return text


def test_metrics(folder: Path, record: Record) -> dict[str, float]:
    """Return the values of ``ssl-vision evaluate`` for a trial, by names such as ``test/linear_top1``."""
    with suppress(InputError):  # other programs may write no config.yaml
        return Run(folder / record.trial.name).test_metrics
    return {}


def baseline_rows(run: Run, features: str) -> list[dict[str, Any]]:
    """Return the rows of the untrained network or of the pixels, as if they were those of the last epoch."""
    with suppress(InputError):
        rows = [row for row in run.evaluation if row.get("features") == features]
        return [row | {"features": "trained", "epoch": run.epoch} for row in rows]
    return []


def baselines(folder: Path, records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return the values of the baselines, each from the first trial that was evaluated with them."""
    values: dict[str, dict[str, float]] = {}
    for (title, features), record in product(BASELINES.items(), records):
        run = Run(folder / record.trial.name)
        if rows := baseline_rows(run, features):
            values[title] = evaluation_summary(rows, run.config, epoch=run.epoch) | values.get(title, {})
    return values


def _row(folder: Path, record: Record, metric: SweepMetric) -> dict[str, Any]:
    run = Run(folder / record.trial.name)
    epochs, seconds = (run.epoch, run.seconds) if run.log_damage is None else (0, None)
    return {
        "name": record.trial.name,
        **columns(record.trial.varied, metric),
        "state": record.state,
        metric.name: record.value,
        "epochs": epochs or None,
        "seconds": None if seconds is None else round(seconds, 1),
        "note": record.note,
    }


def _over_seeds(
    records: Sequence[Record],
    metric: SweepMetric,
    measured: Mapping[str, Mapping[str, float]],
    accuracies: Sequence[str],
) -> Iterator[dict[str, str]]:
    """Iterate over mean and interval of each setting with more than one seed, best first."""
    settings: dict[str, Mapping[str, Any]] = {}
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        varied = record.trial.varied
        if record.state == "finished" and record.value is not None and _SEED in varied:
            setting = {name: value for name, value in varied.items() if name != _SEED}
            settings[str(setting)] = columns(setting, metric)
            groups[str(setting)].append(record)
    values: dict[str, dict[str, list[float | None]]] = {
        key: {metric.name: [record.value for record in group]}
        | {name: [measured[record.trial.name].get(name) for record in group] for name in accuracies}
        for key, group in groups.items()
        if len(group) > 1
    }
    for key in sorted(
        values, key=lambda key: -metric.sign * fmean(each.value or 0.0 for each in groups[key])
    ):
        yield {
            **{name: label(value) for name, value in settings[key].items()},
            "seeds": str(len(groups[key])),
            **{titled(name): _mean(name, measurements) for name, measurements in values[key].items()},
        }


def _mean(name: str, values: Sequence[float | None]) -> str:
    """Format mean and interval of a metric; empty unless every seed has a value."""
    numbers, about = [value for value in values if value is not None], description_of(name)
    if len(numbers) < len(values):
        return ""
    return f"{about.shown(fmean(numbers), '.4g')} ± {about.shown(t_interval(numbers), '.2g')}"


def titled(name: str) -> str:
    """The name of a metric with its unit."""
    return f"{name}, %" if description_of(name).percent else name


def columns(varied: Mapping[str, Any], metric: SweepMetric) -> dict[str, Any]:
    """Parameters by their columns; one with the name of another column becomes ``--name``."""
    taken = (*_FIXED_COLUMNS, metric.name)
    return {f"--{name}" if name in taken else name: value for name, value in varied.items()}


def _cells(row: Mapping[str, Any], metric: SweepMetric, accuracies: Collection[str] = ()) -> dict[str, str]:
    """Format a row for a table: metrics have their unit in the heading."""
    cells = {}
    for key, value in row.items():
        if key in (metric.name, *accuracies):
            cells[titled(key)] = "" if value is None else description_of(key).shown(value, ".4g")
        else:
            cells[key] = "" if value is None else number(value) if key == "seconds" else label(value)
    return cells


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Format the columns that contain values as Markdown."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    return as_markdown([names, *([row[name] for name in names] for row in rows)])
