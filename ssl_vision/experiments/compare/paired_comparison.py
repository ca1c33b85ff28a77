"""Paired comparison of finished runs: check that they are comparable, group and pair them, test."""

import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.errors import InputError, check
from ssl_vision.experiments.compare.metric_values import (
    baseline_means,
    evaluated_row,
    logged_value,
    shared_conditions,
)
from ssl_vision.experiments.compare.runs_table import full_key, order, shown
from ssl_vision.experiments.compare.statistics import Paired, holm, paired, t_interval, with_images
from ssl_vision.runs.config import listed, significant
from ssl_vision.runs.registry import SHORT, Run

VALIDATED = "val/knn_top1"
"""The metric by which `best_values` chooses."""

_LENGTH = ("trainer.max_epochs", "trainer.max_steps")
"""Settings that a continued run may change, but that must be equal in a comparison."""


@dataclass(frozen=True)
class Group:
    """The runs of one setting, one for each seed, and their values in the order of the seeds.

    The weights from which all runs started are a group without runs.
    """

    name: str
    runs: tuple[Run, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return fmean(self.values)


@dataclass(frozen=True)
class Pair:
    """Two groups compared seed by seed: the first minus the second."""

    first: Group
    second: Group
    result: Paired
    holm_p: float | None
    """p of the t test, corrected for all pairs of the family that have one."""


@dataclass(frozen=True)
class Comparison:
    """Groups of runs that differ in one key, and every pair of groups."""

    by: str
    metric: str
    """Name of the metric in evaluation.json or metrics.csv."""
    description: MetricDescription
    conditions: Mapping[str, Any]
    """Conditions under which all values were measured."""
    alpha: float
    seeds: tuple[int, ...]
    left_out: Mapping[str, tuple[int, ...]]
    """Seeds of each group that are missing in another group."""
    differing: Mapping[str, Mapping[str, Any]]
    """Settings other than ``by`` that differ, with the value of each group, or its values as a tuple."""
    groups: tuple[Group, ...]
    """Groups in descending order of their means. Accuracies are in percent."""
    baselines: Mapping[str, float]
    """Means of the start, the untrained network and raw pixels, if evaluated. Accuracies are in percent."""
    pairs: tuple[Pair, ...] = ()
    tests: int = 0
    """Number of pairs for which p is corrected, in this comparison and others of the same family."""
    image_margin: float | None = None
    """In a comparison with the start, half the mean interval of a run's difference over the test images."""

    def interval(self, group: Group) -> tuple[float, float] | None:
        """Student's t interval of the mean of a group; None for one seed and for equal values."""
        if len(set(group.values)) < 2:
            return None
        half = t_interval(group.values, level=1 - self.alpha)
        return group.mean - half, group.mean + half


def compare(
    runs: Sequence[Run],
    *,
    by: str,
    metric: str = "knn_top1",
    layer: str = "backbone",
    protocol: str = "macl",
    row: Mapping[str, str] | None = None,
    baseline: str | None = None,
    allow: Sequence[str] = (),
    alpha: float = 0.05,
) -> Comparison:
    """Compare groups of runs seed by seed, or one group with the weights from which its runs started.

    Args:
        runs: finished runs, evaluated if the metric is in evaluation.json.
        by: key whose values define the groups: ``objective``, any key of config.yaml, or the last part of
            one, such as ``temperature``.
        metric: name of a metric in evaluation.json; with a slash, such as ``val/knn_top1``, the last value of
            that metric in metrics.csv.
        layer: layer of the row in evaluation.json.
        protocol: protocol of the row.
        row: further fields that the row must have, for a protocol with several rows of one metric.
        baseline: group with which all others are compared; None compares every two groups.
        allow: further keys that may differ.
        alpha: significance level; intervals contain the mean with probability 1 − alpha.

    Raises:
        InputError: The runs cannot be compared; the message says why and how to fix it.
    """
    check("alpha", alpha, at_least=1e-9, below=1)
    if "/" in by or by in ("seed", "seed_everything", "name"):
        raise InputError(f"--by {by}: expected a setting; runs are paired by their seeds")
    by, *allow = (full_key(key, runs) for key in (by, *allow))
    members = _grouped(runs, by)
    _check_settings(runs, members, by, allow)
    _check_finished(runs)
    fields = {"protocol": protocol, "layer": layer, "metric": metric, **(row or {})}
    rows = [logged_value(run, metric) if "/" in metric else evaluated_row(run, fields) for run in runs]
    conditions = shared_conditions(runs, rows)
    if len(members) == 1 and not all("gain" in row for row in rows):
        raise InputError(f"--by {by}: every run has it as {next(iter(members))}: nothing to compare")
    seeds = sorted(set.intersection(*map(set, members.values())))
    if not seeds:
        each = "; ".join(f"{name}: {', '.join(map(str, sorted(own)))}" for name, own in members.items())
        raise InputError(f"no seed is in all groups ({each}): train the same seeds in each")
    description = description_of(metric, stored=rows[0])
    value_of = {run: float(row["value"]) for run, row in zip(runs, rows, strict=True)}
    groups = []
    for name, own in members.items():
        values = tuple(description.scale * value_of[own[seed]] for seed in seeds)
        for seed, value in zip(seeds, values, strict=True):
            if not math.isfinite(value):
                raise InputError(f"{own[seed].folder.path}: {metric} is {value}, which cannot be compared")
        groups.append(Group(name, tuple(own[seed] for seed in seeds), values))
    baselines = {
        title: description.scale * value for title, value in baseline_means(runs, conditions).items()
    }
    margin = None
    if len(members) == 1:
        widths = [description.scale * (row["gain_high"] - row["gain_low"]) for row in rows]  # 95 % intervals
        margin = fmean(widths) / 2 * NormalDist().inv_cdf(1 - alpha / 2) / NormalDist().inv_cdf(0.975)
        gain_of = {run: description.scale * row["gain"] for run, row in zip(runs, rows, strict=True)}
        starts = (value - gain_of[run] for run, value in zip(groups[0].runs, groups[0].values, strict=True))
        groups.append(Group("start", (), tuple(round(start, 9) for start in starts)))
        baselines.pop("start", None)
    names = [group.name for group in groups]
    if baseline is not None and baseline not in names:
        raise InputError(f"--baseline {baseline}: no such group{closest_match(baseline, names)}")
    comparison = Comparison(
        by=by,
        metric=metric,
        description=description,
        conditions=conditions,
        alpha=alpha,
        seeds=tuple(seeds),
        left_out={name: out for name, own in members.items() if (out := tuple(sorted(own.keys() - seeds)))},
        differing=_differing(members, by, allow),
        groups=tuple(sorted(groups, key=lambda group: -group.mean)),
        baselines=baselines,
        image_margin=margin,
    )
    return _tested([comparison], baseline)[0]


def compare_within(
    runs: Sequence[Run], *, within: str, by: str, baseline: str | None = None, **options: Any
) -> dict[str, Comparison]:
    """Compare groups of runs within each value of a further setting, with one Holm correction for all tests.

    Args:
        runs: finished runs, as for `compare`.
        within: key whose values separate the comparisons. Values that only one group has are left out.
        by: key whose values define the groups.
        baseline: as for `compare`.
        options: further arguments of `compare`.

    Returns:
        The comparison at each value, numbers in ascending order.

    Raises:
        InputError: as `compare`, or no value has two groups.
    """
    within, by = (full_key(key, runs) for key in (within, by))
    members: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: order(run.setting(within))):
        members.setdefault(shown(run.setting(within)), []).append(run)
    comparisons = {
        value: compare(own, by=by, baseline=baseline, **options)
        for value, own in members.items()
        if len({shown(run.setting(by)) for run in own}) > 1
    }
    if not comparisons:
        raise InputError(f"--within {within}: no value has runs that differ in {by}")
    tested = _tested(list(comparisons.values()), baseline)
    return dict(zip(comparisons, tested, strict=True))


