"""Pieces of HTML in which nothing that a user named can be markup."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#888888")
"""Told apart by colour-blind people, on white and on black (Okabe & Ito 2008, with grey for black)."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Tell lines apart where colours come again."""


def text(value: Any) -> str:
    """The value, escaped for an element's content or a quoted attribute."""
    return escape(str(value), quote=True)


def data_block(value: Any, name: str) -> str:
    """JSON for the page's script: an element that is never executed, and that no value can end."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    safe = content.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" class="{text(name)}">{safe}</script>'


def number(value: float, digits: int = 5) -> float | None:
    """The value to so many digits, as JSON can hold it: None where it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers(values: Sequence[float], digits: int = 5) -> list[float | None]:
    """Each value as `number` gives it."""
    return [number(value, digits) for value in values]


def table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], *, caption: str, marked: Sequence[bool] = ()
) -> str:
    """A table whose first column names the rows.

    Args:
        head: of the columns.
        rows: cells; numbers are aligned as such.
        caption: what the table shows.
        marked: rows that are highlighted, if any are.
    """
    lines = []
    for row, mark in zip(rows, marked or [False] * len(rows), strict=True):
        first, *others = row
        cells = "".join(f"<td>{text(cell)}</td>" for cell in others)
        lines.append(f'<tr{" class=marked" if mark else ""}><th scope="row">{text(first)}</th>{cells}</tr>')
    names = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table>'
        f"<caption><span>{text(caption)}</span></caption>"
        f"<thead><tr>{names}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def folded(summary: str, content: str) -> str:
    """Content behind a line that opens it."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def chart(
    title: str,
    traces: Sequence[dict[str, Any]],
    layout: dict[str, Any],
    *,
    about: str,
    note: str = "",
    tall: bool = False,
) -> str:
    """A place where the page's script draws.

    Args:
        title: above the chart.
        traces: Plotly's; one with a name in ``meta`` is switched by the section's `switches`.
        layout: Plotly's, without what all charts share.
        about: what is to be seen, for those who do not see it.
        note: how to read it.
        tall: twice the height.
    """
    return (
        f'<figure class="chart{" tall" if tall else ""}"><figcaption><b>{text(title)}</b> {text(note)}'
        f'</figcaption><div class="plot" role="img" aria-label="{text(about)}"></div>'
        f"{data_block({'traces': list(traces), 'layout': layout}, 'figure')}</figure>"
    )


def switches(legend: str, marks: Mapping[str, tuple[str, str]]) -> str:
    """Checkboxes that show and hide what belongs to a name in the section's charts.

    Args:
        legend: what is switched.
        marks: sign and colour in the charts, by the name in ``meta``.
    """
    return f'<fieldset class="switches"><legend>{text(legend)}</legend>{boxes(marks)}</fieldset>'


def boxes(marks: Mapping[str, tuple[str, str]]) -> str:
    """A checked box for each name, with its sign and its colour."""
    return "".join(
        f'<label><input type="checkbox" checked value="{text(name)}">'
        f'<span class="mark" style="color:{colour}" aria-hidden="true">{sign}</span>'
        f"<span>{text(name)}</span></label>"
        for name, (sign, colour) in marks.items()
    )
