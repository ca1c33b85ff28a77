"""Paired differences between the settings of several runs."""

from collections.abc import Sequence
from typing import Any

from ssl_vision.compare.comparison import Comparison, compare
from ssl_vision.compare.keys import shortened
from ssl_vision.compare.metric_selector import MetricSelector
from ssl_vision.compare.summary import group_table, notes, pair_table, summaries, title
from ssl_vision.descriptions import described
from ssl_vision.errors import InputError
from ssl_vision.report.markup import COLOURS, chart, number, table, text
from ssl_vision.report.page import Missing, Section
from ssl_vision.runs.folder import significant
from ssl_vision.runs.registry import Run

_VALIDATED = "val/knn_top1"


def section(runs: Sequence[Run], by: str | None = None) -> Section:
    """Means with their intervals and differences seed by seed, as ``ssl-vision compare`` has them.

    It takes the accuracies of evaluation.json where every run has them, else those of the last validation.

    Args:
        runs: which.
        by: the key whose values are compared; None takes the objective, or else the one key that differs.

    Raises:
        Missing: the runs cannot be paired; the message says why.
    """
    by = by or _key(runs)
    found: list[Comparison] = []
    reasons: list[str] = []
    for metric in (*(each.name for each in described("headline")), _VALIDATED):
        if metric == _VALIDATED and found:
            break
        try:
            found.append(compare(runs, by=by, selector=MetricSelector(metric=metric)))
        except InputError as error:
            reasons.append(str(error))
    if not found:
        raise Missing(reasons[-1])
    parts = [f'<p class="missing">{text(reason)}.</p>' for reason in dict.fromkeys(reasons)]
    lead = (
        "Runs of one seed share their initial weights, batches and crops, so that their difference is the "
        "setting's. A difference counts where its interval leaves 0 out."
    )
    return Section("comparison", "Paired comparison", lead, "".join(map(_tables, found)) + "".join(parts))


def _key(runs: Sequence[Run]) -> str:
    """What the runs differ in: the objective, or the one other setting.

    Raises:
        Missing: they differ in nothing, or in several settings.
    """
    if len({run.setting("objective") for run in runs}) > 1:
        return "objective"
    settings = [significant(run.config) for run in runs]
    keys = sorted({key for own in settings for key in own} - {"seed_everything"})
    other = [shortened(key) for key in keys if len({str(own.get(key)) for own in settings}) > 1]
    if not other:
        raise Missing("the runs differ in nothing but the seed")
    if len(other) > 1:
        raise Missing(f"the runs differ in {', '.join(other[:5])}: choose what is compared with --by KEY")
    return other[0]


def _tables(comparison: Comparison) -> str:
    (head, *groups), (heads, *pairs) = group_table(comparison), pair_table(comparison)
    words = "".join(f"<li>{text(line)}</li>" for line in (*summaries(comparison), *notes(comparison)))
    return (
        f"<h3>{text(title(comparison))}</h3>{_chart(comparison)}<ul>{words}</ul>"
        f"{table(head, groups, caption='Each setting')}{table(heads, pairs, caption='Differences')}"
    )


def _chart(comparison: Comparison) -> str:
    """A point for each run, and each setting's mean with its interval."""
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
    return chart("Mean and interval", [means, single], layout, about=about, note="a circle for each seed")
