"""Tables of what three papers vary: RECLAIM, gradient dissipation, and the unified gradient."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from rows import ACCURACIES, Groups, Row, difference_cell, heading, mean_cell, rows_of

NORMS = ("gradient/alignment_norm", "gradient/uniformity_norm")
DISSIPATION = ("gradient/gate", *NORMS)
"""Measurements of the paper on gradient dissipation."""
CONJECTURES = ("gradient/angle_gap", "gradient/hardest_share", "gradient/lemma_share")
"""Measurements for Conjectures 1 to 3 of the paper on the unified gradient."""
UNIFIED_GRADIENT = {"margin": 0.3, "negatives_temperature": 0.05, "ratio": 1.0}
PARTS = ("gate", "alignment part", "uniformity part")
CONJECTURE_HEADINGS = ("angle gap", "hardest share", "lemma share")


def reclaim(metrics: Sequence[str], curves: Sequence[str] = ()) -> list[list[str]]:
    """Return means over seeds for each kind and number of negatives and weight λ of RECLAIM.

    Args:
        metrics: names below ``test/``, which are the columns.
        curves: logged metrics whose last values are further columns.
    """
    groups = reclaim_groups()
    lines = [["negatives of RECLAIM", "λ", *map(heading, (*metrics, *curves)), "seeds"]]
    for (kind, weight), group in groups.items():
        rows = list(group.values())
        values = [[row["test"].get(f"test/{metric}") for row in rows] for metric in metrics]
        cells = [mean_cell(each, metric) for each, metric in zip(values, metrics, strict=True)]
        cells += [f"{fmean(row['curves'][metric][-1][1] for row in rows):z.3f}" for metric in curves]
        lines.append([kind, weight.removeprefix("λ = "), *cells, str(len(rows))])
    return lines if groups else []


def reclaim_differences(metrics: Sequence[str], varied: Literal["negatives", "weight"]) -> list[list[str]]:
    """Return the differences from λ = 0 within each seed in points, with 95 % intervals (Student's t).

    Args:
        metrics: names below ``test/`` of accuracies, a line each.
        varied: the columns: all kinds of negatives at λ = 0.1, or all λ with the 100 nearest negatives.
    """
    groups = reclaim_groups()
    start = groups.pop(("none", "λ = 0"), {})
    if varied == "negatives":
        columns = {kind: group for (kind, weight), group in groups.items() if weight == "λ = 0.1"}
    else:
        columns = {weight: group for (kind, weight), group in groups.items() if kind == "100 nearest"}
    lines = [["difference from InfoNCE", *columns]]
    for metric in metrics:
        cells = [difference_cell(group, start, metric) for group in columns.values()]
        lines.append([heading(metric).removesuffix(" %"), *cells])
    return lines if columns and start else []


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
        cells = [mean_cell(each, "knn_top1") for each in (*ends, lost)]
        lines.append([objective, *cells, *norms, str(len(rows))])
    return lines if groups else []


def unified_gradient(term: str) -> list[list[str]]:
    """Return accuracies and the last values of `CONJECTURES` for each value of a term, means over seeds.

    Args:
        term: ``"margin"``, ``"negatives_temperature"`` or ``"ratio"``; the other two have their default.
    """
    groups = varied(term)
    lines = [[term.removeprefix("negatives_"), *map(heading, ACCURACIES), *CONJECTURE_HEADINGS, "seeds"]]
    for value, rows in groups.items():
        accuracies = [
            mean_cell([row["test"].get(f"test/{metric}") for row in rows], metric) for metric in ACCURACIES
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
