"""Tables of docs/start_from_weights.md, from the rows that ``benchmarks/adaptation.py collect`` writes."""

from collections.abc import Sequence
from statistics import fmean

from rows import Row, mean_cell, rows_of

from ssl_vision.experiments.compare.statistics import paired, with_images

FILE = "adaptation"
ARMS = ("adapt", "naive", "random")
ACCURACIES = {"knn": "kNN (k = 20) %", "linear": "linear %"}
"""Headings of the accuracies of a row."""

STATISTICS = ("batch", "reestimated", "fixed")
"""Columns of the table of statistics; those of ``batch`` can be re-estimated after training."""


def encoder_title(row: Row) -> str:
    """Return the name of an encoder as a table shows it."""
    if row["encoder_name"]:
        return f"`{row['encoder_name']}`"
    return f"{row['encoder']}-{row['depth']}, width {row['width']}"


def start_of(rows: Sequence[Row], accuracy: str) -> float | None:
    """Return the accuracy of the start, the mean over the runs that have one; None if none has."""
    values = [row[accuracy]["start"] for row in rows if row[accuracy]["start"] is not None]
    return fmean(values) if values else None


def gain_cell(rows: Sequence[Row], accuracy: str, start: float | None) -> str:
    """Return the mean difference from the start in points, with a 95 % interval if there is one.

    Runs that started from these weights have a paired interval over the test images. With several seeds,
    Student's t interval over the seeds extends it, as in ``ssl-vision compare``.

    Args:
        rows: rows that differ in their seed.
        accuracy: ``knn`` or ``linear``.
        start: accuracy of the weights with which runs from random weights are compared.
    """
    cells = [row[accuracy] for row in rows]
    if start is None:
        return ""
    gains = [100 * (cell["value"] - (start if cell["start"] is None else cell["start"])) for cell in cells]
    mean, interval = fmean(gains), ""
    if cells[0]["gain_low"] is not None:
        low, high = 100 * cells[0]["gain_low"], 100 * cells[0]["gain_high"]
        if len(gains) > 1:
            margin = fmean(50 * (cell["gain_high"] - cell["gain_low"]) for cell in cells)
            low, high = with_images(paired(gains, [0.0] * len(gains)), margin).interval or (mean, mean)
        interval = f" ({low:+.1f} to {high:+.1f})"
    return f"{mean:+.1f}{interval}".replace("-", "−")


def continued_pretraining() -> list[list[str]]:
    """Return accuracies by encoder and arm, after those of the start, with their differences from it."""
    groups: dict[str, list[Row]] = {}
    for row in rows_of(FILE):
        if row["arm"] in ARMS:
            groups.setdefault(encoder_title(row), []).append(row)
    titles = [title for accuracy in ACCURACIES.values() for title in (accuracy, "difference")]
    lines = [["encoder", "weights", *titles, "alarm", "seeds"]]
    for encoder, group in groups.items():
        starts = {accuracy: start_of(group, accuracy) for accuracy in ACCURACIES}
        cells = [cell for start in starts.values() for cell in (mean_cell([start], "knn_top1"), "")]
        lines.append([encoder, "start", *cells, "", ""])
        for arm in ARMS:
            if rows := [row for row in group if row["arm"] == arm]:
                cells = []
                for accuracy, start in starts.items():
                    cells.append(mean_cell([row[accuracy]["value"] for row in rows], "knn_top1"))
                    cells.append(gain_cell(rows, accuracy, start))
                lines.append([encoder, f"`{arm}`", *cells, alarm_cell(rows), str(len(rows))])
    return lines if groups else []


def alarm_cell(rows: Sequence[Row]) -> str:
    """Return at how many validations the accuracy was below the start; empty for runs without a start."""
    if all(row["knn"]["start"] is None for row in rows):
        return ""
    below, validations = (sum(row[name] for row in rows) for name in ("below_start", "validations"))
    return f"{below} of {validations}"


def reestimated(row: Row, accuracy: str) -> Row:
    """Return a row with the accuracy that re-estimated statistics have, without an interval."""
    value = row[accuracy]["reestimated"]
    return row | {accuracy: row[accuracy] | {"value": value, "gain_low": None}}


def statistics_of_batch_norm() -> list[list[str]]:
    """Return accuracies of the start and differences from it, by encoder, size and BatchNorm statistics."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows_of(FILE):
        if row["arm"] is None:
            groups.setdefault((encoder_title(row), row["size"]), []).append(row)
    titles = [
        title
        for accuracy in ACCURACIES.values()
        for title in (f"start, {accuracy}", *(f"`{name}`" for name in STATISTICS))
    ]
    lines = [["encoder", "pixels", *titles]]
    for (encoder, size), group in groups.items():
        cells = []
        for accuracy in ACCURACIES:
            start = start_of(group, accuracy)
            cells.append(mean_cell([start], "knn_top1"))
            for name in STATISTICS:
                trained = "batch" if name == "reestimated" else name
                rows = [row for row in group if row["encoder_statistics"] == trained]
                if name == "reestimated":
                    rows = [reestimated(row, accuracy) for row in rows if row[accuracy].get("reestimated")]
                cells.append(gain_cell(rows, accuracy, start) if rows else "")
        lines.append([encoder, str(size), *cells])
    return lines if groups else []
