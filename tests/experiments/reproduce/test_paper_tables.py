"""Tests of tables of published and reproduced results, with made-up results."""

import csv
import io
import math

from scipy import stats

from ssl_vision.experiments.reproduce.paper import Column, Paper, Table, TableCell, TableMetric
from ssl_vision.experiments.reproduce.paper_tables import (
    Result,
    full_rows,
    markdown,
    smoke_test_markdown,
)
from ssl_vision.tables import as_csv

LE = TableMetric("LE", "macl", {"protocol": "macl", "layer": "backbone", "metric": "linear_top1"})
S = TableMetric("S", "macl", {"protocol": "macl", "layer": "backbone", "metric": "sensitivity"})
LEFT, MIDDLE, RIGHT = Column("τ₀", "0.1", {}), Column("τ₀", "0.2", {}), Column("Batch", "64", {})
COLUMNS = (LEFT, MIDDLE, RIGHT)


def cells(row, reason=""):
    return [TableCell("2", row, column, {"LE": "1"}, {}, reason=reason) for column in COLUMNS]


TABLE = Table(
    "2",
    "τ₀ & batch size",
    ("Half of 50 %",),
    COLUMNS,
    ("LE", "S"),
    (*cells("A_1"), *cells("MoCo", "no queue")),
)
PAPER = Paper(
    "p", "Paper", "Somebody 2020", ("About all",), {"LE": LE, "S": S}, {"2": TABLE}, "digits, width 16"
)


def result(row, column, metric, published, values, *, reason="", run=""):
    cell = TableCell("2", row, column, {metric.name: published}, {}, run, reason)
    return Result(cell, metric, values)


FULL = [
    result("A_1", LEFT, LE, "81.00", (80.0, 81.0, 83.0)),
    result("A_1", MIDDLE, LE, "81.5", (70.0, 70.1, 70.2)),
    result("A_1", RIGHT, LE, "90.0 ± 0.2", (91.0,)),
    result("A_1", LEFT, S, "0.300", (0.25, 0.35, 0.30)),
    result("A_1", RIGHT, S, "0.310", ()),
    result("MoCo", LEFT, LE, "88.0", (), reason="no queue"),
    result("MoCo", RIGHT, LE, "89.0", (), reason="no queue"),
]
SMALL = [
    result("A_1", LEFT, LE, "81.00", (93.0,), run="digits-a"),
    result("A_1", MIDDLE, LE, "82.00", (93.0,), run="digits-a"),
    result("A_1", LEFT, S, "0.300", (), run="digits-a"),
    result("A_1", RIGHT, LE, "90.00", (70.0, 74.0), run="digits-b"),
    result("MoCo", LEFT, LE, "88.0", (), reason="no queue"),
]

MARKDOWN = """\
**Paper, table 2.** τ₀ & batch size. Somebody 2020.

|      |     | τ₀               |           0.1 |          0.2 |
| ---- | --- | ---------------- | ------------: | -----------: |
| A_1  | LE  | published        |         81.00 |         81.5 |
|      |     | ours             |  81.33 ± 3.79 | 70.10 ± 0.25 |
|      |     | difference       |         +0.33 |       -11.40 |
|      |     | within 95 %      |           yes |           no |
|      | S   | published        |         0.300 |              |
|      |     | ours             | 0.300 ± 0.124 |              |
|      |     | difference       |        +0.000 |              |
|      |     | within 95 %      |           yes |              |
| MoCo | LE  | published        |          88.0 |              |
|      |     | not offered here |               |              |

|      |     | Batch            |          64 |
| ---- | --- | ---------------- | ----------: |
| A_1  | LE  | published        |  90.0 ± 0.2 |
|      |     | ours             |   91.00 (1) |
|      |     | difference       |       +1.00 |
|      |     | within 95 %      | no interval |
|      | S   | published        |       0.310 |
|      |     | ours             |             |
| MoCo | LE  | published        |        89.0 |
|      |     | not offered here |             |

Ours: mean ± half of the 95 % t interval over 3 seeds, or of the number in brackets. Empty: not run.
- Half of 50 %.
- MoCo: no queue.
- About all.
"""


def test_markdown_table_equals_expected_text():
    assert markdown(PAPER, TABLE, FULL) == MARKDOWN


def test_mean_and_interval_match_scipy():
    first = FULL[0]
    low, high = stats.t.interval(0.95, 2, loc=244 / 3, scale=stats.sem(first.values))
    assert math.isclose(first.mean, 244 / 3)
    assert math.isclose(first.half_width, (high - low) / 2)
    assert [r.within for r in FULL[:4]] == [True, False, None, True]


def test_smoke_test_lists_runs_without_published_numbers():
    text = smoke_test_markdown(PAPER, TABLE, SMALL)
    assert text.startswith("**Smoke test of table 2 of Paper: not results of the paper.**")
    assert "digits, width 16" in text
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    half = stats.t.ppf(0.975, 1) * 2  # of 70 and 74: the standard error of the mean is 2
    assert table[0] == ["run", "LE", "S"]
    assert table[2:] == [["digits-a", "93.00", ""], ["digits-b", f"72.00 ± {half:.2f}", ""]]
    # the paper's numbers and columns
    for printed in ("81.00", "82.00", "0.300", "90.00", "88.0", "0.1", "0.2"):
        assert printed not in text


def test_csv_contains_the_values_of_every_row():
    rows = full_rows(PAPER, TABLE, FULL)
    lines = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert len(lines) == len(rows) == len(FULL)
    for line, row in zip(lines, rows, strict=True):
        for key, value in row.items():
            expected = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            assert line[key] == expected
    first = rows[0]
    assert (first["row"], first["group"], first["column"], first["metric"]) == ("A_1", "τ₀", "0.1", "LE")
    assert (first["protocol"], first["layer"], first["published"], first["seeds"]) == (
        "macl",
        "backbone",
        "81.00",
        3,
    )
    assert (rows[5]["reason"], rows[5]["ours"]) == ("no queue", None)


def test_table_without_finished_runs_says_so():
    empty = [result("A_1", LEFT, LE, "81.00", ())]
    assert "No run of this table is finished." in markdown(PAPER, TABLE, empty)
