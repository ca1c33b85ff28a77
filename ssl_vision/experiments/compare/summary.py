"""A comparison as sentences, tables and JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any, NamedTuple

from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.comparison import VALIDATED, Comparison, Group, Pair
from ssl_vision.experiments.compare.keys import shown
from ssl_vision.experiments.compare.statistics import smallest_wilcoxon_p
from ssl_vision.runs.files import read_csv
from ssl_vision.runs.registry import Run
from ssl_vision.tables import aligned, as_markdown

Lines = list[list[str]]

_UNTITLED = {"features", "metric", "layer", "protocol", "epoch", "options", "lr", "weight_decay", "root"}
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
        parts = [self.title, *map(aligned, filter(None, self.tables)), "\n".join(self.sentences)]
        return "\n\n".join(parts + ([_ACCURACIES, aligned(self.accuracies)] if self.accuracies else []))

    @property
    def markdown(self) -> str:
        """Tables and a list of sentences as Markdown."""
        tables = [as_markdown(table, right=len(table[0]) - 1) for table in self.tables if table]
        parts = [f"**{self.title}**", *tables, "\n".join(f"- {line}" for line in self.sentences)]
        if table := self.accuracies:
            parts += [_ACCURACIES, as_markdown(table, right=len(table[0]) - 1)]
        return "\n\n".join(parts) + "\n"


def part_of(comparison: Comparison, about: str = "") -> Part:
    """The tables and sentences of a comparison, with an addition to its title."""
    tables = [group_table(comparison), pair_table(comparison)]
    sentences = [*summaries(comparison), *notes(comparison)]
    return Part(title(comparison) + about, tables, sentences, accuracy_table(comparison))


def part_within(within: str, comparisons: Mapping[str, Comparison], chosen: Mapping[str, str]) -> Part:
    """One table of means and one of pairs for comparisons within each value of a setting.

    Args:
        within: the setting.
        comparisons: comparisons by its values.
        chosen: value that was chosen for each group, which is marked.
    """
    first, name = next(iter(comparisons.values())), within.rpartition(".")[2]
    by_name = {value: {group.name: group for group in each.groups} for value, each in comparisons.items()}
    lines = [[first.by, *(f"{name} {value}" for value in comparisons)]]
    for group in dict.fromkeys(group for groups in by_name.values() for group in groups):
        lines.append([group])
        for value, groups in by_name.items():
            mean = _shown(first, groups[group].mean) if group in groups else ""
            lines[-1].append(f"{mean} *" if chosen.get(group) == value else mean)
        taus = [_used_temperature(groups[group]) if group in groups else "" for groups in by_name.values()]
        if name == "temperature" and any(taus):
            lines.append([f"{group}, last τ in training", *taus])
    for baseline in dict.fromkeys(title for each in comparisons.values() for title in each.baselines):
        values = (each.baselines.get(baseline) for each in comparisons.values())
        lines.append([baseline, *(_shown(first, value) for value in values)])
    pairs = [
        {name: value, **dict(zip(table[0], line, strict=True))}
        for value, each in comparisons.items()
        if (table := pair_table(each))
        for line in table[1:]
    ]
    heads = list(dict.fromkeys(key for line in pairs for key in line))
    sentences = [f"{name} {v}: {line}" for v, each in comparisons.items() for line in summaries(each)]
    sentences += dict.fromkeys(line for each in comparisons.values() for line in notes(each))
    if chosen:
        sentences.append(
            f"* The {name} with the highest mean {VALIDATED}, on {first.groups[0].runs[0].validated_on}."
        )
    table = [heads, *([line.get(head, "") for head in heads] for line in pairs)] if pairs else []
    return Part(f"{title(first)}, by {first.by} within each {name}", [lines, table], sentences, [])


def _used_temperature(group: Group) -> str:
    """The last logged temperature of a group that differs from the configured one; empty otherwise."""
    used = [value for run in group.runs if (value := run.last("train/temperature")) is not None]
    base = group.runs[0].setting("model.objective.temperature")
    if not used or (isinstance(base, float) and math.isclose(fmean(used), base, rel_tol=1e-3)):
        return ""
    return f"{fmean(used):.3g}"


def title(comparison: Comparison) -> str:
    """Metric, protocol, epoch and seeds of a comparison."""
    conditions = {k: v for k, v in comparison.conditions.items() if k not in _UNTITLED}
    selector = comparison.selector
    name = selector.metric
    if "protocol" in comparison.conditions:
        name += f" of the {selector.layer}, protocol {selector.protocol}"
        name += f" ({', '.join(f'{key} {value}' for key, value in conditions.items())})"
    elif "images" in comparison.conditions:
        name += f" (validation on {comparison.conditions['images']})"
    seeds = ", ".join(map(str, comparison.seeds))
    metric = comparison.metric
    unit = ", in percent" if metric.percent else ""
    if metric.direction == "lower" or (metric.direction == "higher" and not metric.percent):
        unit += f", {metric.direction} is better"
    plural = "seed" if len(comparison.seeds) == 1 else "seeds"
    return f"{name}{unit}, epoch {comparison.conditions['epoch']}, {plural} {seeds}"


def group_table(comparison: Comparison) -> Lines:
    """A row for each group and each baseline; with one seed, only the value."""
    baselines = [[title, _shown(comparison, value)] for title, value in comparison.baselines.items()]
    if len(comparison.seeds) == 1:
        single = [[group.name, _shown(comparison, group.mean)] for group in comparison.groups]
        return [[comparison.by, comparison.selector.metric], *single, *baselines]
    lines = [[comparison.by, "seeds", "mean", _level(comparison), "min", "max"]]
    for group in comparison.groups:
        values = (group.mean, comparison.interval(group), min(group.values), max(group.values))
        shown = [_shown(comparison, value) for value in values]
        lines.append([group.name, str(len(group.values)), *shown])
    return lines + [[title, "", value, "", "", ""] for title, value in baselines]


def accuracy_table(comparison: Comparison) -> Lines:
    """Means of all accuracies that every run has, in percent, by group; empty if there is only one."""
    names = list(dict.fromkeys(name for run in comparison.groups[0].runs for name in _accuracies(run)))
    columns: dict[str, list[str]] = {}
    for name in names:
        values = [[run.last(name) for run in group.runs] for group in comparison.groups]
        if all(value is not None for row in values for value in row):
            shown = description_of(name).shown
            columns[name] = [shown(fmean(value for value in row if value is not None)) for row in values]
    rows = [
        [group.name, *(column[i] for column in columns.values())] for i, group in enumerate(comparison.groups)
    ]
    return [[comparison.by, *columns], *rows] if len(columns) > 1 else []


def _accuracies(run: Run) -> list[str]:
    """Names of the accuracies in metrics.csv and evaluation.json."""
    logged = (name for name in read_csv(run.folder.metrics_file)[0] if name.startswith("val/"))
    measured: dict[str, float] = {}
    with suppress(InputError):
        measured = run.test_metrics
    return [name for name in (*logged, *measured) if description_of(name).percent]


def pair_table(comparison: Comparison) -> Lines:
    """A row for each pair: the first group minus the second; empty with one seed, which allows no test."""
    if len(comparison.seeds) == 1:
        return []
    corrected = comparison.tests > 1
    bootstrapped = any(pair.result.bootstrap for pair in comparison.pairs)
    heads = ["first - second", "difference", _level(comparison), *(["bootstrap"] if bootstrapped else [])]
    lines = [[*heads, "t test p", *(["Holm p"] if corrected else []), "Wilcoxon p", "d_z", "resolvable"]]
    for pair in comparison.pairs:
        result = pair.result
        values = (result.mean, result.interval, *([result.bootstrap] if bootstrapped else []))
        line = [f"{pair.first.name} - {pair.second.name}", *(_shown(comparison, value) for value in values)]
        line += [
            _p_text(result.t_p),
            *([_p_text(pair.holm_p)] if corrected else []),
            _p_text(result.wilcoxon_p),
        ]
        line += ["" if result.effect is None else f"{result.effect:.2f}"]
        lines.append([*line, _shown(comparison, result.resolvable)])
    return lines


def summaries(comparison: Comparison) -> list[str]:
    """A sentence for each pair, or one for all pairs if there is one seed."""
    if len(comparison.seeds) == 1:
        return [
            "With one seed, a difference cannot be told from chance. For intervals and tests, train the same "
            "settings with more seeds (--seed_everything)."
        ]
    return [summary(comparison, pair) for pair in comparison.pairs]


def summary(comparison: Comparison, pair: Pair) -> str:
    """The conclusion that the numbers of a pair support, as a sentence."""
    result, n = pair.result, len(comparison.seeds)
    first, second = pair.first.name, pair.second.name
    seeds = f"{n} seed" if n == 1 else f"{n} seeds"
    size = _with_unit(comparison, abs(result.mean))
    more, less = _sides(comparison.metric)
    side = more if result.mean > 0 else less
    if not any(result.differences):
        return f"{first} and {second} are equal with {'the one seed' if n == 1 else f'each of {seeds}'}."
    if result.t_p is None:
        place = "above" if result.mean > 0 else "below"
        if n == 1:
            return (
                f"{first} is {size} {place} {second} with the one seed there is, which cannot tell a "
                "difference from chance: train more seeds."
            )
        return f"{first} is {size} {place} {second} with each of {seeds}: no spread, so no test."
    p = pair.holm_p
    p_value = f"{'Holm-corrected ' if comparison.tests > 1 else ''}p {_equals(p)}"
    interval = _shown(comparison, result.interval)
    if p is not None and p < comparison.alpha:
        level = _level(comparison)
        return f"{first} is {side} than {second} by {size} ({level} {interval}, {seeds}, {p_value})."
    return (
        f"{first} and {second} cannot be told apart with {seeds}: the difference is "
        f"{_with_unit(comparison, result.mean)} ({interval}, {p_value}); a difference of "
        f"{_with_unit(comparison, result.resolvable)} or more "
        "would be found 4 times in 5 if differences spread as these do."
    )


def _sides(metric: MetricDescription) -> tuple[str, str]:
    """Words for the larger and the smaller value; only accuracies are "better" or "worse"."""
    if not metric.percent or metric.direction == "none":
        return "higher", "lower"
    return ("better", "worse") if metric.direction == "higher" else ("worse", "better")


def notes(comparison: Comparison) -> Iterator[str]:
    """Sentences about left-out seeds, other differences and the limits of the tests."""
    for name, seeds in comparison.left_out.items():
        plural = "seed" if len(seeds) == 1 else "seeds"
        yield f"Left out, as other groups do not have them: {plural} {', '.join(map(str, seeds))} of {name}."
    for key, values in comparison.differing.items():
        texts = {
            name: " and ".join(map(shown, value if isinstance(value, tuple) else (value,)))
            for name, value in values.items()
        }
        yield f"Differs, too: {key} is {', '.join(f'{text} in {name}' for name, text in texts.items())}."
    n = len(comparison.seeds)
    least = smallest_wilcoxon_p(n)
    if n > 1 and least >= comparison.alpha:
        needed = next(m for m in range(n, 64) if smallest_wilcoxon_p(m) < comparison.alpha)
        yield (
            f"With {n} seeds Wilcoxon's test cannot fall below p = {least:g}, however large the difference; "
            f"below {comparison.alpha:g} it takes {needed} seeds. The summaries use the t test."
        )


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison for JSON, with the value of every run."""
    return {
        "by": comparison.by,
        "metric": comparison.selector.metric,
        "unit": "percent" if comparison.metric.percent else comparison.metric.unit,
        "direction": comparison.metric.direction,
        "conditions": dict(comparison.conditions),
        "alpha": comparison.alpha,
        "seeds": list(comparison.seeds),
        "left_out": {name: list(seeds) for name, seeds in comparison.left_out.items()},
        "differing": {key: dict(values) for key, values in comparison.differing.items()},
        "groups": [
            {
                "name": group.name,
                "mean": group.mean,
                "interval": comparison.interval(group),
                "runs": [
                    {"seed": seed, "folder": str(run.folder.path), "value": value}
                    for seed, run, value in zip(comparison.seeds, group.runs, group.values, strict=True)
                ],
            }
            for group in comparison.groups
        ],
        "baselines": dict(comparison.baselines),
        "pairs": [pair_row(comparison, pair) for pair in comparison.pairs],
    }


