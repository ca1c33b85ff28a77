"""Tables of README and docs/results.md, made from the rows that ``benchmarks/results.py collect`` writes."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import choosing
from provenance import RESULTS

from ssl_vision.compare.statistics import holm, paired
from ssl_vision.descriptions import description_of

NORMS = ("gradient/alignment_norm", "gradient/uniformity_norm")
DISSIPATION = ("gradient/gate", *NORMS)
"""Measurements of the paper on gradient dissipation."""
CONJECTURES = ("gradient/angle_gap", "gradient/hardest_share", "gradient/lemma_share")
"""Measurements for Conjectures 1 to 3 of the paper on the unified gradient."""
CRITIC = ("train/critic_gap", "train/same_class_share")
"""Measurements of RECLAIM's critic and negatives."""
ACCURACIES = ("knn_top1", "linear_top1")
GEOMETRY = ("alignment", "uniformity", "tolerance", "sensitivity", "rankme")

Row = dict[str, Any]
Setting = tuple[str, str]
"""What distinguishes runs: a method and an objective, or negatives and weight of RECLAIM."""

Groups = dict[Setting, dict[int, Row]]
"""Rows by setting and seed."""


def means(names: Sequence[str], metrics: Sequence[str]) -> str:
    """Return a table of means and standard deviations over seeds, a line for each method and objective.

    Args:
        names: files of rows.
        metrics: metrics on the test split at the encoder, which are the columns.
    """
    lines = [["method", "objective", *map(_heading, metrics), "seeds"]]
    for (method, objective), group in settings(names).items():
        values = [[row["test"].get(f"test/{metric}") for row in group.values()] for metric in metrics]
        cells = [_mean(each, metric) for each, metric in zip(values, metrics, strict=True)]
        lines.append([method, objective, *cells, str(len(group))])
    return _markdown(lines)


def differences(groups: Groups, pairs: Sequence[tuple[Setting, Setting]], metric: str) -> str:
    """Return a table of the differences within each seed between pairs of settings.

    The p values are those of paired t tests, corrected for the number of pairs in the table (Holm 1979).

    Args:
        groups: rows by setting and seed.
        pairs: settings that are compared, first − second; those without rows are left out.
        metric: metric on the test split at the encoder.
    """
    description = description_of(metric)
    pairs = [pair for pair in pairs if groups.keys() >= set(pair)]
    compared = []
    for first, second in pairs:
        seeds = sorted(groups[first].keys() & groups[second].keys())
        values = (
            [description.scale * groups[each][seed]["test"][f"test/{metric}"] for seed in seeds]
            for each in (first, second)
        )
        compared.append(paired(*values, tests=len(pairs)))
    corrected = holm([1.0 if each.t_p is None else each.t_p for each in compared])
    lines = [["first", "second", "first − second", "95 % interval", "Holm p", "resolvable"]]
    for (first, second), result, p in zip(pairs, compared, corrected, strict=True):
        low, high = result.interval or (math.nan, math.nan)
        resolvable = "" if result.resolvable is None else f"{result.resolvable:.2f}"
        shown = [f"{result.mean:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{p:.2g}", resolvable]
        lines.append([", ".join(first), ", ".join(second), *(cell.replace("-", "−") for cell in shown)])
    return _markdown(lines)


def few_labels() -> str:
    """Return a table of the demo: accuracy with few and with all labels, beside the baselines."""
    runs = json.loads((RESULTS / "demo.json").read_text())["runs"]
    lines = [["test accuracy, %", *FEW_LABELS.values()]]
    for source, name in BASELINES.items():
        values = [
            [
                row["value"]
                for run in runs
                for row in run["rows"]
                if (row["features"], row["layer"]) == source and (row["metric"], row.get("labels")) == column
            ]
            for column in FEW_LABELS
        ]
        cells = (_mean(each, metric) for each, (metric, _) in zip(values, FEW_LABELS, strict=True))
        lines.append([name, *cells])
    return _markdown(lines)


