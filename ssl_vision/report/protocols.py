"""What ssl-vision evaluate found, under which protocol."""

from dataclasses import fields

from ssl_vision.errors import InputError
from ssl_vision.evaluation.table import Row, tables
from ssl_vision.report.markup import table
from ssl_vision.report.page import Missing, Section
from ssl_vision.runs.registry import Run


def section(run: Run) -> Section:
    """The tables of evaluation.json, as ``ssl-vision evaluate`` prints them.

    Raises:
        Missing: the run was not evaluated.
        InputError: the file is not what ``ssl-vision evaluate`` writes.
    """
    if not run.evaluation:
        raise Missing(f"the run was not evaluated yet: ssl-vision evaluate {run.folder.path}")
    known = {field.name for field in fields(Row)}
    try:
        found = [Row(**{key: row[key] for key in row if key in known}) for row in run.evaluation]
        parts = []
        for protocol in dict.fromkeys(row.protocol for row in found):
            own = [row for row in found if row.protocol == protocol]
            about = f"Protocol {protocol}: {_conditions(own)}"
            parts += [table(head, lines, caption=about) for head, *lines in tables(own)]
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{run.folder.evaluation_file} is not what ssl-vision evaluate writes") from error
    lead = (
        "The last epoch's network on the test split beside the same network before training and the raw "
        "pixels: what training gained is the difference."
    )
    return Section("protocols", "Evaluation", lead, "".join(parts))


def _conditions(found: list[Row]) -> str:
    """Split, bank, epoch and kNN's k and T, where all rows agree."""
    trained = [row for row in found if row.features == "trained"] or found
    parts = [f"{trained[0].data or 'data'}, {trained[0].split} split, epoch {trained[0].epoch}"]
    votes = {(row.k, row.temperature) for row in found if row.metric == "knn_top1"}
    if len(votes) == 1:
        ((k, temperature),) = votes
        parts.append(f"kNN with k = {k}" + (f", T = {temperature:g}" if temperature else ""))
    return "; ".join(parts)
