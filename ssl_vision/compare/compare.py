"""``ssl-vision compare``: paired differences between groups of runs."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.compare.comparison import Comparison, compare
from ssl_vision.compare.keys import key_value
from ssl_vision.compare.metric_selector import MetricSelector
from ssl_vision.compare.summary import (
    ACCURACIES,
    accuracy_table,
    as_dict,
    as_markdown,
    group_table,
    notes,
    pair_row,
    pair_table,
    summaries,
    title,
)
from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.registry import find_runs, readable
from ssl_vision.tables import aligned

_SUFFIXES = (".json", ".md", ".csv")


def run(args: Sequence[str]) -> None:
    """Compare runs seed by seed: runs with the same seed share initial weights, batches and views.

    Runs are grouped by a key and paired by seed. All other settings that affect the result must be equal.
    Prints the mean of each group, and for each pair of groups the difference, its interval, its tests, the
    smallest difference that this number of seeds resolves, and a summary. With one seed, it prints the
    values only. Accuracies are in percent, and their differences in points. The values are those that
    ssl-vision evaluate wrote.

    Raises:
        InputError: The runs cannot be compared; the message says why and how to fix it.
    """
    parser = ArgumentParser(prog="ssl-vision compare", description=run.__doc__)
    parser.add_argument(
        "paths", nargs="*", type=str, help="Run directories, or directories of them (default: runs)."
    )
    parser.add_argument(
        "--by", type=str, default="objective", help="Key whose values are compared, such as temperature."
    )
    parser.add_argument(
        "--metric",
        type=str,
        default=MetricSelector.metric,
        help="Metric in evaluation.json; with a slash, such as val/knn_top1, its last value in metrics.csv.",
    )
    parser.add_argument(
        "--layer", type=str, default=MetricSelector.layer, help="Layer: backbone, hidden or projector."
    )
    parser.add_argument(
        "--protocol", type=str, default=MetricSelector.protocol, help="Protocol of ssl-vision evaluate."
    )
    parser.add_argument(
        "--row",
        action="append",
        type=str,
        default=[],
        help="KEY=VALUE of the row, if the protocol has several rows of the metric; may be repeated.",
    )
    parser.add_argument(
        "--baseline",
        type=str | None,
        default=None,
        help="Compare all others with this value, instead of every two values.",
    )
    parser.add_argument(
        "--allow", action="append", type=str, default=[], help="Further key that may differ; may be repeated."
    )
    parser.add_argument(
        "--alpha", type=float, default=0.05, help="Significance level of tests and intervals."
    )
    parser.add_argument("--output", type=str | None, default=None, help="Output file: .json, .md or .csv.")
    options = parser.parse_args(list(args))
    output = Path(options.output) if options.output else None
    if output and output.suffix not in _SUFFIXES:
        raise InputError(f"--output {output}: expected a name that ends in {', '.join(_SUFFIXES)}")
    selector = MetricSelector(
        metric=options.metric,
        layer=options.layer,
        protocol=options.protocol,
        row=dict(key_value("--row", text) for text in options.row),
    )
    comparison = compare(
        readable(find_runs(options.paths or ["runs"]), "compare"),
        by=options.by,
        selector=selector,
        baseline=options.baseline,
        allow=options.allow,
        alpha=options.alpha,
    )
    print(title(comparison), end="\n\n")
    for table in filter(None, (group_table(comparison), pair_table(comparison))):
        print(aligned(table), end="\n\n")
    print("\n".join((*summaries(comparison), *notes(comparison))))
    if table := accuracy_table(comparison):
        print(f"\n{ACCURACIES}\n\n{aligned(table)}")
    if output:
        _write(comparison, output)
        print(f"written to {output}")


def _write(comparison: Comparison, path: Path) -> None:
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".json":
            json.dump(as_dict(comparison), file, indent=1, ensure_ascii=False)
        elif path.suffix == ".md":
            file.write(as_markdown(comparison))
        else:
            rows = [pair_row(comparison, pair) for pair in comparison.pairs]
            for row in rows:
                row["differences"] = " ".join(map(repr, row["differences"]))
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