def reclaim(metrics: Sequence[str], curves: Sequence[str] = ()) -> list[list[str]]:
    """Return means over seeds for each kind and number of negatives and weight λ of RECLAIM.

    Args:
        metrics: names below ``test/``, which are the columns.
        curves: logged metrics whose last values are further columns.
    """
    groups = reclaim_groups()
    lines = [["negatives of RECLAIM", "λ", *map(_heading, (*metrics, *curves)), "seeds"]]
    for (kind, weight), group in groups.items():
        rows = list(group.values())
        values = [[row["test"].get(f"test/{metric}") for row in rows] for metric in metrics]
        cells = [_mean(each, metric) for each, metric in zip(values, metrics, strict=True)]
        cells += [f"{fmean(row['curves'][metric][-1][1] for row in rows):z.3f}" for metric in curves]
        lines.append([kind, weight.removeprefix("λ = "), *cells, str(len(rows))])
    return lines if groups else []


def reclaim_groups() -> Groups:
    """Return the rows of RECLAIM by kind and number of negatives and weight, in ascending order of both."""
    groups: dict[tuple[float, str, int], dict[int, Row]] = defaultdict(dict)
    for row in rows_of("reclaim_*"):
        kind, number = row["negatives"], row["nearest"] if row["negatives"] == "nearest" else 0
        key = (row["weight"], kind, number) if row["weight"] else (0, "none", 0)
        groups[key][row["seed"]] = row
    return {
        (f"{number} {kind}" if number else kind, f"λ = {weight:g}"): group
        for (weight, kind, number), group in sorted(groups.items())
    }


def dissipation() -> list[list[str]]:
    """Return best and last validation accuracy, and the first and last gate and norms, means over seeds."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of("gradient_dissipation"):
        groups[row["objective"]].append(row)
    lines = [["objective", "best kNN %", "last kNN %", "best − last", *PARTS, "seeds"]]
    for objective, rows in sorted(groups.items()):
        accuracies = [[value for _, value in row["curves"]["val/knn_top1"]] for row in rows]
        ends = [max(each) for each in accuracies], [each[-1] for each in accuracies]
        lost = [best - last for best, last in zip(*ends, strict=True)]
        norms = [
            " to ".join(f"{fmean(row['curves'][metric][end][1] for row in rows):.3f}" for end in (0, -1))
            if all(metric in row["curves"] for row in rows)
            else ""
            for metric in DISSIPATION
        ]
        cells = [_mean(each, "knn_top1") for each in (*ends, lost)]
        lines.append([objective, *cells, *norms, str(len(rows))])
    return lines if groups else []


def unified_gradient(term: str) -> list[list[str]]:
    """Return accuracies and the last values of `CONJECTURES` for each value of a term, means over seeds.

    Args:
        term: ``"margin"``, ``"negatives_temperature"`` or ``"ratio"``; the other two have their default.
    """
    groups = varied(term)
    lines = [[term.removeprefix("negatives_"), *map(_heading, ACCURACIES), *CONJECTURE_HEADINGS, "seeds"]]
    for value, rows in groups.items():
        accuracies = [
            _mean([row["test"].get(f"test/{metric}") for row in rows], metric) for metric in ACCURACIES
        ]
        measured = [f"{fmean(row['curves'][metric][-1][1] for row in rows):.3f}" for metric in CONJECTURES]
        lines.append([f"{value:g}", *accuracies, *measured, str(len(rows))])
    return lines if groups else []


def varied(term: str) -> dict[float, list[Row]]:
    """Return the rows of the unified gradient for each value of a term, in ascending order.

    Args:
        term: ``"margin"``, ``"negatives_temperature"`` or ``"ratio"``; the other two have their default.
    """
    groups: dict[float, list[Row]] = defaultdict(list)
    for row in rows_of("unified_gradient_*"):
        if all(row[other] == value for other, value in UNIFIED_GRADIENT.items() if other != term):
            groups[row[term]].append(row)
    return dict(sorted(groups.items()))


def temperatures(name: str) -> list[list[str]]:
    """Return the kNN accuracy on held-out training images at each temperature, with the best in bold.

    Args:
        name: file of rows, one for each objective and temperature.
    """
    accuracies = {
        (row["objective"], row["temperature"]): row["validation"]["knn_top1"] for row in rows_of(name)
    }
    columns = sorted({temperature for _, temperature in accuracies})
    lines = [["objective", *(f"τ = {temperature:g}" for temperature in columns)]]
    for objective in sorted({objective for objective, _ in accuracies}):
        values = [accuracies.get((objective, temperature)) for temperature in columns]
        best = max(value for value in values if value is not None)
        cells = [_mean([value], "knn_top1") for value in values]
        marked = [f"**{cell}**" if value == best else cell for cell, value in zip(cells, values, strict=True)]
        lines.append([objective, *marked])
    return lines if accuracies else []


def recipes(core_seconds: float) -> list[list[str]]:
    """Return the recipes of cpu_recipes.py that were trained for a time, the most accurate first.

    Args:
        core_seconds: the time of each.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows_of("cpu_recipes"):
        if row["core_seconds"] == core_seconds:
            groups[row["recipe"]].append(row)
    means = {name: fmean(row["knn_top1"] for row in rows) for name, rows in groups.items()}
    lines = [["recipe", "epochs", "kNN (k = 10) %", "difference from start", "seeds"]]
    for name, accuracy in sorted(means.items(), key=lambda item: -item[1]):
        values = [row["knn_top1"] for row in groups[name]]
        difference = f"{100 * (accuracy - means['start']):+.2f}".replace("-", "−") if name != "start" else ""
        epochs = str(groups[name][0]["epochs"])
        lines.append([name, epochs, _mean(values, "knn_top1"), difference, str(len(values))])
    return lines if groups else []


