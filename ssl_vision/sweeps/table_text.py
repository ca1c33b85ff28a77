"""Tables as the text of Markdown and CSV files."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def as_markdown(lines: Sequence[Sequence[str]], *, right: int = 0) -> str:
    """A Markdown table whose columns are aligned.

    Args:
        lines: the header and the rows.
        right: the number of columns at the end that are flush right.
    """
    lines = [[text.replace("|", "\\|") for text in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    formats = [f"<{width}" for width in widths[: len(widths) - right]]
    formats += [f">{width}" for width in widths[len(formats) :]]
    head, *rows = ([format(*pair) for pair in zip(line, formats, strict=True)] for line in lines)
    rule = ["-" * (w - 1) + ("-" if f[0] == "<" else ":") for w, f in zip(widths, formats, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as comma-separated values; None is empty, and truth values are lower case."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["name"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if v is None else str(v).lower() if isinstance(v, bool) else v for key, v in row.items()}
        for row in rows
    )
    return text.getvalue()
