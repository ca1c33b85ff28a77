"""Rows that ``benchmarks/results.py collect`` writes, and the cells of tables made from them."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from provenance import RESULTS

from ssl_vision.descriptions import description_of
from ssl_vision.experiments.compare.statistics import paired

Row = dict[str, Any]
Setting = tuple[str, str]
"""What distinguishes runs: a method and an objective, or negatives and weight of RECLAIM."""

Groups = dict[Setting, dict[int, Row]]
"""Rows by setting and seed."""


ACCURACIES = ("knn_top1", "linear_top1")
CRITIC = ("train/critic_gap", "train/same_class_share")
"""Measurements of RECLAIM's critic and negatives."""

LABEL_SHARES = {
    f"label_shares/{share}% labels/logistic_top1": f"{share} % of the labels"
    for share in (1, 5, 10, 20, 30, 50)
} | {"label_shares/logistic_top1": "all labels"}
HEADINGS = LABEL_SHARES | {
    **{f"knn{k}/knn_top1": f"kNN (k = {k}) %" for k in (10, 20)},
    **dict(zip(CRITIC, ("critic gap", "same class"), strict=True)),
}


def rows_of(pattern: str) -> list[Row]:
    """Return the rows of all files whose name has a pattern."""
    return [row for file in sorted(RESULTS.glob(f"{pattern}.json")) for row in json.loads(file.read_text())]


def add_row(name: str, row: Row) -> None:
    """Add a row to benchmarks/results/<name>.json, after the rows that other processes have added."""
    rows = [*rows_of(name), row]
    (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")


def settings(names: Sequence[str]) -> Groups:
    """Return the rows by method and objective, and by seed."""
    groups: Groups = defaultdict(dict)
    for row in (row for name in names for row in json.loads((RESULTS / f"{name}.json").read_text())):
        groups[row["method"], row["objective"]][row["seed"]] = row
    return dict(sorted(groups.items()))


def heading(metric: str) -> str:
    """Return the heading of a column of a metric."""
    return HEADINGS.get(metric) or description_of(metric).heading


def mean_cell(found: Sequence[float | None], metric: str) -> str:
    """Return mean and standard deviation of the known values of a metric; empty if there are none."""
    values = [value for value in found if value is not None]
    if not values:
        return ""
    description = description_of(metric)
    deviation = f" ± {description.shown(stdev(values))}" if len(values) > 1 else ""
    return description.shown(fmean(values)).replace("-", "−") + deviation


def difference_cell(rows: dict[int, Row], baseline: dict[int, Row], metric: str) -> str:
    """Return the mean difference within each seed in points, with its 95 % interval (Student's t).

    Args:
        rows: rows by seed.
        baseline: rows by seed, whose values are subtracted.
        metric: name of an accuracy below ``test/``.
    """
    seeds = sorted(rows.keys() & baseline.keys())
    result = paired(
        *([100 * group[seed]["test"][f"test/{metric}"] for seed in seeds] for group in (rows, baseline))
    )
    low, high = result.interval or (math.nan, math.nan)
    return f"{result.mean:+.2f} ({low:+.2f} to {high:+.2f})".replace("-", "−")


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines, of which the first one is the head, as a table."""
    if not lines:
        return "*No runs have been recorded yet.*"
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body])
