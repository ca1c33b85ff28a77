"""Tables of published and measured numbers."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.runs_table import shown
from ssl_vision.experiments.compare.statistics import t_interval
from ssl_vision.experiments.reproduce.paper import (
    Column,
    Paper,
    Table,
    TableCell,
    TableMetric,
    published_number,
)
from ssl_vision.runs.evaluation_file import preferred
from ssl_vision.runs.files import write_text
from ssl_vision.runs.registry import Run
from ssl_vision.tables import as_csv, as_markdown


@dataclass(frozen=True)
class Result:
    """A published number and the measured values."""

    cell: TableCell
    metric: TableMetric
    values: tuple[float, ...]
    """One for each seed that was run, in the paper's unit."""

    @property
    def published(self) -> str:
        """The published number as printed."""
        return self.cell.published[self.metric.name]

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None without values."""
        return fmean(self.values) if self.values else None

    @property
    def half_width(self) -> float | None:
        """Half the width of Student's 95 % interval of the mean; None for fewer than two different values."""
        return t_interval(self.values) if len(set(self.values)) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured mean minus the published number; None without runs."""
        return None if self.mean is None else self.mean - published_number(self.published)

    @property
    def within(self) -> bool | None:
        """True if the published number is in the interval of the mean; None without an interval."""
        if self.difference is None or self.half_width is None:
            return None
        return abs(self.difference) <= self.half_width

    def ours(self) -> str:
        """Mean and half width of the interval, as text; empty without runs."""
        if self.mean is None:
            return ""
        half = "" if self.half_width is None else f" ± {self.half_width:.{self.metric.digits}f}"
        return f"{self.mean:.{self.metric.digits}f}{half}"

    def lines(self, seeds: int) -> tuple[str, str, str, str]:
        """Format published number, measured mean, difference and ``within`` for a cell of a table.

        Args:
            seeds: usual number of seeds; a different number is added in brackets.
        """
        if self.difference is None:
            return self.published, "", "", ""
        count = "" if len(self.values) == seeds else f" ({len(self.values)})"
        within = {True: "yes", False: "no", None: "no interval"}[self.within]
        return self.published, self.ours() + count, f"{self.difference:+.{self.metric.digits}f}", within


def write_table(
    paper: Paper, table: Table, seeds: Sequence[int], folder: Path, *, shown: Collection[TableCell]
) -> str:
    """Write a table of all cells with finished runs, and return the text of some cells.

    Args:
        paper: the paper.
        table: one of its tables.
        seeds: seeds of the runs.
        folder: directory of the runs and of the table.
        shown: cells in the text.

    Raises:
        InputError: an evaluation has no value of a metric, or several.
    """
    results = [
        Result(cell, metric, tuple(_values(cell, metric, seeds, folder)))
        for cell in table.cells
        for metric in (paper.metrics[name] for name in cell.published)
    ]
    if paper.scaled_down:
        format_text, name = smoke_test_markdown, f"smoke_test_table{table.name}"
    else:
        format_text, name = markdown, f"table{table.name}"
        rows = full_rows(paper, table, results)
        write_text(folder / f"{name}.csv", as_csv(rows))
        write_text(folder / f"{name}.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / f"{name}.md", format_text(paper, table, results))
    return format_text(paper, table, [result for result in results if result.cell in shown])


def _values(cell: TableCell, metric: TableMetric, seeds: Sequence[int], folder: Path) -> Iterator[float]:
    """Yield the values of a cell's finished runs in the unit of the paper."""
    for run in (Run(folder / f"{cell.name}-s{seed}") for seed in seeds if cell.name):
        if not run.folder.config_file.exists() or run.status != "finished":
            continue
        measured = [row for row in run.evaluation if row.get("epoch") == run.setting("epochs")]
        measured = [row for row in measured if row.get("protocol") == metric.fields["protocol"]]
        rows = [row for row in measured if all(shown(row.get(k)) == v for k, v in metric.fields.items())]
        rows = preferred(rows, run.config)
        if len(rows) > 1 or (measured and not rows):
            raise InputError(
                f"{run.folder.evaluation_file}: {len(rows)} rows match metric {metric.name} of the paper file"
            )
        yield from ((100 if metric.percent else 1) * float(row["value"]) for row in rows)


