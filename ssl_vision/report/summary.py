"""The first paragraph of a page, and its few large numbers."""

from collections.abc import Sequence
from typing import Any

from ssl_vision.descriptions import described, description_of
from ssl_vision.errors import InputError
from ssl_vision.report.costs import clock
from ssl_vision.report.markup import table, text
from ssl_vision.runs.registry import Run

_VALIDATED, _RANK, _LOSS = map(description_of, ("val/knn_top1", "val/rankme", "train/loss"))


def of_one(run: Run) -> str:
    """Data, objective, epochs, accuracies with their protocol, and seconds."""
    epochs, planned = run.epoch, run.setting("epochs")
    length = f"{epochs} of {planned} epochs" if planned and planned != epochs else f"{epochs} epochs"
    network = run.described("model.encoder") or str(run.setting("model"))
    words = [
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
    named = [f"{name} {value} ({about})" for value, name, about in facts]
    if named:
        words.append(f"{'; '.join(named)}.")
    cards = "".join(
        f"<li><strong>{text(value)}</strong><span>{text(name)}</span><small>{text(about)}</small></li>"
        for value, name, about in facts
    )
    return f'<p>{text(" ".join(words))}</p><ul class="facts" aria-hidden="true">{cards}</ul>'


def of_several(runs: Sequence[Run], names: Sequence[str]) -> str:
    """A row for each run."""
    lines = []
    tested = described("headline")
    columns = ["run", "data", "objective", "seed", "epochs", f"validation {_VALIDATED.heading}"]
    columns += [*(f"test {metric.heading}" for metric in tested), "time"]
    for run, name in zip(runs, names, strict=True):
        values = [(_VALIDATED, run.last(_VALIDATED.logged_name))]
        values += [(metric, (evaluated(run, metric.name) or {}).get("value")) for metric in tested]
        cells = ["–" if value is None else metric.shown(value) for metric, value in values]
        about = [run.setting(key) for key in ("data", "objective", "seed")]
        time = "–" if run.seconds is None else clock(run.seconds)
        lines.append([name, *about, run.epoch, *cells, time])
    caption = "Last validation, and the test split as ssl-vision evaluate measured it on the backbone"
    return f"<p>{len(runs)} runs beside each other.</p>" + table(columns, lines, caption=caption)


def evaluated(run: Run, metric: str) -> dict[str, Any] | None:
    """`Run.evaluated`; None where the file is damaged, too, which the section on evaluation says."""
    try:
        return run.evaluated(metric)
    except InputError:
        return None