def hour(names: Sequence[str]) -> list[list[str]]:
    """Return epochs, minutes of one core, and test accuracies of the recipe for an hour and lightly's loop.

    Args:
        names: files of rows.
    """
    lines = [["recipe", "epochs", "minutes", *map(_heading, HOUR_METRICS), "seeds"]]
    for (method, objective), group in settings(names).items():
        rows = list(group.values())
        minutes = fmean(row.get("cpu_seconds") or row["seconds"] for row in rows) / 60
        accuracies = [
            _mean([row["test"].get(f"test/{metric}") for row in rows], metric) for metric in HOUR_METRICS
        ]
        recipe = f"{method}, {objective}"
        lines.append([recipe, str(rows[0]["epochs"]), f"{minutes:.0f}", *accuracies, str(len(rows))])
    return lines


def rows_of(pattern: str) -> list[Row]:
    """Return the rows of all files whose name has a pattern."""
    return [row for file in sorted(RESULTS.glob(f"{pattern}.json")) for row in json.loads(file.read_text())]


def settings(names: Sequence[str]) -> Groups:
    """Return the rows by method and objective, and by seed."""
    groups: Groups = defaultdict(dict)
    for row in (row for name in names for row in json.loads((RESULTS / f"{name}.json").read_text())):
        groups[row["method"], row["objective"]][row["seed"]] = row
    return dict(sorted(groups.items()))


def _heading(metric: str) -> str:
    return HEADINGS.get(metric) or description_of(metric).heading


def _mean(found: Sequence[float | None], metric: str) -> str:
    values = [value for value in found if value is not None]
    if not values:
        return ""
    description = description_of(metric)
    deviation = f" ± {description.shown(stdev(values))}" if len(values) > 1 else ""
    return description.shown(fmean(values)).replace("-", "−") + deviation


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return "*No runs have been recorded yet.*"
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body])


