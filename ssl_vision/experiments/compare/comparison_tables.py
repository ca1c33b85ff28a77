"""A comparison as tables, sentences and JSON."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from ssl_vision.descriptions import description_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.metric_values import BASELINES
from ssl_vision.experiments.compare.paired_comparison import VALIDATED, Comparison, Group, Pair
from ssl_vision.experiments.compare.runs_table import shown
from ssl_vision.experiments.compare.statistics import smallest_wilcoxon_p
from ssl_vision.runs.evaluation_file import named_rows, variant_of
from ssl_vision.runs.files import read_csv
from ssl_vision.runs.registry import Run
from ssl_vision.tables import aligned, as_markdown

Lines = list[list[str]]
Row = dict[str, str]
"""Cells of a line by the heads of their columns."""

_UNTITLED = {"features", "metric", "layer", "protocol", "options", "lr", "weight_decay", "root"}
"""Conditions that the title of a comparison states elsewhere or omits."""

_ACCURACIES = "Means of all accuracies of the same runs, in percent, without tests:"


class Part(NamedTuple):
    """A comparison, or several with one table, as tables and sentences."""

    title: str
    tables: Sequence[Lines]
    sentences: Sequence[str]
    accuracies: Lines
    """Means of other accuracies, which are not tested; empty without any."""

    @property
    def text(self) -> str:
        """Tables with aligned columns, and a line for each sentence."""
        return self._formatted(self.title, aligned, "")

    @property
    def markdown(self) -> str:
        """Tables and a list of sentences as Markdown."""
        return self._formatted(f"**{self.title}**", _markdown_table, "- ") + "\n"

    def _formatted(self, title: str, table: Callable[[Lines], str], bullet: str) -> str:
        sentences = "\n".join(f"{bullet}{sentence}" for sentence in self.sentences)
        blocks = [title, *map(table, filter(None, self.tables)), sentences]
        return "\n\n".join(blocks + ([_ACCURACIES, table(self.accuracies)] if self.accuracies else []))


def _markdown_table(lines: Lines) -> str:
    return as_markdown(lines, right=len(lines[0]) - 1)


def part_of(comparison: Comparison, about: str = "") -> Part:
    """The tables and sentences of a comparison, with an addition to its title."""
    tables = [group_table(comparison), _lines(_pair_rows(comparison))]
    sentences = [*summaries(comparison), *notes(comparison)]
    return Part(title(comparison) + about, tables, sentences, _accuracy_table(comparison))


def part_within(within: str, comparisons: Mapping[str, Comparison], chosen: Mapping[str, str]) -> Part:
    """One table of means and one of pairs for comparisons within each value of a setting.

    Args:
        within: the setting.
        comparisons: comparisons by its values.
        chosen: value that was chosen for each group, which is marked.
    """
    first, name = next(iter(comparisons.values())), within.rpartition(".")[2]
    columns: dict[str, Row] = {}
    for value, each in comparisons.items():
        column = columns[f"{name} {value}"] = dict[str, str]()
        for group in each.groups:
            star = " *" if chosen.get(group.name) == value else ""
            column[group.name] = _shown(each, group.mean) + star
            if name == "temperature":
                column[f"{group.name}, last τ in training"] = _used_temperature(group)
        column |= {baseline: _shown(each, mean) for baseline, mean in each.baselines.items()}
    names = dict.fromkeys(row for column in columns.values() for row in column)
    means = [
        {first.by: row} | {head: column.get(row, "") for head, column in columns.items()}
        for row in sorted(names, key=lambda row: row in BASELINES)
        if any(column.get(row) for column in columns.values())
    ]
    pairs = [{name: value} | row for value, each in comparisons.items() for row in _pair_rows(each)]
    sentences = [f"{name} {v}: {line}" for v, each in comparisons.items() for line in summaries(each)]
    sentences += dict.fromkeys(line for each in comparisons.values() for line in notes(each))
    if chosen:
        images = first.groups[0].runs[0].validated_on
        sentences.append(f"* The {name} with the highest mean {VALIDATED}, on {images}.")
    every = replace(first, groups=tuple(group for each in comparisons.values() for group in each.groups))
    heading = f"{title(every)}, by {first.by} within each {name}"
    return Part(heading, [_lines(means), _lines(pairs)], sentences, [])


def _lines(rows: Sequence[Row]) -> Lines:
    """The heads of all columns, and the cells of each row, which are empty where it has no such column."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return [heads, *([row.get(head, "") for head in heads] for row in rows)] if rows else []


