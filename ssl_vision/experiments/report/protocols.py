"""The results of ssl-vision evaluate, by protocol."""

from collections.abc import Sequence

from markupsafe import Markup

from ssl_vision.errors import InputError
from ssl_vision.evaluation.results import Row, table
from ssl_vision.experiments.report.markup import macros
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.experiments.report.summary import BASELINES
from ssl_vision.runs.registry import Run

_LAYERS = {
    "backbone": "Features of the encoder, which are used after training.",
    "hidden": "Hidden layer of the projection head.",
    "projector": "Output of the projection head, to which the objective is applied.",
    "raw": "The images themselves, without a network.",
}


def section(run: Run) -> Section:
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
            about = f"Protocol {group[0].protocol}: {_conditions(group)}"
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
    return Section("protocols", "Test results by protocol", lead, Markup().join([*parts, _legend(results)]))


def _legend(results: Sequence[Row]) -> Markup:
    """Explain the rows and the columns of the tables."""
    layers = {row.layer for row in results}
    terms = [(layer, text) for layer, text in _LAYERS.items() if layer in layers]
    metrics = {row.metric: row.description for row in results if "table" in row.description.sections}
    terms += [(each.title, each.note) for each in sorted(metrics.values(), key=lambda each: each.order)]
    entries = [Markup("<dt>{}</dt><dd>{}</dd>").format(*term) for term in terms if term[1]]
    return macros.details(
        "What the rows and columns mean", Markup("<dl>{}</dl>").format(Markup().join(entries))
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


def _conditions(group: list[Row]) -> str:
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