BASELINES = {
    ("trained", "backbone"): "trained backbone",
    ("untrained", "backbone"): "untrained backbone",
    ("pixels", "raw"): "raw pixels",
}
FEW_LABELS = {
    ("linear_top1", "1%"): "linear, 1 % of the labels",
    ("linear_top1", "10%"): "linear, 10 % of the labels",
    ("linear_top1", None): "linear, all labels",
    ("knn_top1", None): "kNN, all labels",
}
LABEL_SHARES = {
    f"label_shares/{share}% labels/logistic_top1": f"{share} % of the labels"
    for share in (1, 5, 10, 20, 30, 50)
} | {"label_shares/logistic_top1": "all labels"}
HEADINGS = LABEL_SHARES | {
    **{f"knn{k}/knn_top1": f"kNN (k = {k}) %" for k in (10, 20)},
    **dict(zip(CRITIC, ("critic gap", "same class"), strict=True)),
}
HOUR, HOUR_METRICS = ("cifar10_cpu", "lightly_cifar10_cpu"), ("knn10/knn_top1", *ACCURACIES)
UNIFIED_GRADIENT = {"margin": 0.3, "negatives_temperature": 0.05, "ratio": 1.0}
PARTS = ("gate", "alignment part", "uniformity part")
CONJECTURE_HEADINGS = ("angle gap", "hardest share", "lemma share")
NARROW = ("methods_cifar10_narrow", "lightly_cifar10_narrow")
DUAL, INFO = "DualTemperature", "InfoNCE"
NARROW_PAIRS = [
    *(((method, DUAL), (method, INFO)) for method in ("SimCLR", "SimCo", "SimMoCo", "MoCo")),
    (("SimCo", DUAL), ("MoCo", INFO)),
    (("SimCo", DUAL), ("MoCo", DUAL)),
    (("SimCo", INFO), ("MoCo", INFO)),
]
OBJECTIVES, STL10 = "objectives_cifar10_narrow", "objectives_stl10"
OBJECTIVES_AND_LIGHTLY = (OBJECTIVES, "lightly_objectives_cifar10")
OBJECTIVE_PAIRS = [
    (("SimCLR", first), ("SimCLR", second))
    for first, second in ((DUAL, INFO), ("DCL", INFO), ("MACL", INFO), ("MACL", "DCL"))
]
RECLAIM_PAIRS = [((f"{k} nearest", "λ = 0.1"), ("none", "λ = 0")) for k in (1, 10, 100, 300)]
TABLES: dict[str, Callable[[], str]] = {
    "few labels": few_labels,
    "accuracy of methods": lambda: means(NARROW, ACCURACIES),
    "geometry of methods": lambda: means(NARROW, GEOMETRY),
    "accuracy of objectives": lambda: means(
        OBJECTIVES_AND_LIGHTLY, ("knn_top1", "knn20/knn_top1", "linear_top1")
    ),
    "geometry of objectives": lambda: means(OBJECTIVES_AND_LIGHTLY, GEOMETRY),
    "differences of objectives by kNN accuracy": lambda: differences(
        settings([OBJECTIVES]), OBJECTIVE_PAIRS, "knn_top1"
    ),
    "differences of objectives by linear accuracy": lambda: differences(
        settings([OBJECTIVES]), OBJECTIVE_PAIRS, "linear_top1"
    ),
    "accuracy of objectives on STL-10": lambda: means([STL10], ACCURACIES),
    "differences of objectives on STL-10": lambda: differences(
        settings([STL10]), OBJECTIVE_PAIRS, "linear_top1"
    ),
    "choosing by linear accuracy": lambda: _markdown(choosing.trust_table("linear_top1")),
    "choosing by kNN accuracy": lambda: _markdown(choosing.trust_table("knn_top1")),
    "choosing with colour jitter by linear accuracy": lambda: _markdown(
        choosing.trust_table("linear_top1", "same")
    ),
    "choosing with colour jitter by kNN accuracy": lambda: _markdown(
        choosing.trust_table("knn_top1", "same")
    ),
    "linear accuracy by temperature": lambda: _markdown(choosing.temperature_table("InfoNCE", "linear_top1")),
    "kNN accuracy by temperature": lambda: _markdown(choosing.temperature_table("InfoNCE", "knn_top1")),
    "temperatures of objectives": lambda: _markdown(temperatures("objectives_temperature_cifar10_narrow")),
    "RECLAIM": lambda: _markdown(reclaim(ACCURACIES, CRITIC)),
    "RECLAIM with few labels": lambda: _markdown(reclaim(list(LABEL_SHARES))),
    "differences of RECLAIM": lambda: differences(reclaim_groups(), RECLAIM_PAIRS, "linear_top1"),
    "recipes for a CPU": lambda: _markdown(recipes(1200)),
    "an hour on two cores": lambda: _markdown(hour(HOUR)),
    "gradient dissipation": lambda: _markdown(dissipation()),
    "margin of the unified gradient": lambda: _markdown(unified_gradient("margin")),
    "temperature of the unified gradient": lambda: _markdown(unified_gradient("negatives_temperature")),
    "ratio of the unified gradient": lambda: _markdown(unified_gradient("ratio")),
    "sensitivity over temperature": lambda: _markdown(choosing.sensitivity_table()),
    "differences of methods": lambda: differences(
        settings(["methods_cifar10_narrow"]), NARROW_PAIRS, "knn_top1"
    ),
}
"""Tables by the name that a page gives."""
