"""Paired comparison of finished runs: check that they are comparable, group and pair them, test."""

import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import MetricDescription
from ssl_vision.errors import InputError, check
from ssl_vision.experiments.compare.keys import check_known, full_key, is_metric, order, shortened, shown
from ssl_vision.experiments.compare.metric_selector import MetricSelector, shared_conditions
from ssl_vision.experiments.compare.statistics import Paired, holm, paired, t_interval
from ssl_vision.runs.config import significant
from ssl_vision.runs.registry import Run

VALIDATED = "val/knn_top1"
"""The metric by which `best_values` chooses."""

_LENGTH = ("trainer.max_epochs", "trainer.max_steps")
"""Settings that a continued run may change, but that must be equal in a comparison."""


@dataclass(frozen=True)
class Group:
    """The runs of one setting, one for each seed, and their values in the order of the seeds."""

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
    selector: MetricSelector
    metric: MetricDescription
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
    pairs: tuple[Pair, ...]
    tests: int
    """Number of pairs for which p is corrected, in this comparison and others of the same family."""
    baselines: Mapping[str, float]
    """Means of the untrained network and of raw pixels where they were evaluated; accuracies in percent."""

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
    selector: MetricSelector | None = None,
    baseline: str | None = None,
    allow: Sequence[str] = (),
    alpha: float = 0.05,
) -> Comparison:
    """Compare groups of runs seed by seed.

    Args:
        runs: finished runs, evaluated if the metric is in evaluation.json.
        by: key whose values define the groups: ``objective``, any key of config.yaml, or the last part of
            one, such as ``temperature``.
        selector: value that is compared; the kNN accuracy by default.
        baseline: group with which all others are compared; None compares every two groups.
        allow: further keys that may differ.
        alpha: significance level; intervals contain the mean with probability 1 − alpha.

    Raises:
        InputError: The runs cannot be compared; the message says why and how to fix it.
    """
    selector = selector or MetricSelector()
    check("alpha", alpha, at_least=1e-9, below=1)
    if is_metric(by) or by in ("seed", "seed_everything", "name"):
        raise InputError(f"--by {by}: expected a setting; runs are paired by their seeds")
    by, *allow = (full_key(key, runs) for key in (by, *allow))
    for key in (by, *allow):
        check_known(key, runs)
    groups = _grouped(runs, by)
    _check_settings(runs, groups, by, allow)
    _check_finished(runs)
    rows = [selector.select(run) for run in runs]
    conditions = shared_conditions(runs, rows)
    row_of = {id(run): row for run, row in zip(runs, rows, strict=True)}
    if baseline is not None and baseline not in groups:
        raise InputError(f"--baseline {baseline}: no such group{closest_match(baseline, list(groups))}")
    seeds = sorted(set.intersection(*(set(members) for members in groups.values())))
    if not seeds:
        each = "; ".join(f"{name}: {', '.join(map(str, sorted(own)))}" for name, own in groups.items())
        raise InputError(f"no seed is in all groups ({each}): train the same seeds in each")
    metric = selector.description(rows)
    ordered = []
    for name, members in groups.items():
        own = tuple(members[seed] for seed in seeds)
        values = tuple(metric.scale * float(row_of[id(run)]["value"]) for run in own)
        for run, value in zip(own, values, strict=True):
            if not math.isfinite(value):
                raise InputError(f"{run.folder.path}: {selector.metric} is {value}, which cannot be compared")
        ordered.append(Group(name, own, values))
    ordered.sort(key=lambda group: -group.mean)
    (pairs,) = _tested([_couples(ordered, baseline)], alpha)
    return Comparison(
        by=by,
        selector=selector,
        metric=metric,
        conditions=conditions,
        alpha=alpha,
        seeds=tuple(seeds),
        left_out={name: out for name, own in groups.items() if (out := tuple(sorted(set(own) - set(seeds))))},
        differing=_differing(groups, _full_keys(runs, [by]), _full_keys(runs, allow)),
        groups=tuple(ordered),
        pairs=pairs,
        tests=len(pairs),
        baselines={
            title: metric.scale * value for title, value in selector.baselines(runs, conditions).items()
        },
    )