def _used_temperature(group: Group) -> str:
    """The last logged temperature of a group that differs from the configured one; empty otherwise."""
    used = [value for run in group.runs if (value := run.last("train/temperature")) is not None]
    base = group.runs[0].setting("model.objective.temperature")
    if not used or (isinstance(base, float) and math.isclose(fmean(used), base, rel_tol=1e-3)):
        return ""
    return f"{fmean(used):.3g}"


def title(comparison: Comparison) -> str:
    """Metric, protocol, epoch and seeds of a comparison."""
    conditions, name, metric = comparison.conditions, comparison.metric, comparison.description
    if "protocol" in conditions:
        stated = ", ".join(f"{key} {value}" for key, value in conditions.items() if key not in _UNTITLED)
        name += f" of the {conditions['layer']}, protocol {conditions['protocol']} ({stated})"
    elif "images" in conditions:
        name += f" (validation on {conditions['images']})"
    unit = ", in percent" if metric.percent else ""
    if metric.direction == "lower" or (metric.direction == "higher" and not metric.percent):
        unit += f", {metric.direction} is better"
    epochs = {run.epoch for group in comparison.groups for run in group.runs}
    last = f"epoch {epochs.pop()}" if len(epochs) == 1 else "last epoch"
    return f"{name}{unit}, {last}, {_seeds(comparison.seeds)}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def group_table(comparison: Comparison) -> Lines:
    """A row for each group and each baseline; with one seed, only the value."""
    single = len(comparison.seeds) == 1
    mean, rows = comparison.metric if single else "mean", list[Row]()
    for group in comparison.groups:
        row = {comparison.by: group.name}
        if not single:
            row["seeds"] = str(len(group.values))
        row[mean] = _shown(comparison, group.mean)
        if not single:
            row[_level(comparison)] = _shown(comparison, comparison.interval(group))
            row |= {each.__name__: _shown(comparison, each(group.values)) for each in (min, max)}
        rows.append(row)
    baselines = comparison.baselines.items()
    return _lines([*rows, *({comparison.by: title, mean: _shown(comparison, v)} for title, v in baselines)])


def _pair_rows(comparison: Comparison) -> list[Row]:
    """A row for each pair: the first group minus the second; empty with one seed, which allows no test."""
    if len(comparison.seeds) == 1:
        return []
    bootstrapped = any(pair.result.bootstrap for pair in comparison.pairs)
    rows = []
    for pair in comparison.pairs:
        result = pair.result
        row = {
            "first - second": f"{pair.first.name} - {pair.second.name}",
            "difference": _shown(comparison, result.mean),
            _level(comparison): _shown(comparison, result.interval),
        }
        if bootstrapped:
            row["bootstrap"] = _shown(comparison, result.bootstrap)
        row["t test p"] = _p_text(result.t_p)
        if comparison.tests > 1:
            row["Holm p"] = _p_text(pair.holm_p)
        row["Wilcoxon p"] = _p_text(result.wilcoxon_p)
        row["d_z"] = "" if result.effect is None else f"{result.effect:.2f}"
        row["resolvable"] = _shown(comparison, result.resolvable)
        rows.append(row)
    return rows


def _accuracy_table(comparison: Comparison) -> Lines:
    """Means of all accuracies that the runs measured alike, in percent, by group; empty if there is one."""
    runs = [run for group in comparison.groups for run in group.runs]
    measured = list(map(_accuracies, runs))
    names = [name for name, how in measured[0].items() if all(each.get(name) == how for each in measured)]
    rows = []
    for group in filter(lambda group: group.runs, comparison.groups):
        values = {name: [run.last(name) or 0.0 for run in group.runs] for name in names}
        means = {name: description_of(name).shown(fmean(own)) for name, own in values.items()}
        rows.append({comparison.by: group.name} | means)
    return _lines(rows) if len(names) > 1 else []


def _accuracies(run: Run) -> dict[str, Any]:
    """Names of the accuracies in metrics.csv and evaluation.json, and how each was measured."""
    how: dict[str, Any] = {
        name: run.validated_k for name in read_csv(run.folder.metrics_file)[0] if name.startswith("val/")
    }
    with suppress(InputError):
        rows = named_rows(run.evaluation, run.config, epoch=run.epoch)
        how |= {name: variant_of(row) for name, row in rows.items()}
    return {name: how[name] for name in how if description_of(name).percent and run.last(name) is not None}


def summaries(comparison: Comparison) -> list[str]:
    """A sentence for each pair, or one for all pairs if there is one seed."""
    if len(comparison.seeds) == 1:
        return [
            "With one seed, a difference cannot be told from chance. For intervals and tests, train the same "
            "settings with more seeds (--seed_everything)."
        ]
    return [_summary(comparison, pair) for pair in comparison.pairs]