def pair_row(comparison: Comparison, pair: Pair) -> dict[str, Any]:
    """The statistics of one pair, flat except for its list of differences."""
    result = pair.result
    ends = {"interval": result.interval, "bootstrap": result.bootstrap}
    flat = {
        f"{name}_{end}": both and both[i]
        for name, both in ends.items()
        for i, end in enumerate(("low", "high"))
    }
    return {
        "first": pair.first.name,
        "second": pair.second.name,
        "seeds": len(result.differences),
        "difference": result.mean,
        **flat,
        "t_p": result.t_p,
        "holm_p": pair.holm_p,
        "wilcoxon_p": result.wilcoxon_p,
        "d_z": result.effect,
        "resolvable": result.resolvable,
        "differences": list(result.differences),
        "summary": summary(comparison, pair),
    }


def _level(comparison: Comparison) -> str:
    return f"{100 * (1 - comparison.alpha):g} % interval"


def _shown(comparison: Comparison, value: float | tuple[float, float] | None) -> str:
    """A value or an interval of the metric; an empty string for None."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " to ".join(_shown(comparison, end) for end in value)
    return f"{value:.2f}" if comparison.metric.percent else f"{value:.4g}"


def _with_unit(comparison: Comparison, value: float | None) -> str:
    return _shown(comparison, value) + (" points" if comparison.metric.percent else "")


def _p_text(value: float | None) -> str:
    return "" if value is None else "<0.0001" if value < 1e-4 else f"{value:.2g}"


def _equals(value: float | None) -> str:
    text = _p_text(value)
    return text.replace("<", "< ") if text.startswith("<") else f"= {text}"