def best_values(runs: Sequence[Run], *, within: str, by: str) -> dict[str, str]:
    """Return the value of a setting at which each group has the highest kNN accuracy in its last validation.

    Accuracies are means over the seeds. The result is empty if a run has no validation on images that are
    neither trained on nor tested.

    Args:
        runs: runs of all groups and values.
        within: full key of the setting.
        by: full key whose values define the groups.
    """
    accuracies: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        accuracy = run.last(VALIDATED)
        if accuracy is None or run.validated_on == "test images":
            return {}
        values = accuracies.setdefault(shown(run.setting(by)), {})
        values.setdefault(shown(run.setting(within)), []).append(accuracy)
    return {name: max(values, key=lambda value: fmean(values[value])) for name, values in accuracies.items()}


def _tested(comparisons: Sequence[Comparison], baseline: str | None) -> list[Comparison]:
    """Test the pairs of groups of each comparison, with one Holm correction for all of them."""
    couples = [_couples(each.groups, baseline) for each in comparisons]
    every = list(itertools.chain.from_iterable(couples))
    alpha = comparisons[0].alpha
    results = [paired(a.values, b.values, alpha=alpha, tests=len(every)) for a, b in every]
    margins = [each.image_margin for each, own in zip(comparisons, couples, strict=True) for _ in own]
    results = [with_images(result, margin) for result, margin in zip(results, margins, strict=True)]
    corrected = iter(holm([result.t_p for result in results if result.t_p is not None]))
    pairs = (
        Pair(*couple, result, None if result.t_p is None else next(corrected))
        for couple, result in zip(every, results, strict=True)
    )
    return [
        replace(each, pairs=tuple(itertools.islice(pairs, len(own))), tests=len(every))
        for each, own in zip(comparisons, couples, strict=True)
    ]


