"""``ssl-vision compare``: paired differences between groups of runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.comparison_tables import as_dict, pair_statistics, part_of, part_within
from ssl_vision.experiments.compare.paired_comparison import Comparison, best_values, compare, compare_within
from ssl_vision.experiments.compare.runs_table import add_paths, filtered, full_key, key_value, shown
from ssl_vision.optional import needed
from ssl_vision.runs.files import atomic_write, write_text
from ssl_vision.runs.registry import find_runs, readable
from ssl_vision.tables import as_csv

_SUFFIXES = (".json", ".md", ".csv", ".svg", ".pdf")


def run(args: Sequence[str]) -> None:
    """Compare runs seed by seed: runs with the same seed share initial weights, batches and views.

    Runs are grouped by a key and paired by seed. All other settings that affect the result must be equal.
    Prints the mean of each group, and for each pair of groups the difference, its interval, its tests, the
    smallest difference that this number of seeds resolves, and a summary. With one seed, it prints the
    values only. Accuracies are in percent, and their differences in points. The values are those that
    ssl-vision evaluate wrote.

    With --within KEY, such as temperature, groups are compared at each value of the key, with one correction
    for all tests, and then each at the value at which its last validation has the highest kNN accuracy.

    Raises:
        InputError: The runs cannot be compared; the message says why and how to fix it.
    """
    options = _parser().parse_args(list(args))
    output = Path(options.output) if options.output else None
    if output and output.suffix not in _SUFFIXES:
        raise InputError(f"--output {output}: expected a name that ends in {', '.join(_SUFFIXES)}")
    every = readable(find_runs(options.paths), "compare")
    runs = filtered(every, options.where)
    if not runs:
        raise InputError(f"none of {len(every)} runs has {' and '.join(options.where)}")
    by = full_key(options.by, runs)
    row = dict(key_value("--row", text) for text in options.row)
    common = {key: options[key] for key in ("metric", "layer", "protocol", "baseline", "alpha")}
    common |= {"by": by, "row": row}
    record: dict[str, Any]
    if options.within is None:
        within, comparisons = None, {"": compare(runs, allow=options.allow, **common)}
        parts = [part_of(comparisons[""])]
        record = as_dict(comparisons[""])
    else:
        within = full_key(options.within, runs)
        comparisons = compare_within(runs, within=within, allow=options.allow, **common)
        chosen = {} if options.metric.startswith("val/") else best_values(runs, within=within, by=by)
        parts = [part_within(within, comparisons, chosen)]
        record = {"within": within, "comparisons": {v: as_dict(each) for v, each in comparisons.items()}}
        if chosen:
            best = [run for run in runs if shown(run.setting(within)) == chosen[shown(run.setting(by))]]
            comparison = compare(best, allow=[*options.allow, within], **common)
            parts.append(part_of(comparison, f", each at its best {within.rpartition('.')[2]}"))
            record |= {"chosen": chosen, "best": as_dict(comparison)}
    print("\n\n".join(part.text for part in parts))
    if output is None:
        return
    if output.suffix == ".json":
        write_text(output, json.dumps(record, indent=1, ensure_ascii=False))
    elif output.suffix == ".md":
        write_text(output, "\n".join(part.markdown for part in parts))
    elif output.suffix == ".csv":
        rows = []
        for value, comparison in comparisons.items():
            for pair in pair_statistics(comparison):
                texts = {key: " ".join(map(str, each)) for key, each in pair.items() if type(each) is tuple}
                rows.append(({options.within: value} if within else {}) | pair | texts)
        write_text(output, as_csv(rows))
    else:
        with atomic_write(output) as partial:
            _draw(partial, comparisons, options.within)
    print(f"written to {output}")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="ssl-vision compare", description=run.__doc__)
    add_paths(parser)

    def add(name: str, default: str | float | None, text: str) -> None:
        kind = str | None if default is None else type(default)
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)

    def add_repeated(name: str, text: str) -> None:
        parser.add_argument(f"--{name}", action="append", default=[], help=f"{text}; may be repeated.")

    add("by", "objective", "Key whose values are compared, such as temperature.")
    add("within", None, "Key; compare the groups at each of its values.")
    add_repeated("where", "KEY=VALUE that the compared runs have")
    text = "Metric in evaluation.json; with a slash, such as val/knn_top1, its last value in metrics.csv."
    add("metric", "knn_top1", text)
    add("layer", "backbone", "Layer: backbone, hidden or projector.")
    add("protocol", "macl", "Protocol of ssl-vision evaluate.")
    add_repeated("row", "KEY=VALUE of the row, if the protocol has several rows of the metric")
    add("baseline", None, "Compare all others with this value, instead of every two values.")
    add_repeated("allow", "Further key that may differ")
    add("alpha", 0.05, "Significance level of tests and intervals.")
    add("output", None, f"Output file: {', '.join(_SUFFIXES)}.")
    return parser


def _draw(path: Path, comparisons: Mapping[str, Comparison], within: str | None) -> None:
    """Draw the mean of each group with its interval, at each value of a setting if there is one.

    Args:
        path: file, whose suffix states the format.
        comparisons: comparisons by the values of the setting; one without a setting.
        within: the setting, or None.

    Raises:
        InputError: matplotlib is not installed.
    """
    matplotlib = needed("matplotlib", extra="maps")
    from matplotlib.figure import Figure

    first = next(iter(comparisons.values()))
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        axes = figure.subplots()
        names = list(dict.fromkeys(group.name for each in comparisons.values() for group in each.groups))
        for place, name in enumerate(names):
            points = [
                (x if within else place, group.mean, each.interval(group))
                for x, each in enumerate(comparisons.values())
                for group in each.groups
                if group.name == name
            ]
            shift = 0.06 * (place - (len(names) - 1) / 2) if within else 0.0
            axes.errorbar(
                [x + shift for x, _, _ in points], [mean for _, mean, _ in points],
                yerr=[0.0 if ends is None else (ends[1] - ends[0]) / 2 for _, _, ends in points],
                marker="o", capsize=3, label=name,
            )  # fmt: skip
        ticks = list(comparisons) if within else names
        axes.set_xticks(range(len(ticks)), ticks)
        unit = f" in {first.description.unit}" if first.description.unit else ""
        axes.set(xlabel=within or first.by, ylabel=f"{first.description.long_title}{unit}")
        axes.spines[["right", "top"]].set_visible(False)
        if within:
            axes.legend(title=first.by, frameon=False)
        figure.savefig(path)
