"""The summary at the top of a page: what was trained, on which images, and with which accuracy."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from markupsafe import Markup

from ssl_vision.descriptions import MetricDescription, described, description_of
from ssl_vision.errors import InputError
from ssl_vision.evaluation.results import Row
from ssl_vision.experiments.report.context import ReportContext
from ssl_vision.experiments.report.gallery import queries, tile
from ssl_vision.experiments.report.markup import macros, render
from ssl_vision.experiments.report.page import Missing
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.progress import duration, epochs_text
from ssl_vision.runs.config import DATA_OF_ROOT, below_home
from ssl_vision.runs.evaluation_file import VARIANTS, chosen_fields, rows_of_own_data
from ssl_vision.runs.registry import Run

_VALIDATED, _RANK, _LOSS = map(description_of, ("val/knn_top1", "val/rankme", "train/loss"))

_CONDITIONS = (
    "metric",
    "protocol",
    "data",
    "root",
    "folder",
    "settings",
    "split",
    "lr",
    "weight_decay",
    "options",
    *VARIANTS,
)
"""Fields of a row of evaluation.json in which a baseline equals the trained network.

Hyperparameters that a grid search selects may differ.
"""

BASELINES = {"untrained": "the untrained network", "pixels": "raw pixels"}
"""Baselines in sentences, by their names in evaluation.json."""


def of_one(context: ReportContext, sheet: SpriteSheet) -> Markup:
    """State what was trained and on which images, and show its accuracies beside the baselines."""
    run = context.run
    results = [result for metric in described("headline") if (result := _result(run, metric))]
    return render(
        "summary.html", sentence=_sentence(context), results=results, facts=_facts(run),
        names=list(dict.fromkeys(name for result in results for name in result["values"])),
        places=list(dict.fromkeys(result["place"] for result in results)),
        examples=_examples(context, sheet), path=below_home(str(run.folder.path)),
    )  # fmt: skip


def of_several(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Summarise each run in a row of a table."""
    rows = []
    tested = described("headline")
    results = {metric: [evaluated(run, metric.name) for run in runs] for metric in tested}
    differ = {metric for metric in tested if len({_conditions(row) for row in results[metric] if row}) > 1}
    columns = ["run", "data", "objective", "seed", "epochs", f"validation {_VALIDATED.heading}"]
    columns += [*(f"test {metric.heading}" for metric in tested), "time"]
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        validated = run.last(_VALIDATED.logged_name)
        cells = ["–" if validated is None else _VALIDATED.shown(validated)]
        cells += [_cell(run, results[metric][place], starred=metric in differ) for metric in tested]
        about = [run.setting(key) for key in ("data", "objective", "seed")]
        time = "–" if run.seconds is None else clock(run.seconds)
        rows.append([name, *about, run.epoch, *cells, time])
    caption = "Last validation, and test results of the backbone by ssl-vision evaluate"
    caption += " with half of their 95 % intervals."
    if differ:
        caption += " * Not comparable: the runs were evaluated on different data or with different options."
    return macros.table(columns, rows, caption=caption)


def _cell(run: Run, row: Mapping[str, Any] | None, *, starred: bool) -> str:
    """The value of a row with its interval, and its epoch if that is not the run's last."""
    if row is None:
        return "–"
    epoch = f" (epoch {row['epoch']})" if row.get("epoch", run.epoch) != run.epoch else ""
    return f"{Row.read(row).text}{epoch}{' *' * starred}"


def _conditions(row: Mapping[str, Any], *, place: bool = False) -> tuple[Any, ...]:
    """Conditions of a row, by default without the place of a data set whose images are the same anywhere."""
    fixed = place or row.get("data") in DATA_OF_ROOT
    free = chosen_fields(row["metric"]) | (set() if fixed else {"root", "folder"})
    return tuple(row.get(key) for key in _CONDITIONS if key not in free)


def evaluated(run: Run, metric: str) -> dict[str, Any] | None:
    """`Run.evaluated`, or None if the file is damaged, which the section on test results reports."""
    try:
        return run.evaluated(metric)
    except InputError:
        return None


