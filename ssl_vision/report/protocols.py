"""What ssl-vision evaluate found, under which protocol."""

from dataclasses import fields

from ssl_vision.errors import InputError
from ssl_vision.evaluation.rows import Row, tables
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
        for group in _groups(found):
            about = f"Protocol {group[0].protocol}: {_conditions(group)}"
            parts += [table(head, lines, caption=about) for head, *lines in tables(group)]
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{run.folder.evaluation_file} is not what ssl-vision evaluate writes") from error
    lead = (
        "The trained network on the test split, with the same network before training and the raw pixels as "
        "baselines. The curves above are of validation images, these tables of test images."
    )
    return Section("protocols", "Evaluation", lead, "".join(parts))


def _groups(found: list[Row]) -> list[list[Row]]:
    """The rows of each data set, protocol and trained epoch, with the baselines of that data and protocol."""
    groups = []
    for place in dict.fromkeys(map(_place, found)):
        rows = [row for row in found if _place(row) == place]
        epochs = dict.fromkeys(row.epoch for row in rows if row.features == "trained")
        groups += [
            [row for row in rows if row.features != "trained" or row.epoch == epoch]
            for epoch in sorted(epochs, reverse=True) or [0]
        ]
    return groups


def _place(row: Row) -> tuple[str | None, ...]:
    return row.protocol, row.data, row.root, row.folder, row.settings, row.split


def _conditions(found: list[Row]) -> str:
    """Split, bank, epoch and kNN's k and T, where all rows agree."""
    trained = [row for row in found if row.features == "trained"] or found
    first = trained[0]
    data = " ".join(filter(None, (first.data or "data", first.root, first.folder, first.settings)))
    parts = [f"{data}, {first.split} split, epoch {first.epoch}"]
    votes = {(row.k, row.temperature) for row in found if row.k is not None and row.corruption is None}
    if len(votes) == 1:
        ((k, temperature),) = votes
        parts.append(f"kNN with k = {k}" + (f", T = {temperature:g}" if temperature else ""))
    return "; ".join(parts)
