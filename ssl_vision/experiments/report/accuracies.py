"""Accuracies of a run: the summary at the top of its page, and the tables of ssl-vision evaluate."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from markupsafe import Markup

from ssl_vision.cli.fit_summary import validation_value
from ssl_vision.descriptions import MetricDescription, described, description_of
from ssl_vision.errors import InputError
from ssl_vision.evaluation.results import START, Row, table
from ssl_vision.experiments.report.context import ReportContext
from ssl_vision.experiments.report.page import Missing, macros, render_template
from ssl_vision.progress import duration, epochs_text
from ssl_vision.runs.config import DATA_OF_ROOT, below_home
from ssl_vision.runs.evaluation_file import VARIANTS, chosen_fields, rows_of_own_data
from ssl_vision.runs.registry import Run

VALIDATED, _RANK, _LOSS = map(description_of, ("val/knn_top1", "val/rankme", "train/loss"))

_CONDITIONS = (
    "metric", "protocol", "data", "root", "folder", "settings", "split", "lr", "weight_decay", "options",
    *VARIANTS,
)  # fmt: skip
"""Fields of a row of evaluation.json in which a baseline equals the trained network.

Hyperparameters that a grid search selects may differ.
"""

BASELINES = {START: "the start", "untrained": "the untrained network", "pixels": "raw pixels"}
"""Baselines in sentences, by their names in evaluation.json."""


def summary(context: ReportContext) -> Markup:
    """State what was trained and on which images, and show its accuracies beside the baselines."""
    run = context.run
    results = [result for metric in described("headline") if (result := _result(run, metric))]
    return render_template(
        "summary.html", sentence=_sentence(context), results=results, facts=_facts(run),
        names=list(dict.fromkeys(name for result in results for name in result["values"])),
        places=list(dict.fromkeys(result["place"] for result in results)),
        path=below_home(str(run.folder.path)),
    )  # fmt: skip


def conditions(row: Mapping[str, Any], *, place: bool = False) -> tuple[Any, ...]:
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
    length = f"{epochs} of {planned} epochs" if planned not in (None, -1, epochs) else epochs_text(epochs)
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
        if other["features"] != "trained" and other.get("layer") in ("backbone", "raw")
        and conditions(other, place=True) == conditions(row, place=True)
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
    own, gain = rows_of_own_data([row], run.config, epoch=row.get("epoch", 0)), Row.read(row).gain
    data = [] if own else [row[name] for name in ("data", "root", "folder", "settings") if row.get(name)]
    return {
        "title": metric.long_title,
        "about": ", ".join(about),
        "place": " ".join([*data, row["split"], "split"]),
        "values": shown,
        "gain": gain and f"{metric.long_title} minus that of the start: {gain}: {gain.verdict}.",
        "verdict": _verdict(metric, row["value"], {name: each.value for name, each in read.items()}),
    }


def _verdict(metric: MetricDescription, value: float, baselines: dict[str, float]) -> str:
    """State by how many points the trained network is above or below each baseline except the start."""
    parts = []
    for name, other in baselines.items():
        if name == BASELINES[START]:
            continue
        points = round(metric.scale * (value - other), 2)
        side = f"{abs(points):.2f} points {'above' if points > 0 else 'below'}" if points else "equal to"
        parts.append(f"{side} {name}")
    return f"In {metric.long_title}, it is {' and '.join(parts)}." if parts else ""


def _facts(run: Run) -> list[tuple[str, str, str]]:
    """Value, name and explanation of what training itself measured."""
    facts = []
    knn, rank, loss = (run.last(metric.logged_name) for metric in (VALIDATED, _RANK, _LOSS))
    if knn is not None:
        about = f"last validation, {run.validated_on}, k = {run.validated_k or 200}"
        value = validation_value(VALIDATED.logged_name, knn, run.validated_images)
        facts.append((value, VALIDATED.long_title, about))
    if rank is not None:
        facts.append((_RANK.text(rank, plain=".1f"), _RANK.title, "last validation, backbone"))
    if loss is not None:
        facts.append((_LOSS.text(loss), _LOSS.title, "last logged step"))
    if run.seconds is not None:
        facts.append((clock(run.seconds), "time", "training and validation"))
    return facts


def clock(seconds: float) -> str:
    """Format a duration with its unit: seconds below 100, otherwise minutes and seconds, or hours."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{duration(seconds)} {'h' if round(seconds) >= 3600 else 'min'}"


def protocols(run: Run) -> tuple[str, Markup]:
    """Show the rows of evaluation.json in tables, as ``ssl-vision evaluate`` prints them.

    Raises:
        Missing: The run was not evaluated.
        InputError: The file is not what ``ssl-vision evaluate`` writes.
    """
    if not run.evaluation:
        raise Missing(f"the run has not been evaluated; run ssl-vision evaluate {run.folder.path}")
    try:
        results = list(map(Row.read, run.evaluation))
        parts = []
        for group in _groups(results):
            about = f"Protocol {group[0].protocol}: {_caption(group)}"
            if cells := table(group):
                parts.append(macros.table(cells[0], cells[1:], caption=about))
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{run.folder.evaluation_file} is not what ssl-vision evaluate writes") from error
    baselines = [text for name, text in BASELINES.items() if any(row.features == name for row in results)]
    beside = f", with {' and '.join(baselines)} as baselines" if baselines else ""
    lead = (
        f"These values were measured by ssl-vision evaluate{beside}. The curves above are measured on "
        "validation images."
    )
    return lead, Markup().join([*parts, _legend(results)])


def _legend(results: list[Row]) -> Markup:
    """Explain the columns of the tables."""
    metrics = {row.metric: row.description for row in results if "table" in row.description.sections}
    rows = [(each.title, each.note) for each in sorted(metrics.values(), key=lambda each: each.order)]
    return macros.details(
        "What the columns mean", macros.table(["metric", "meaning"], rows, caption="Metrics")
    )


def _groups(results: list[Row]) -> list[list[Row]]:
    """Group rows by data set, protocol and trained epoch, each with the baselines of the same protocol."""
    groups = []
    for place in dict.fromkeys(map(_place, results)):
        rows = [row for row in results if _place(row) == place]
        epochs = dict.fromkeys(row.epoch for row in rows if row.features == "trained")
        groups += [
            [row for row in rows if row.features != "trained" or row.epoch == epoch]
            for epoch in sorted(epochs, reverse=True) or [0]
        ]
    return groups


def _place(row: Row) -> tuple[str | None, ...]:
    conditions = (row.conditions.get(name) for name in ("root", "folder", "settings"))
    return row.protocol, row.data, *conditions, row.split


def _caption(group: list[Row]) -> str:
    """Data, split and epoch, and k and T of kNN if all rows agree."""
    trained = [row for row in group if row.features == "trained"] or group
    first = trained[0]
    data = " ".join(filter(None, (first.data or "data", *_place(first)[2:5])))
    parts = [f"{data}, {first.split} split, epoch {first.epoch}"]
    votes = {
        (row.conditions["k"], row.conditions.get("temperature")) for row in group if "k" in row.conditions
    }
    if len(votes) == 1:
        ((k, temperature),) = votes
        parts.append(f"kNN with k = {k}" + (f", T = {temperature:g}" if temperature else ""))
    return "; ".join(parts)