def _couples(groups: Sequence[Group], baseline: str | None) -> list[tuple[Group, Group]]:
    if baseline is None:
        return list(itertools.combinations(groups, 2))
    return [
        (group, base) for base in groups if base.name == baseline for group in groups if group is not base
    ]


def _grouped(runs: Sequence[Run], by: str) -> dict[str, dict[int, Run]]:
    """Runs by group, then by seed."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        seed, name = run.setting("seed"), shown(run.setting(by))
        if type(seed) is not int:
            raise InputError(f"{run.folder.path}: its seed is {seed}: runs are paired by a number")
        other = groups.setdefault(name, {}).setdefault(seed, run)
        if other is not run:
            unequal = list(_unequal(other, run))
            hints = [f"compare --within {key}, or " for key in unequal if _separates(runs, key, by)]
            hints += [f"compare --by {key}, or " for key in unequal if len(unequal) == 1]
            raise InputError(
                f"{other.folder.path} and {run.folder.path}: both are {name} with seed {seed}: "
                f"{''.join(hints[:1])}name only one of the two runs"
            )
    return groups


def _separates(runs: Sequence[Run], key: str, by: str) -> bool:
    """Return True if runs with an equal value of a key have different values of ``by``."""
    values = {tuple(shown(run.setting(each)) for each in (key, by)) for run in runs}
    return len(values) > len({value for value, _ in values})


def _check_settings(
    runs: Sequence[Run], groups: Mapping[str, Mapping[int, Run]], by: str, allow: Sequence[str]
) -> None:
    """Runs of one group may differ only in the seed, and runs of two groups also in ``by``."""
    for run in runs:
        first = next(iter(groups[shown(run.setting(by))].values()))
        for other, allowed in ((first, allow), (runs[0], [*allow, by])):
            if unequal := _unequal(other, run, allowed):
                key, pair = next(iter(unequal)), f"{other.folder.path} and {run.folder.path}"
                values = [f"{key} ({shown(a)}, {shown(b)})" for key, (a, b) in unequal.items()]
                raise InputError(
                    f"{pair} differ in {listed(values)}: compare --by {key}, or permit it with --allow {key}"
                )


def settings_of(run: Run) -> dict[str, Any]:
    """Settings that affect the result, except for the seed, by their names as in `shortened`."""
    flat = significant(run.config) | {key: run.setting(key) for key in _LENGTH}
    return {shortened(key): value for key, value in flat.items() if key != "seed_everything"}


def shortened(key: str) -> str:
    """A dotted key of config.yaml without ``init_args`` and ``class_path``."""
    return ".".join(
        part for part in SHORT.get(key, key).split(".") if part not in ("init_args", "class_path")
    )


def _unequal(first: Run, second: Run, allowed: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Values of both runs by the settings that differ, except for the allowed ones and those below them."""
    one, other = settings_of(first), settings_of(second)
    return {
        key: (one.get(key), other.get(key))
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key) and not _is_within(key, allowed)
    }


def _is_within(key: str, others: Sequence[str]) -> bool:
    """Return True if a setting is equal to one of the others or below it."""
    return any(f"{key}.".startswith(f"{shortened(other)}.") for other in others)


def _check_finished(runs: Sequence[Run]) -> None:
    for run in runs:
        if (status := run.status) != "finished":
            continued = f"continue it with ssl-vision fit {shlex.quote(str(run.folder.path))}"
            advice = "wait until it has finished" if status == "running" else continued
            raise InputError(f"{run.folder.path} is not finished (epoch {run.epoch}): {advice}")


def _differing(
    groups: Mapping[str, Mapping[int, Run]], by: str, allow: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Settings other than ``by`` that at least two groups have and in which they differ.

    Allowed settings are included if any two runs differ, with None for runs that do not have them.
    """
    settings = {name: list(map(settings_of, members.values())) for name, members in groups.items()}
    keys = {key for members in settings.values() for flat in members for key in flat}
    differing = {}
    for key in sorted(keys - {shortened(by)}):
        values = {
            name: {shown(flat.get(key)): flat.get(key) for flat in members}
            for name, members in settings.items()
            if key in members[0] or _is_within(key, allow)
        }
        if len({text for each in values.values() for text in each}) > 1:
            differing[key] = {
                name: tuple(each.values()) if len(each) > 1 else next(iter(each.values()))
                for name, each in values.items()
            }
    return differing
