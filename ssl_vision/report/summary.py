"""The first paragraph of a page and its key numbers."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ssl_vision.descriptions import described, description_of
from ssl_vision.errors import InputError
from ssl_vision.report.costs import clock
from ssl_vision.report.markup import macros, render
from ssl_vision.runs.registry import Run

_VALIDATED, _RANK, _LOSS = map(description_of, ("val/knn_top1", "val/rankme", "train/loss"))


def of_one(run: Run) -> Markup:
    """Summarise data, objective, epochs, accuracies with their protocols, and time."""
    epochs, planned = run.epoch, run.setting("epochs")
    length = f"{epochs} of {planned} epochs" if planned and planned != epochs else f"{epochs} epochs"
    network = run.described("model.encoder") or str(run.setting("model"))
    sentences = [
        f"{run.setting('objective')} on {run.setting('data')}: {network}, {length} of batches of "
        f"{run.setting('batch_size')}, seed {run.setting('seed')}."
    ]
    facts = []
    for metric in described("headline"):
        row = evaluated(run, metric.name)
        if row:
            votes = f", k = {row['k']}" if "k" in row else ""
            votes += f", T = {row['temperature']:g}" if "temperature" in row else ""
            data = f" of {row['data']}" if row.get("data") != run.setting("data") else ""
            about = f"test{data}, protocol {row.get('protocol')}{votes}"
            facts.append((metric.text(row["value"]), metric.long_title, about))
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
    parts = [f"{name} {value} ({about})" for value, name, about in facts]
    if parts:
        sentences.append(f"{'; '.join(parts)}.")
    return render("summary.html", sentence=" ".join(sentences), facts=facts)


def of_several(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Summarise each run in a row of a table."""
    rows = []
    tested = described("headline")
    columns = ["run", "data", "objective", "seed", "epochs", f"validation {_VALIDATED.heading}"]
    columns += [*(f"test {metric.heading}" for metric in tested), "time"]
    for run, name in zip(runs, names, strict=True):
        values = [(_VALIDATED, run.last(_VALIDATED.logged_name))]
        values += [(metric, (evaluated(run, metric.name) or {}).get("value")) for metric in tested]
        cells = ["–" if value is None else metric.shown(value) for metric, value in values]
        about = [run.setting(key) for key in ("data", "objective", "seed")]
        time = "–" if run.seconds is None else clock(run.seconds)
        rows.append([name, *about, run.epoch, *cells, time])
    caption = "Last validation, and test results of ssl-vision evaluate on the backbone"
    return Markup("<p>{} runs.</p>").format(len(runs)) + macros.table(columns, rows, caption=caption)


def evaluated(run: Run, metric: str) -> dict[str, Any] | None:
    """`Run.evaluated`, or None if the file is damaged, which the section on evaluation reports."""
    try:
        return run.evaluated(metric)
    except InputError:
        return None