def full_rows(paper: Paper, table: Table, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a row for each number with the conditions of its measurement."""
    return [
        {
            "paper": paper.name,
            "table": table.name,
            "row": result.cell.row,
            "group": result.cell.column.group,
            "column": result.cell.column.name,
            "metric": result.metric.name,
            "unit": "percent" if result.metric.percent else "plain",
            "protocol": result.metric.fields["protocol"],
            "layer": result.metric.fields["layer"],
            "published": result.published,
            "ours": result.mean,
            "half_width": result.half_width,
            "seeds": len(result.values),
            "difference": result.difference,
            "within": result.within,
            "reason": result.cell.reason,
        }
        for result in results
    ]


def _by_run(results: Sequence[Result]) -> dict[tuple[str, str], Result]:
    """The results of runs by run and metric, as several cells of a table may share a run."""
    return {(result.cell.name, result.metric.name): result for result in results if result.cell.name}


def smoke_test_markdown(paper: Paper, table: Table, results: Sequence[Result]) -> str:
    """Format a table with a line for each scaled-down run and a column for each metric."""
    unique = _by_run(results)
    lines = [["run", *table.metrics]]
    for run in dict.fromkeys(run for run, _ in unique):
        cells = (unique.get((run, metric)) for metric in table.metrics)
        lines.append([run, *("" if cell is None else cell.ours() for cell in cells)])
    title = (
        f"**Smoke test of table {table.name} of {paper.title}: not results of the paper.** The runs are "
        f"scaled down ({paper.scaled_down}). They show that training and evaluation work, and their values "
        "are not comparable with those of the paper. Empty: not run."
    )
    return f"{title}\n\n{as_markdown(lines, right=len(table.metrics))}\n"


def markdown(paper: Paper, table: Table, results: Sequence[Result]) -> str:
    """Format the table as Markdown in the layout of the paper, one group of columns after the other."""
    parts = [f"**{paper.title}, table {table.name}.** {_sentence(table.title)} {paper.source}."]
    for group, columns in _groups(table, results):
        header = ["", "", group, *(column.name for column in columns)]
        parts.append(as_markdown([header, *_lines(results, table, columns)], right=len(columns)))
    reasons: dict[str, dict[str, None]] = {}
    for cell in (result.cell for result in results if result.cell.reason):
        reasons.setdefault(cell.reason, {})[cell.row] = None
    notes = [
        *table.notes,
        *(f"{', '.join(rows)}: {reason}" for reason, rows in reasons.items()),
        *paper.notes,
    ]
    return "\n\n".join([*parts, "\n".join([_legend(results), *(f"- {_sentence(n)}" for n in notes)])]) + "\n"


def _groups(table: Table, results: Sequence[Result]) -> Iterator[tuple[str, list[Column]]]:
    """Iterate over the groups and their columns with results."""
    shown = {str(result.cell.column) for result in results}
    columns = [column for column in table.columns if str(column) in shown]
    for group, members in groupby(columns, key=lambda column: column.group):
        yield group, list(members)


def _lines(results: Sequence[Result], table: Table, columns: Sequence[Column]) -> Iterator[list[str]]:
    """Iterate over up to four lines for each row and metric; lines without content are left out."""
    by_place = {(r.cell.row, r.metric.name, str(r.cell.column)): r for r in results}
    seeds = _seeds(results)
    for row in dict.fromkeys(cell.row for cell in table.cells):
        first = row
        for metric in table.metrics:
            cells = [by_place.get((row, metric, str(column))) for column in columns]
            if not any(cells):
                continue
            four = [cell.lines(seeds) if cell else ("", "", "", "") for cell in cells]
            offered = not all(cell.cell.reason for cell in cells if cell)
            titles = ("published", "ours" if offered else "not offered here", "difference", "within 95 %")
            name = metric
            for number, title in enumerate(titles):
                texts = [each[number] for each in four]
                if number < 2 or any(texts):
                    yield [first, name, title, *texts]
                    first = name = ""


def _seeds(results: Sequence[Result]) -> int:
    """Return the number of seeds of a complete cell."""
    return max((len(result.values) for result in results), default=0)


def _legend(results: Sequence[Result]) -> str:
    seeds = _seeds(results)
    if not seeds:
        return "No run of this table is finished."
    if seeds == 1:
        return "Ours: one seed, without an interval. Empty: not run."
    fewer = ", or of the number in brackets" if any(0 < len(r.values) < seeds for r in results) else ""
    return f"Ours: mean ± half of the 95 % t interval over {seeds} seeds{fewer}. Empty: not run."


def _sentence(text: str) -> str:
    return text if text.endswith((".", ")")) else f"{text}."
