"""``ssl-vision compare``: paired differences between groups of runs."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from ssl_vision.cli.parser import OneLineErrors
from ssl_vision.compare.comparison import Comparison, compare
from ssl_vision.compare.quantity import MetricSelector
from ssl_vision.compare.verdict import (
    as_dict,
    as_markdown,
    group_table,
    notes,
    pair_row,
    pair_table,
    title,
    verdicts,
)
from ssl_vision.errors import InputError
from ssl_vision.evaluation.rows import aligned
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.registry import find_runs, readable

_SUFFIXES = (".json", ".md", ".csv")


def run(args: Sequence[str]) -> None:
    """Compares runs seed by seed: runs of one seed have equal initial weights, batches and views.

    The runs at and below the paths are grouped by a key and paired by seed; all other settings that change
    what is computed must be equal. Prints each group's mean, each pair's difference with its interval, tests
    and the smallest difference that this many seeds resolve, and a sentence for each pair. Accuracies are in
    percent and their differences in points. The numbers are those that ssl-vision evaluate wrote.

    Raises:
        InputError: the runs cannot be compared; the message says why and what would help.
    """
    parser = OneLineErrors(prog="ssl-vision compare", description=run.__doc__)
    parser.add_argument(
        "paths", nargs="*", type=str, help="Run folders, or folders of them; 'runs' by default."
    )
    parser.add_argument(
        "--by", type=str, default="objective", help="The key whose values are compared, such as batch_size."
    )
    parser.add_argument(
        "--metric",
        type=str,
        default=MetricSelector.metric,
        help="As in evaluation.json; with a slash, such as val/knn_top1, the last value in metrics.csv.",
    )
    parser.add_argument(
        "--layer", type=str, default=MetricSelector.layer, help="backbone, hidden or projector."
    )
    parser.add_argument(
        "--protocol", type=str, default=MetricSelector.protocol, help="Of ssl-vision evaluate."
    )
    parser.add_argument(
        "--row",
        action="append",
        type=str,
        default=[],
        help="KEY=VALUE: which row, where the protocol has several of the metric; may be repeated.",
    )
    parser.add_argument(
        "--baseline", type=str | None, default=None, help="Compare all with this value, not every two."
    )
    parser.add_argument(
        "--allow", action="append", type=str, default=[], help="A key that may differ, too; may be repeated."
    )
    parser.add_argument("--alpha", type=float, default=0.05, help="Level of tests and intervals.")
    parser.add_argument("--output", type=str | None, default=None, help="A file: .json, .md or .csv.")
    options = parser.parse_args(list(args))
    output = Path(options.output) if options.output else None
    if output and output.suffix not in _SUFFIXES:
        raise InputError(f"--output {output}: expected a name that ends in {', '.join(_SUFFIXES)}")
    quantity = MetricSelector(
        metric=options.metric,
        layer=options.layer,
        protocol=options.protocol,
        row=dict(map(_field, options.row)),
    )
    comparison = compare(
        readable(find_runs(options.paths or ["runs"]), "compare"),
        by=options.by,
        quantity=quantity,
        baseline=options.baseline,
        allow=options.allow,
        alpha=options.alpha,
    )
    print(title(comparison), end="\n\n")
    print(aligned(group_table(comparison)), end="\n\n")
    print(aligned(pair_table(comparison)), end="\n\n")
    print("\n".join((*verdicts(comparison), *notes(comparison))))
    if output:
        _write(comparison, output)
        print(f"written to {output}")


def _field(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError(f"--row {text}: expected KEY=VALUE")
    return key, value


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