def _sentence(context: ReportContext) -> str:
    run = context.run
    epochs, planned = run.epoch, run.setting("epochs")
    length = f"{epochs} of {planned} epochs" if planned and planned != epochs else epochs_text(epochs)
    limit = run.setting("trainer.limit_train_batches")
    if isinstance(limit, int) or (limit is not None and limit > 1):  # the command line may read 4 as 4.0
        length += f" of {limit:g} batch{'es' * (limit != 1)}"
    elif limit is not None and limit < 1:
        length += f" of {100 * limit:g} % of the batches"
    method, objective = run.setting("model"), run.setting("objective")
    temperature = run.setting("model.objective.temperature")
    if temperature is not None:
        objective = f"{objective} (temperature {temperature})"
    by = method if run.setting("model.objective") is None else f"{method} with {objective}"
    count = ""
    with suppress(Missing):
        count = f"{len(context.images().split('pretrain')):,} images of "
    batch = run.setting("batch_size")
    if run.processes > 1:
        batch = f"{run.processes} × {batch}"
    encoder = " ".join(filter(None, ["the encoder", run.described("model.encoder")]))
    return (
        f"{by} pretrained {encoder} on {count}{run.setting('data')} for {length}, with "
        f"{batch} images per batch and seed {run.setting('seed')}."
    )


def _result(run: Run, metric: MetricDescription) -> dict[str, Any] | None:
    """An accuracy of the trained backbone with its conditions, the baselines and chance; None without it."""
    row = evaluated(run, metric.name)
    if row is None:
        return None
    rows = [
        other for other in run.evaluation
        if other["features"] not in ("trained", "unknown") and other.get("layer") in ("backbone", "raw")
        and _conditions(other, place=True) == _conditions(row, place=True)
    ]  # fmt: skip
    read = {BASELINES.get(other["features"], other["features"]): Row.read(other) for other in rows}
    shown = {name: (each.value, each.text) for name, each in {"this network": Row.read(row), **read}.items()}
    if "chance" in row:
        shown["chance"] = row["chance"], metric.shown(row["chance"])
    about = [f"protocol {row.get('protocol')}"]
    about += [f"k = {row['k']}"] if "k" in row else []
    about += [f"T = {row['temperature']:g}"] if "temperature" in row else []
    about += [row["options"]] if row.get("options") else []
    about += [f"epoch {row['epoch']}"] if row.get("epoch", run.epoch) != run.epoch else []
    own = rows_of_own_data([row], run.config, epoch=row.get("epoch", 0))
    data = [] if own else [row[name] for name in ("data", "root", "folder", "settings") if row.get(name)]
    return {
        "title": metric.long_title,
        "about": ", ".join(about),
        "place": " ".join([*data, row["split"], "split"]),
        "values": shown,
        "verdict": _verdict(metric, row["value"], {name: each.value for name, each in read.items()}),
    }


def _verdict(metric: MetricDescription, value: float, baselines: dict[str, float]) -> str:
    """State by how many points the trained network is above or below each baseline."""
    parts = []
    for name, other in baselines.items():
        points = round(metric.scale * (value - other), 2)
        side = f"{abs(points):.2f} points {'above' if points > 0 else 'below'}" if points else "equal to"
        parts.append(f"{side} {name}")
    return f"In {metric.long_title}, it is {' and '.join(parts)}." if parts else ""


def _facts(run: Run) -> list[tuple[str, str, str]]:
    """Value, name and explanation of what training itself measured."""
    facts = []
    knn, rank, loss = (run.last(metric.logged_name) for metric in (_VALIDATED, _RANK, _LOSS))
    if knn is not None:
        about = f"last validation, {run.validated_on}, k = {run.setting('metrics.k') or 200}"
        facts.append((_VALIDATED.text(knn), _VALIDATED.long_title, about))
    if rank is not None:
        facts.append((_RANK.text(rank, plain=".1f"), _RANK.title, "last validation, backbone"))
    if loss is not None:
        facts.append((_LOSS.text(loss), _LOSS.title, "last logged step"))
    if run.seconds is not None:
        facts.append((clock(run.seconds), "time", "training and validation"))
    return facts


def _examples(context: ReportContext, sheet: SpriteSheet) -> list[tuple[Markup, str]]:
    """An image of up to ten classes with the name of its class; none without features."""
    with suppress(Missing):
        view = context.feature_view()
        return [
            (tile(view, view.images, row, sheet), view.name(int(view.images.labels[row])))
            for row in queries(view.images)
        ]
    return []


def clock(seconds: float) -> str:
    """Format a duration with its unit: seconds below 100, otherwise minutes and seconds, or hours."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{duration(seconds)} {'h' if round(seconds) >= 3600 else 'min'}"
