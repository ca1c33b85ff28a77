"""Tables with published and measured numbers as Markdown, LaTeX, CSV and JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from ssl_vision import tables
from ssl_vision.experiments.compare.statistics import t_interval
from ssl_vision.experiments.reproduce.paper import Column, Paper, Table, TableMetric, published_number

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "τ": r"$\tau$", "α": r"$\alpha$", "β": r"$\beta$", "σ": r"$\sigma$",
    "₀": "$_0$", "×": r"$\times$", "→": r"$\to$",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A published number and the measured values."""

    row: str
    column: Column
    metric: TableMetric
    published: str
    """The number as printed."""
    values: tuple[float, ...]
    """One for each seed that was run, in the paper's unit."""
    reason: str = ""
    """Reason why there is nothing to run, if any."""
    run: str = ""
    """Name of the run directories without the seed; empty if there is nothing to run."""

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
        digits = self.metric.digits
        text = f"{self.mean:.{digits}f}"
        return text if self.half_width is None else f"{text} ± {self.half_width:.{digits}f}"

    def lines(self, seeds: int) -> tuple[str, str, str, str]:
        """Format published number, measured mean, difference and ``within`` for a cell of a table.

        Args:
            seeds: usual number of seeds; a different number is added in brackets.
        """
        if self.difference is None:
            return self.published, "", "", ""
        measured = self.ours()
        if len(self.values) != seeds:
            measured += f" ({len(self.values)})"
        within = {True: "yes", False: "no", None: "one seed"}[self.within]
        return self.published, measured, f"{self.difference:+.{self.metric.digits}f}", within


def as_rows(paper: Paper, table: Table, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a row for each number with the conditions of its measurement."""
    return [
        {
            "paper": paper.name,
            "table": table.name,
            "row": result.row,
            "group": result.column.group,
            "column": result.column.name,
            "metric": result.metric.name,
            "unit": result.metric.unit,
            **{key: value for key, value in result.metric.fields.items() if key in ("protocol", "layer")},
            "published": result.published,
            "ours": result.mean,
            "half_width": result.half_width,
            "seeds": len(result.values),
            "difference": result.difference,
            "within": result.within,
            "reason": result.reason,
        }
        for result in results
    ]


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows of `as_rows` as JSON."""
    return json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n"


def as_markdown(paper: Paper, table: Table, results: Sequence[Result]) -> str:
    """Format the table as Markdown in the layout of the paper, one group of columns after the other."""
    parts = [f"**{paper.title}, table {table.name}.** {_sentence(table.title)} {paper.source}."]
    for group, columns in _groups(table, results):
        header = ["", "", group, *(column.name for column in columns)]
        lines = list(_lines(results, table, columns))
        parts.append(tables.as_markdown([header, *lines], right=len(columns)))
    notes = [f"- {_sentence(note)}" for note in (*table.notes, *_reasons(results), *paper.notes)]
    return "\n\n".join([*parts, "\n".join([_legend(results), *notes])]) + "\n"


def as_latex(paper: Paper, table: Table, results: Sequence[Result]) -> str:
    """Format the table for a LaTeX document that loads booktabs, with the groups of columns side by side."""
    groups = list(_groups(table, results))
    columns = [column for _, members in groups for column in members]
    heads, rules, start = [], [], 4
    for group, members in groups:
        heads.append(rf"\multicolumn{{{len(members)}}}{{c}}{{{_escaped(group)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + len(members) - 1}}}")
        start += len(members)
    body = list(_lines(results, table, columns))
    text = [
        r"\begin{tabular}{lll" + "c" * len(columns) + "}",
        r"\toprule",
        " & ".join(["", "", "", *heads]) + r" \\",
        " ".join(rules),
        " & ".join(["", "", "", *(_escaped(column.name) for column in columns)]) + r" \\",
    ]
    for line in body:
        if line[0]:
            text.append(r"\midrule")
        text.append(" & ".join(map(_escaped, line)) + r" \\")
    comments = [f"{paper.title}, table {table.name}. {_sentence(table.title)} {paper.source}."]
    comments += [_legend(results), r"Requires \usepackage{booktabs}."]
    return "\n".join([*(f"% {line}" for line in comments), *text, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _groups(table: Table, results: Sequence[Result]) -> Iterator[tuple[str, list[Column]]]:
    """Iterate over the groups and their columns with results."""
    shown = {str(result.column) for result in results}
    columns = [column for column in table.columns if str(column) in shown]
    for group, members in groupby(columns, key=lambda column: column.group):
        yield group, list(members)


def _lines(results: Sequence[Result], table: Table, columns: Sequence[Column]) -> Iterator[list[str]]:
    """Iterate over up to four lines for each row and metric; lines without content are left out."""
    by_place = {(r.row, r.metric.name, str(r.column)): r for r in results}
    seeds = _seeds(results)
    for row in dict.fromkeys(cell.row for cell in table.cells):
        first = row
        for metric in table.metrics:
            cells = [by_place.get((row, metric, str(column))) for column in columns]
            if not any(cells):
                continue
            four = [cell.lines(seeds) if cell else ("", "", "", "") for cell in cells]
            offered = not all(cell.reason for cell in cells if cell)
            titles = (
                "published",
                "ours" if offered else "not offered here",
                "difference",
                "within 95 %",
            )
            name = metric
            for number, title in enumerate(titles):
                texts = [each[number] for each in four]
                if number < 2 or any(texts):
                    yield [first, name, title, *texts]
                    first = name = ""


def _reasons(results: Sequence[Result]) -> Iterator[str]:
    rows_by_reason: dict[str, dict[str, None]] = {}
    for result in results:
        if result.reason:
            rows_by_reason.setdefault(result.reason, {})[result.row] = None
    for reason, rows in rows_by_reason.items():
        yield f"{', '.join(rows)}: {reason}"


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


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


def _sentence(text: str) -> str:
    return text if text.endswith((".", ")")) else f"{text}."