def compare_within(runs: Sequence[Run], *, within: str, by: str, **options: Any) -> dict[str, Comparison]:
    """Compare groups of runs within each value of a further setting, with one Holm correction for all tests.

    Args:
        runs: finished runs, as for `compare`.
        within: key whose values separate the comparisons. Values that only one group has are left out.
        by: key whose values define the groups.
        options: further arguments of `compare`.

    Returns:
        The comparison at each value, numbers in ascending order.

    Raises:
        InputError: as `compare`, or no value has two groups.
    """
    within, by = (full_key(key, runs) for key in (within, by))
    check_known(within, runs)
    members: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: order(run.setting(within))):
        members.setdefault(shown(run.setting(within)), []).append(run)
    several = {
        value: own for value, own in members.items() if len({shown(run.setting(by)) for run in own}) > 1
    }
    if not several:
        raise InputError(f"--within {within}: no value has runs that differ in {by}")
    comparisons = {value: compare(own, by=by, **options) for value, own in several.items()}
    families = [[(pair.first, pair.second) for pair in each.pairs] for each in comparisons.values()]
    first, count = next(iter(comparisons.values())), sum(map(len, families))
    tested = _tested(families, first.alpha)
    return {
        value: replace(each, pairs=pairs, tests=count)
        for (value, each), pairs in zip(comparisons.items(), tested, strict=True)
    }


def best_values(runs: Sequence[Run], *, within: str, by: str) -> dict[str, str]:
    """Return the value of a setting at which each group has the highest kNN accuracy in its last validation.

    Accuracies are means over the seeds. The result is empty if a run has no validation on images that are
    neither trained on nor tested.
    """
    within, by = (full_key(key, runs) for key in (within, by))
    accuracies: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        accuracy = run.last(VALIDATED)
        if accuracy is None or run.validated_on == "test images":
            return {}
        values = accuracies.setdefault(shown(run.setting(by)), {})
        values.setdefault(shown(run.setting(within)), []).append(accuracy)
    return {name: max(values, key=lambda value: fmean(values[value])) for name, values in accuracies.items()}


def _couples(groups: Sequence[Group], baseline: str | None) -> list[tuple[Group, Group]]:
    if baseline is None:
        return list(itertools.combinations(groups, 2))
    base = next(group for group in groups if group.name == baseline)
    return [(group, base) for group in groups if group is not base]


def _tested(families: Sequence[Sequence[tuple[Group, Group]]], alpha: float) -> list[tuple[Pair, ...]]:
    """Test the pairs of groups of each comparison, with one Holm correction for all of them."""
    couples = [couple for family in families for couple in family]
    results = [paired(a.values, b.values, alpha=alpha, tests=len(couples)) for a, b in couples]
    corrected = iter(holm([result.t_p for result in results if result.t_p is not None]))
    pairs = iter(
        [
            Pair(a, b, result, None if result.t_p is None else next(corrected))
            for (a, b), result in zip(couples, results, strict=True)
        ]
    )
    return [tuple(itertools.islice(pairs, len(family))) for family in families]


def _grouped(runs: Sequence[Run], by: str) -> dict[str, dict[int, Run]]:
    """Runs by group, then by seed."""
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        seed = run.setting("seed")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InputError(f"{run.folder.path}: its seed is {seed}: runs are paired by a number")
        members = groups.setdefault(shown(run.setting(by)), {})
        if seed in members:
            other = members[seed]
            keys = [shortened(key) for key in _unequal(_settings(other), _settings(run))]
            more = f" and differ in {_some(keys)}" if keys else ""
            hint = f"compare --within {keys[0]}, or " if keys else ""
            raise InputError(
                f"{other.folder.path} and {run.folder.path}: both are {shown(run.setting(by))} with seed "
                f"{seed}{more}: {hint}name only one of the two runs"
            )
        members[seed] = run
    if len(groups) < 2:
        count = (
            "there is one run" if len(runs) == 1 else f"all {len(runs)} runs have it as {next(iter(groups))}"
        )
        raise InputError(f"--by {by}: {count}: nothing to compare it with")
    return groups


