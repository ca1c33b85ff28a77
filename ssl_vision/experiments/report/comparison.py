"""Paired differences between the settings of several runs."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ssl_vision.descriptions import described
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.comparison_tables import group_table, notes, pair_table, summaries, title
from ssl_vision.experiments.compare.paired_comparison import Comparison, compare, shortened
from ssl_vision.experiments.report.markup import COLOURS, macros, number, render
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.runs.config import significant
from ssl_vision.runs.registry import Run

_VALIDATED = "val/knn_top1"


def section(runs: Sequence[Run], by: str | None = None) -> Section:
    """Means with intervals and paired differences, as ``ssl-vision compare`` computes them.

    Compares the accuracies in evaluation.json if every run has them, and those of the last validation
    otherwise.

    Args:
        runs: runs to compare.
        by: key whose values are compared; None selects the objective, or else the only key that differs.

    Raises:
        Missing: The runs cannot be paired; the message says why.
    """
    by = by or _key(runs)
    comparisons: list[Comparison] = []
    reasons: list[str] = []
    for metric in (*(each.name for each in described("headline")), _VALIDATED):
        if metric == _VALIDATED and comparisons:
            break
        try:
            comparisons.append(compare(runs, by=by, metric=metric))
        except InputError as error:
            reasons.append(str(error))
    if not comparisons:
        raise Missing(reasons[-1])
    lead = (
        "Runs with the same seed share initial weights, batches and views, so their difference is due to the "
        "setting."
    )
    if any(len(comparison.seeds) > 1 for comparison in comparisons):
        lead += " An interval that excludes 0 indicates a difference."
    parts: list[dict[str, Any]] = []
    shown: set[str] = set()
    for comparison in comparisons:
        sentences = [each for each in (*summaries(comparison), *notes(comparison)) if each not in shown]
        shown.update(sentences)
        parts.append(
            {
                "title": title(comparison),
                "chart": _chart(comparison) if len(comparison.seeds) > 1 else "",
                "sentences": sentences,
                "groups": group_table(comparison),
                "pairs": pair_table(comparison),
            }
        )
    content = render("comparison.html", comparisons=parts, unavailable=list(dict.fromkeys(reasons)))
    return Section("comparison", "Paired comparison", lead, content)


def _key(runs: Sequence[Run]) -> str:
    """Return the key in which the runs differ: the objective, or the only other setting.

    Raises:
        Missing: The runs do not differ, or differ in several settings.
    """
    if len({run.setting("objective") for run in runs}) > 1:
        return "objective"
    settings = [significant(run.config) for run in runs]
    keys = sorted({key for values in settings for key in values} - {"seed_everything"})
    differing = [shortened(key) for key in keys if len({str(values.get(key)) for values in settings}) > 1]
    if not differing:
        raise Missing("the runs differ only in the seed")
    if len(differing) > 1:
        raise Missing(f"the runs differ in {', '.join(differing[:5])}: choose one of them with --by KEY")
    return differing[0]


def _chart(comparison: Comparison) -> Markup:
    """Draw a point for each run, and the mean of each setting with its interval."""
    names = [group.name for group in comparison.groups]
    single: dict[str, Any] = {
        "x": [number(value) for group in comparison.groups for value in group.values],
        "y": [group.name for group in comparison.groups for _ in group.values],
        "text": [f"seed {seed}" for _ in names for seed in comparison.seeds],
        "mode": "markers",
        "marker": {"color": COLOURS[1], "size": 9, "symbol": "circle-open", "line": {"width": 2}},
        "hovertemplate": "%{text}: %{x}<extra></extra>",
    }
    half = []
    for group in comparison.groups:
        interval = comparison.interval(group)
        half.append(0.0 if interval is None else (interval[1] - interval[0]) / 2)
    means: dict[str, Any] = {
        "x": [number(group.mean) for group in comparison.groups],
        "y": names,
        "mode": "markers",
        "marker": {"color": COLOURS[0], "size": 11, "symbol": "diamond"},
        "error_x": {"type": "data", "array": [number(each) for each in half], "thickness": 2},
        "hovertemplate": "mean of %{y}: %{x}<extra></extra>",
    }
    layout = {"yaxis": {"type": "category", "autorange": "reversed"}}
    about = "; ".join(f"{group.name} {group.mean:.4g}" for group in comparison.groups)
    return macros.chart(
        "Mean and interval", [means, single], layout, about=about, note="Each circle is one seed"
    )
