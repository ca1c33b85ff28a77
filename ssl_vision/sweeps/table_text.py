"""Formatting of tables as Markdown and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


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