def _check_settings(
    runs: Sequence[Run], groups: Mapping[str, Mapping[int, Run]], by: str, allow: Sequence[str]
) -> None:
    """Runs of one group may differ only in the seed, and runs of two groups also in ``by``."""
    allowed = _full_keys(runs, allow)
    for name, members in groups.items():
        first, *others = members.values()
        for run in others:
            if keys := _unequal(_settings(first), _settings(run), allowed=allowed):
                key = shortened(keys[0])
                raise InputError(
                    f"{_difference(first, run, keys)}, and both are {name}: "
                    f"compare --by {key}, or name only one of the two runs"
                )
    allowed += _full_keys(runs, [by])
    for run in runs:
        if keys := _unequal(_settings(runs[0]), _settings(run), allowed=allowed):
            options = " ".join(f"--allow {shortened(key)}" for key in keys[:3])
            raise InputError(
                f"{_difference(runs[0], run, keys)}: compare runs that differ only in {by}"
                f"{'' if len(keys) > 3 else f', or allow it with {options}'}"
            )


def _settings(run: Run) -> dict[str, Any]:
    """Settings that affect the result, except for the seed."""
    flat = significant(run.config) | {key: run.setting(key) for key in _LENGTH}
    flat.pop("seed_everything", None)
    return flat


def _full_keys(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """Full keys in the configs of the runs."""
    return sorted({full for key in keys for run in runs if (full := run.whole_key(key))})


def _unequal(
    first: Mapping[str, Any], second: Mapping[str, Any], *, allowed: Sequence[str] = ()
) -> list[str]:
    """Keys that differ and are neither equal to nor below one of the allowed keys."""
    return [
        key
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key) and not _is_within(key, allowed)
    ]


def _is_within(key: str, others: Sequence[str]) -> bool:
    """Return True if a key is equal to one of the others or below it."""
    return any(key == other or key.startswith(f"{other}.") for other in others)


def _difference(first: Run, second: Run, keys: Sequence[str]) -> str:
    """State in which settings two runs differ: up to three keys, and the number of others."""
    settings, other_settings = _settings(first), _settings(second)
    named = [
        f"{shortened(key)} ({shown(settings.get(key))}, {shown(other_settings.get(key))})" for key in keys
    ]
    return f"{first.folder.path} and {second.folder.path} differ in {_some(named)}"


def _some(names: Sequence[str]) -> str:
    """Join the first three names, and count the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_finished(runs: Sequence[Run]) -> None:
    for run in runs:
        status = run.status
        if status == "running":
            raise InputError(
                f"{run.folder.path} is still being trained (epoch {run.epoch}): wait until it has finished"
            )
        if status != "finished":
            folder, epochs = shlex.quote(str(run.folder.path)), run.setting("epochs")
            of = f" of {epochs}" if isinstance(epochs, int) and epochs > 0 else ""
            raise InputError(
                f"{run.folder.path} stopped after {run.epoch}{of} epochs: continue it "
                f"with ssl-vision fit {folder}"
            )


def _differing(
    groups: Mapping[str, Mapping[int, Run]], compared: Sequence[str], allowed: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Settings other than the compared ones that at least two groups have and in which they differ.

    Allowed settings are included if any two runs differ, with None for runs that do not have them.
    """
    settings = {name: list(map(_settings, members.values())) for name, members in groups.items()}
    own_keys = {*compared, *(f"{key}.class_path" for key in compared)}
    differing = {}
    for key in sorted({key for members in settings.values() for flat in members for key in flat} - own_keys):
        values = {}
        for name, members in settings.items():
            if key in members[0] or _is_within(key, allowed):
                values[name] = {shown(flat.get(key)): flat.get(key) for flat in members}
        if len({text for each in values.values() for text in each}) > 1:
            differing[shortened(key)] = {
                name: tuple(each.values()) if len(each) > 1 else next(iter(each.values()))
                for name, each in values.items()
            }
    return differing
