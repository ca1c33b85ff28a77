"""``ssl-vision choose``: the run with the best value of a metric that needs no test images."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.descriptions import MetricDescription, description_of
from ssl_vision.errors import InputError
from ssl_vision.experiments.compare.runs_table import add_paths
from ssl_vision.runs.config import significant
from ssl_vision.runs.registry import Run, find_runs, readable
from ssl_vision.tables import aligned

FILE = Path(__file__).with_name("evidence.json")
"""The measurements, which ``python benchmarks/choosing.py`` writes."""

Augmentation = Literal["same", "different"]

_LISTED = 5

Metric = Literal["rankme", "effective_rank", "lidar", "uniformity", "alignment", "sensitivity"]

_EXTENDED = ("effective_rank", "lidar")
"""Metrics that validation measures only with ``--metrics.extended true``."""

_OF_TRAINING = (
    "data", "views", "progressive_resizing", "batch_size", "eval_batch_size", "seed", "changed",
)  # fmt: skip
"""Options of data that do not determine which images there are."""


@dataclass(frozen=True)
class Evidence:
    """How well a metric ranked finished runs on one data set by their accuracy on its test images."""

    data: str
    """Class of the data set."""
    augmentation: Augmentation
    """``same`` if all runs have the same augmentation, otherwise ``different``."""
    metric: str
    accuracy: str
    """Metric of ``ssl-vision evaluate``, such as ``linear_top1``."""
    runs: int
    spearman: float
    """Rank correlation, above 0 if better values go with higher accuracy."""
    low: float
    """Lower end of the 95 % bootstrap interval of ``spearman`` over temperatures, which the runs share."""
    high: float
    regret: float
    """Accuracy of the best run minus that of the run with the best value of the metric, in [0, 1]."""
    random_regret: float
    """The same for a run picked at random, on average."""
    gain_low: float
    """Lower end of the 95 % bootstrap interval of ``random_regret`` − ``regret`` over temperatures."""
    gain_high: float


def run(args: Sequence[str]) -> None:
    """Recommend the finished run whose last validation has the best value of a metric, or say why not.

    Metrics use only the validation images; test images do not affect the choice. All but sensitivity need
    no labels. Prints how well the metric ranked the runs of docs/choosing.md by their test accuracy, all of
    them or, if the runs to choose from have the same augmentation, those that do:
    Spearman's correlation and the regret, the accuracy that this choice costs. A run is recommended only if
    the intervals of the correlation and of the gain over a random choice are above 0, on the data set of the
    runs or, if it was not measured, on all measured ones.

    Raises:
        InputError: no finished run has the metric, or the runs differ in data or encoder.
    """
    parser = ArgumentParser(prog="ssl-vision choose", description=run.__doc__)
    add_paths(parser)
    parser.add_argument("--by", type=Metric, default="rankme", help="Metric of the last validation.")
    options = parser.parse_args(list(args))
    metric = description_of(options.by)
    ranked = _ranked(readable(find_runs(options.paths), "choose"), metric)
    lines = [["run", "epoch", metric.heading]]
    for each in ranked[:_LISTED]:
        _, epoch, value = each.curve(metric.logged_name)[-1]
        lines.append([str(each.folder.path), str(epoch + 1), metric.shown(value)])
    print(f"{aligned(lines)}\n")
    augmentation: Augmentation = "same" if len({_views(each) for each in ranked}) == 1 else "different"
    print("\n".join(_advice(ranked, metric, augmentation)))


def _read_evidence(metric: str, data: str, augmentation: Augmentation) -> list[Evidence]:
    """Return the measurement of a metric on a data set, or if there is none, those on all others."""
    rows = [Evidence(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]
    every = [each for each in rows if (each.metric, each.augmentation) == (metric, augmentation)]
    return [evidence for evidence in every if evidence.data == data] or every


def orientation(metric: str) -> int:
    """Return −1 if low values of a metric are better, otherwise 1.

    Example:
        >>> orientation("alignment"), orientation("rankme")
        (-1, 1)
    """
    return -1 if description_of(metric).direction == "lower" else 1


def _ranked(runs: Sequence[Run], metric: MetricDescription) -> list[Run]:
    """Return the finished runs that have the metric, best first.

    Raises:
        InputError: there is none, or two runs cannot be compared.
    """
    finished = [each for each in runs if each.status == "finished"]
    values = {each: _at_last_validation(each, metric.logged_name) for each in finished}
    measured = {each: value for each, value in values.items() if value is not None and math.isfinite(value)}
    for count, why in (
        (len(runs) - len(finished), "not finished"),
        (len(finished) - len(measured), f"without {metric.logged_name} at the last validation"),
    ):
        if count:
            print(f"ssl-vision choose: skipped {count} of {len(runs)} runs: {why}", file=sys.stderr)
    if not measured:
        hint = ": train with --metrics.extended true" if metric.name in _EXTENDED else ""
        raise InputError(f"no finished run has {metric.logged_name} in its metrics.csv{hint}")
    for name, settings in (
        ("data", {_images(each) for each in measured}),
        ("encoder", {str(each.described("model.encoder")) for each in measured}),
        ("validation images", {each.validated_on for each in measured}),
    ):
        if len(settings) > 1:
            shown = ", ".join(sorted(settings))
            raise InputError(f"the runs differ in their {name}, on which {metric.title} depends: {shown}")
    return sorted(measured, key=lambda each: -orientation(metric.name) * measured[each])


def _at_last_validation(run: Run, name: str) -> float | None:
    """Return the metric of the last validation; None if it was not measured then, or was not finite."""
    validations = [row for row in run.history if any(key.startswith("val/") for key in row)]
    return validations[-1].get(name) if validations else None


def _data_options(run: Run) -> dict[str, Any]:
    """Return the options of a run's data that change the result, by their dotted names."""
    section = significant({"data": run.config.get("data")})
    return {key.removeprefix("data.init_args."): value for key, value in section.items()}


