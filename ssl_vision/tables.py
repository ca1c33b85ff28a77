"""Tables as text, Markdown, CSV and HTML."""

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def aligned(lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Format rows of cells as text, with ``left`` left-aligned and then right-aligned columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_markdown(lines: Sequence[Sequence[str]], *, right: int = 0) -> str:
    """Format a Markdown table with aligned columns.

    Args:
        lines: header and rows.
        right: number of right-aligned columns at the end.
    """
    lines = [[text.replace("|", "\\|") for text in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    formats = [f"<{width}" for width in widths[: len(widths) - right]]
    formats += [f">{width}" for width in widths[len(formats) :]]
    head, *rows = ([format(*pair) for pair in zip(line, formats, strict=True)] for line in lines)
    rule = ["-" * (w - 1) + ("-" if f[0] == "<" else ":") for w, f in zip(widths, formats, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows with the same keys as CSV; None is empty, and booleans are lower case."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["name"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if v is None else str(v).lower() if isinstance(v, bool) else v for key, v in row.items()}
        for row in rows
    )
    return text.getvalue()


def html_table(lines: Sequence[Sequence[str]]) -> str:
    """Return an HTML table.

    Args:
        lines: rows of cells as plain text, the headings first; the first cell of a row is its name.

    Example:
        >>> html_table([["", "kNN %"], ["raw pixels", "94.72"]])[:52]
        '<table><tr><th></th><th>kNN %</th></tr><tr><th style'
    """
    head, *body = ([escape(cell) for cell in line] for line in lines)
    rows = [f"<th style='text-align: left'>{name}</th>{_cells('td', values)}" for name, *values in body]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in (_cells('th', head), *rows))}</table>"


def _cells(tag: str, values: Sequence[str]) -> str:
    return "".join(f"<{tag}>{value}</{tag}>" for value in values)