def _summary(comparison: Comparison, pair: Pair) -> str:
    """The conclusion that the numbers of a pair support, as a sentence."""
    result, n, metric = pair.result, len(comparison.seeds), comparison.description
    first, second = pair.first.name, pair.second.name
    size = _with_unit(comparison, abs(result.mean))
    above = "above" if result.mean > 0 else "below"
    if not any(result.differences):
        return f"{first} and {second} are equal with each of {n} seeds."
    if result.t_p is None:
        return f"{first} is {size} {above} {second} with each of {n} seeds: no spread, so no test."
    p = pair.holm_p
    p_value = f"{'Holm-corrected ' if comparison.tests > 1 else ''}p = {_p_text(p)}".replace("= <", "< ")
    interval = _shown(comparison, result.interval)
    low, high = result.interval or (result.mean, result.mean)
    if comparison.image_margin is not None and low <= 0 <= high:
        return (
            f"{first} and {second} cannot be told apart with {n} seeds and these test images: "
            f"the difference is {_with_unit(comparison, result.mean)} ({interval})."
        )
    if p is not None and p < comparison.alpha:
        more, less = "higher", "lower"
        if metric.percent and metric.direction != "none":  # only accuracies are better or worse
            more, less = ("better", "worse")[:: 1 if metric.direction == "higher" else -1]
        side, level = more if result.mean > 0 else less, _level(comparison)
        return f"{first} is {side} than {second} by {size} ({level} {interval}, {n} seeds, {p_value})."
    return (
        f"{first} and {second} cannot be told apart with {n} seeds: the difference is "
        f"{_with_unit(comparison, result.mean)} ({interval}, {p_value}); a difference of "
        f"{_with_unit(comparison, result.resolvable)} or more "
        "would be found 4 times in 5 if differences spread as these do."
    )


def notes(comparison: Comparison) -> Iterator[str]:
    """Sentences about left-out seeds, other differences and the limits of the tests."""
    for name, seeds in comparison.left_out.items():
        yield f"Left out, as other groups do not have them: {_seeds(seeds)} of {name}."
    for key, values in comparison.differing.items():
        texts = (
            f"{' and '.join(map(shown, value if isinstance(value, tuple) else (value,)))} in {name}"
            for name, value in values.items()
        )
        yield f"Differs, too: {key} is {', '.join(texts)}."
    n = len(comparison.seeds)
    least = smallest_wilcoxon_p(n)
    if n > 1 and comparison.image_margin is not None:
        yield "The interval of a difference from the start covers seeds and test images, p only seeds."
    if n > 1 and least >= comparison.alpha:
        needed = next(m for m in range(n, 64) if smallest_wilcoxon_p(m) < comparison.alpha)
        yield (
            f"With {n} seeds Wilcoxon's test cannot fall below p = {least:g}, however large the difference; "
            f"below {comparison.alpha:g} it takes {needed} seeds. The summaries use the t test."
        )


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison for JSON, with the value of every run."""
    description = comparison.description
    record = vars(comparison) | {
        "unit": "percent" if description.percent else description.unit,
        "direction": description.direction,
        "groups": [
            {
                "name": group.name,
                "mean": group.mean,
                "interval": comparison.interval(group),
                "runs": [
                    {"seed": seed, "folder": str(run.folder.path), "epoch": run.epoch, "value": value}
                    for seed, run, value in zip(comparison.seeds, group.runs, group.values, strict=False)
                ],
            }
            for group in comparison.groups
        ],
        "pairs": pair_statistics(comparison),
    }
    del record["description"], record["tests"]
    return record


def pair_statistics(comparison: Comparison) -> list[dict[str, Any]]:
    """The statistics of each pair, and its summary with several seeds."""
    several = len(comparison.seeds) > 1
    return [
        {
            "first": pair.first.name,
            "second": pair.second.name,
            "seeds": len(comparison.seeds),
            **vars(pair.result),
            "holm_p": pair.holm_p,
            "summary": _summary(comparison, pair) if several else None,
        }
        for pair in comparison.pairs
    ]


def _level(comparison: Comparison) -> str:
    return f"{100 * (1 - comparison.alpha):g} % interval"


def _shown(comparison: Comparison, value: float | tuple[float, float] | None) -> str:
    """A value or an interval of the metric; an empty string for None."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " to ".join(_shown(comparison, end) for end in value)
    return f"{value:.2f}" if comparison.description.percent else f"{value:.4g}"


def _with_unit(comparison: Comparison, value: float | None) -> str:
    return _shown(comparison, value) + (" points" if comparison.description.percent else "")


def _p_text(value: float | None) -> str:
    return "" if value is None else "<0.0001" if value < 1e-4 else f"{value:.2g}"