def _images(run: Run) -> str:
    """Return the data set of a run with the options that determine its images."""
    options = _data_options(run).items()
    chosen = [f"{name} {value}" for name, value in options if name.partition(".")[0] not in _OF_TRAINING]
    return " ".join([str(run.setting("data")), *([f"({', '.join(chosen)})"] if chosen else [])])


def _views(run: Run) -> str:
    """Return the options of the random views, of which `compile` changes only rounding."""
    options = _data_options(run).items()
    return str([each for each in options if each[0].startswith("views.") and each[0] != "views.compile"])


def _advice(ranked: Sequence[Run], metric: MetricDescription, augmentation: Augmentation) -> Iterator[str]:
    """State how well the metric ranked the measured runs, and recommend a run and an epoch, or neither."""
    data = ranked[0].setting("data")
    evidence = _read_evidence(metric.name, data, augmentation)
    images = "the same" if augmentation == "same" else "different"
    if evidence and evidence[0].data != data:
        yield f"{metric.title} was not compared with test accuracy on {data}, but on other data sets."
    for each in evidence:
        accuracy = description_of(each.accuracy)
        yield (
            f"{each.data}, {each.runs} runs with {images} augmentation: "
            f"Spearman's correlation of {metric.title} with {accuracy.title} accuracy is "
            f"{each.spearman:.2f} (95 % interval {each.low:.2f} to {each.high:.2f}). "
            f"Regret: {100 * each.regret:.2f} points (at random, {100 * each.random_regret:.2f}; "
            f"95 % interval of the gain {100 * each.gain_low:.2f} to {100 * each.gain_high:.2f})."
        )
    if "views" in metric.needs and augmentation == "different":
        yield f"The runs differ in their augmentation, and {metric.title} is measured on augmented images."
    doubtful = [each.data for each in evidence if min(each.low, each.gain_low) <= 0]
    if len(ranked) < 2:
        yield f"Cannot tell: there is only one finished run with {metric.logged_name}."
    elif not evidence:
        yield f"Cannot tell: {metric.title} was not compared with test accuracy on any data set."
    elif doubtful:
        yield f"Cannot tell: the intervals are not both above 0 on {', '.join(doubtful)}."
    else:
        curve = [
            (orientation(metric.name) * value, epoch + 1)
            for _, epoch, value in ranked[0].curve(metric.logged_name)
            if math.isfinite(value)
        ]
        (_, top), (_, last) = max(curve), curve[-1]
        yield f"Recommended: {ranked[0].folder.path}, epoch {last}."
        if top != last:
            yield (
                f"Its {metric.title} was better after epoch {top}, "
                "but only last epochs were compared with accuracy."
            )
