"""The first paragraph of a page, and its few large numbers."""

from collections.abc import Sequence
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.report.costs import clock
from ssl_vision.report.markup import table, text
from ssl_vision.runs.registry import Run

_ACCURACIES = {"knn_top1": "kNN top-1", "linear_top1": "linear top-1"}
_COLUMNS = [
    "run",
    "data",
    "objective",
    "seed",
    "epochs",
    "validation kNN %",
    "test kNN %",
    "test linear %",
    "time",
]


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
    for metric, name in _ACCURACIES.items():
        row = evaluated(run, metric)
        if row:
            votes = f", k = {row['k']}" if "k" in row else ""
            votes += f", T = {row['temperature']:g}" if "temperature" in row else ""
            data = f" of {row['data']}" if row.get("data") != run.setting("data") else ""
            about = f"test{data}, protocol {row.get('protocol')}{votes}"
            facts.append((f"{100 * row['value']:.2f} %", name, about))
    knn, rank = run.last("val/knn_top1"), run.last("val/rankme")
    if knn is not None:
        about = f"last validation, {run.validated_on}, k = {run.setting('metrics.k') or 200}"
        facts.append((f"{100 * knn:.2f} %", "kNN top-1", about))
    if rank is not None:
        facts.append((f"{rank:.1f}", "RankMe", "last validation, backbone"))
    loss = run.last("train/loss")
    if loss is not None:
        facts.append((f"{loss:.3f}", "loss", "last logged step"))
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
    for run, name in zip(runs, names, strict=True):
        shares = [run.last("val/knn_top1")]
        shares += [(evaluated(run, metric) or {}).get("value") for metric in _ACCURACIES]
        cells = ["–" if share is None else f"{100 * share:.2f}" for share in shares]
        about = [run.setting(key) for key in ("data", "objective", "seed")]
        time = "–" if run.seconds is None else clock(run.seconds)
        lines.append([name, *about, run.epoch, *cells, time])
    caption = "Last validation, and the test split as ssl-vision evaluate measured it on the backbone"
    return f"<p>{len(runs)} runs beside each other.</p>" + table(_COLUMNS, lines, caption=caption)


def evaluated(run: Run, metric: str) -> dict[str, Any] | None:
    """`Run.evaluated`; None where the file is damaged, too, which the section on evaluation says."""
    try:
        return run.evaluated(metric)
    except InputError:
        return None
