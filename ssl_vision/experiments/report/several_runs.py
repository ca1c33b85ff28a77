"""The report that compares several runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ssl_vision.descriptions import described
from ssl_vision.errors import InputError
from ssl_vision.evaluation.results import Row
from ssl_vision.experiments.compare.comparison_tables import Part, part_of
from ssl_vision.experiments.compare.paired_comparison import Comparison, compare, settings_of
from ssl_vision.experiments.report import curves, explorer
from ssl_vision.experiments.report.accuracies import VALIDATED, clock, conditions, evaluated
from ssl_vision.experiments.report.page import (
    Missing,
    macros,
    make_section,
    render,
    render_template,
)
from ssl_vision.runs.config import below_home, named_settings
from ssl_vision.runs.registry import Run

_PLACES = {"name", "runs_dir"}
"""Keys that differ between all runs."""


def comparison_page(runs: Sequence[Run], by: str | None = None, **options: Any) -> str:
    """The report that compares several runs; that of two runs shows where they weigh negatives differently.

    Args:
        runs: runs to compare.
        by: key whose values are compared.
        options: options of `ReportContext`, with which the images of two runs are embedded.

    Raises:
        InputError: The config of a run cannot be read, or Plotly is not installed.
    """
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [below_home(str(run.folder.path)) for run in runs]
    sections = [
        make_section("curves", "Training curves", lambda: curves.of_runs(runs, names)),
        make_section("comparison", "Paired comparison", lambda: paired_comparison(runs, by)),
        make_section("configuration", "Differences in configuration", lambda: differences(runs, names)),
    ]
    if len(runs) == 2:
        title = "Where the runs weigh negatives differently"
        pair = make_section("temperature", title, lambda: explorer.comparison(runs, names, **options))
        sections.insert(-1, pair)
    subjects = list(dict.fromkeys(f"{run.setting('objective')} on {run.setting('data')}" for run in runs))
    title = ", ".join(subjects) if len(subjects) <= 3 else f"{len(subjects)} settings"
    return render(f"{len(runs)} runs: {title}", _summary(runs, names), sections)


def _summary(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    """Summarise each run in a row of a table."""
    rows = []
    tested = described("headline")
    results = {metric: [evaluated(run, metric.name) for run in runs] for metric in tested}
    differ = {metric for metric in tested if len({conditions(row) for row in results[metric] if row}) > 1}
    columns = ["run", "data", "objective", "seed", "epochs", f"validation {VALIDATED.heading}"]
    columns += [*(f"test {metric.heading}" for metric in tested), "time"]
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        validated = run.last(VALIDATED.logged_name)
        cells = ["–" if validated is None else VALIDATED.shown(validated)]
        cells += [_cell(run, results[metric][place], starred=metric in differ) for metric in tested]
        about = [run.setting(key) for key in ("data", "objective", "seed")]
        time = "–" if run.seconds is None else clock(run.seconds)
        rows.append([name, *about, run.epoch, *cells, time])
    caption = "Last validation, and test results of the backbone by ssl-vision evaluate"
    caption += " with half of their 95 % intervals."
    if differ:
        caption += " * Not comparable: the runs were evaluated on different data or with different options."
    return macros.table(columns, rows, caption=caption)


def _cell(run: Run, row: Mapping[str, Any] | None, *, starred: bool) -> str:
    """The value of a row with its interval, and its epoch if that is not the run's last."""
    if row is None:
        return "–"
    epoch = f" (epoch {row['epoch']})" if row.get("epoch", run.epoch) != run.epoch else ""
    return f"{Row.read(row).text}{epoch}{' *' * starred}"


def paired_comparison(runs: Sequence[Run], by: str | None = None) -> tuple[str, Markup]:
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
    for metric in (*(each.name for each in described("headline")), VALIDATED.logged_name):
        if metric == VALIDATED.logged_name and comparisons:
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
    parts: list[Part] = []
    shown: set[str] = set()
    for comparison in comparisons:
        part = part_of(comparison)
        parts.append(part._replace(sentences=[each for each in part.sentences if each not in shown]))
        shown.update(part.sentences)
    reasons = list(dict.fromkeys(reasons))
    return lead, render_template("comparison.html", comparisons=parts, unavailable=reasons)


def _key(runs: Sequence[Run]) -> str:
    """Return the key in which the runs differ: the objective, or the only other setting.

    Raises:
        Missing: The runs do not differ, or differ in several settings.
    """
    if len({run.setting("objective") for run in runs}) > 1:
        return "objective"
    settings = list(map(settings_of, runs))
    keys = sorted({key for values in settings for key in values})
    differing = [key for key in keys if len({str(values.get(key)) for values in settings}) > 1]
    if not differing:
        raise Missing("the runs differ only in the seed")
    if len(differing) > 1:
        raise Missing(f"the runs differ in {', '.join(differing[:5])}: choose one of them with --by KEY")
    return differing[0]


def differences(runs: Sequence[Run], names: Sequence[str]) -> tuple[str, Markup]:
    """List the keys whose values are not the same in all runs."""
    configs = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for values in configs for key in values if key not in _PLACES)
    lines = [[key, *(values.get(key, "–") for values in configs)] for key in keys]
    lines = [line for line in lines if len(set(line[1:])) > 1]
    content = Markup("<p>All runs have the same configuration.</p>")
    if lines:
        content = macros.table(["key", *names], lines, caption="Values that differ")
    lead = "These settings are not the same in all runs. A dash means that a run does not have the setting."
    return lead, content


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that are not null, as text."""
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in named_settings(config)
        if value is not None
    }
