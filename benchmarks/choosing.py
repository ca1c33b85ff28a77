"""Measure how well metrics of the validation images rank runs by their accuracy on the test images.

    python benchmarks/choosing.py

The runs are the rows of benchmarks/results/choosing_*.json, which ``benchmarks/results.py collect`` writes.
The script prints the tables of docs/choosing.md. ``benchmarks/results.py render`` writes them into the page,
and the correlations into ssl_vision/experiments/compare/evidence.json, which ``ssl-vision choose`` reads.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ssl_vision.descriptions import description_of
from ssl_vision.experiments.compare.choose import FILE, Augmentation, Evidence, orientation

RESULTS = Path(__file__).parent / "results"
METRICS = ("rankme", "effective_rank", "lidar", "uniformity", "alignment", "sensitivity", "knn_top1")
"""Metrics of the validation images. The last one needs labels, and is the reference."""

ACCURACIES = ("linear_top1", "knn_top1")
PROTOCOL = "choosing"
"""Name of the protocol of benchmarks/choosing.yaml, in the names of the accuracies."""

_FEWEST = 10
"""Smallest number of runs with a correlation."""

Row = dict[str, Any]
Floats = NDArray[np.float64]


def rows_by_data(augmentation: Augmentation = "different") -> dict[str, list[Row]]:
    """Return the rows by data set: of all runs, or only of those with colour jitter."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for file in sorted(RESULTS.glob("choosing_*.json")):
        for row in json.loads(file.read_text()):
            if augmentation == "different" or row["jitter"] > 0:
                groups[row["data"]].append(row)
    return groups


def evidence(
    metric: str, accuracy: str, data: str, rows: Sequence[Row], augmentation: Augmentation = "different"
) -> Evidence | None:
    """Return how well a metric ranks the runs of a data set; None for too few runs or equal values.

    Args:
        metric: metric of the validation images.
        accuracy: metric of the test images at the encoder.
        data: class of the data set.
        rows: its runs; those without one of the two values are left out.
        augmentation: ``same`` if these rows are only those of runs with colour jitter.
    """
    every = [
        (row["validation"].get(metric), row["test"].get(f"test/{PROTOCOL}/{accuracy}"), row["temperature"])
        for row in rows
    ]
    finite = [each for each in every if None not in each and all(map(math.isfinite, each))]
    values = orientation(metric) * np.array([each[0] for each in finite])
    accuracies, temperatures = np.array([each[1] for each in finite]), [each[2] for each in finite]
    correlation = spearman(values, accuracies, temperatures)
    if correlation is None:
        return None

    def gain(rows: NDArray[np.intp]) -> float:
        """Accuracy of the chosen run minus that of a run picked at random."""
        best = values[rows] == values[rows].max()
        return float(accuracies[rows][best].mean() - accuracies[rows].mean())

    rho, (low, high) = correlation
    random_regret = float(accuracies.max() - accuracies.mean())
    regret = random_regret - gain(np.arange(len(values)))
    gain_interval = cluster_bootstrap(gain, temperatures)
    rounded = (round(each, 6) + 0.0 for each in (rho, low, high, regret, random_regret, *gain_interval))
    return Evidence(data, augmentation, metric, accuracy, len(finite), *rounded)


def spearman(
    first: Sequence[float] | Floats,
    second: Sequence[float] | Floats,
    clusters: Sequence[float],
    *,
    alpha: float = 0.05,
) -> tuple[float, tuple[float, float]] | None:
    """Spearman's rank correlation, with its `cluster_bootstrap` interval.

    Args:
        first: values of the first variable, (N,).
        second: values of the second variable, (N,).
        clusters: what the pairs that depend on each other have in common, (N,).
        alpha: 1 minus the level of the interval.

    Returns:
        The correlation and its 1 − alpha interval; None for fewer than 10 pairs or if one side is constant.

    Raises:
        ValueError: The lengths differ, or a value is not finite.
    """
    if len(first) != len(second):
        raise ValueError(f"expected pairs, got {len(first)} and {len(second)} numbers")
    pairs = np.array([first, second], dtype=np.float64)
    if not np.isfinite(pairs).all():
        raise ValueError("expected finite numbers")
    if len(first) < _FEWEST or not np.ptp(pairs, axis=1).all():
        return None

    def correlation(rows: NDArray[np.intp]) -> float:
        return float(_rank_correlation(pairs[:, rows]))

    return float(_rank_correlation(pairs)), cluster_bootstrap(correlation, clusters, alpha=alpha)


def cluster_bootstrap(
    statistic: Callable[[NDArray[np.intp]], float], clusters: Sequence[float], *, alpha: float = 0.05
) -> tuple[float, float]:
    """Percentile interval of a statistic from 10,000 samples of whole clusters, drawn with replacement.

    Samples in which the statistic is not finite are left out.

    Args:
        statistic: value of the statistic for the positions of a sample.
        clusters: cluster of each position, (N,).
        alpha: 1 minus the level of the interval.
    """
    members = [np.flatnonzero(np.equal(clusters, each)) for each in np.unique(clusters)]
    drawn = np.random.default_rng(0).integers(len(members), size=(10_000, len(members)))
    different, counts = np.unique(np.sort(drawn, axis=1), axis=0, return_counts=True)
    values = [statistic(np.concatenate([members[i] for i in sample])) for sample in different]
    samples = np.repeat(values, counts)
    low, high = np.quantile(samples[np.isfinite(samples)], [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def _rank_correlation(pairs: Floats) -> Floats:
    """Correlate the ranks of the two sides (2, …, n) of pairs; NaN if one side is constant."""
    ranks = stats.rankdata(pairs, axis=-1)
    ranks -= ranks.mean(axis=-1, keepdims=True)
    squares = (ranks**2).sum(axis=-1)
    with np.errstate(invalid="ignore"):
        correlation: Floats = (ranks[0] * ranks[1]).sum(axis=-1) / np.sqrt(squares[0] * squares[1])
    return correlation


def measured(accuracy: str, augmentation: Augmentation = "different") -> list[Evidence]:
    """Return the measurements of all metrics on all data sets."""
    return [
        result
        for data, rows in rows_by_data(augmentation).items()
        for metric in METRICS
        if (result := evidence(metric, accuracy, data, rows, augmentation)) is not None
    ]


def evidence_table(accuracy: str, augmentation: Augmentation = "different") -> list[list[str]]:
    """Return a table with a line for each metric, and two columns for each data set."""
    by_name = {(each.metric, each.data): each for each in measured(accuracy, augmentation)}
    names = list(dict.fromkeys(data for _, data in by_name))
    lines = [["chosen by", *(head for name in names for head in (f"{name}: Spearman", f"{name}: regret"))]]
    for metric in METRICS:
        lines.append([_title(metric)])
        for name in names:
            each = by_name.get((metric, name))
            interval = "" if each is None else f"{each.spearman:.2f} ({each.low:.2f} to {each.high:.2f})"
            regret = "" if each is None else f"{100 * each.regret:.2f}"
            below_chance = each is not None and each.gain_low > 0
            lines[-1] += [interval.replace("-", "−"), f"**{regret}**" if below_chance else regret]
    lines.append(["chance"])
    for name in names:
        each = next(evidence for evidence in by_name.values() if evidence.data == name)
        lines[-1] += ["", f"{100 * each.random_regret:.2f}"]
    return lines if names else []


def temperature_table(objective: str, accuracy: str) -> list[list[str]]:
    """Return the mean accuracy at each temperature by data set, with the highest in bold."""
    groups: dict[tuple[str, float], list[float]] = defaultdict(list)
    for name, rows in rows_by_data().items():
        for row in rows:
            value = row["test"].get(f"test/{PROTOCOL}/{accuracy}")
            if row["objective"] == objective and value is not None:
                groups[name, row["temperature"]].append(100 * value)
    names = list(dict.fromkeys(name for name, _ in groups))
    best = {
        name: max(fmean(values) for (other, _), values in groups.items() if other == name) for name in names
    }
    lines = [["τ", *names]]
    for temperature in sorted({each for _, each in groups}):
        means = [
            fmean(groups[name, temperature]) if (name, temperature) in groups else None for name in names
        ]
        cells = (
            "" if mean is None else f"**{mean:.2f}**" if mean == best[name] else f"{mean:.2f}"
            for name, mean in zip(names, means, strict=True)
        )
        lines.append([f"{temperature:g}", *cells])
    return lines if names else []


def sensitivity_table() -> list[list[str]]:
    """Return a line for each layer and set of pairs that benchmarks/sensitivity.py measured, best first."""
    file = RESULTS / "sensitivity.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    temperatures = list(rows[0]["values"]) if rows else []
    compared = ["Spearman with the paper", "same order as the paper"]
    lines = [["layer", "images", "pairs", *(f"τ = {each}" for each in temperatures), *compared]]
    for row in sorted(rows, key=lambda row: -2.0 if row["spearman"] is None else -row["spearman"]):
        rho = row["spearman"]
        end = ["", ""] if rho is None else [f"{rho:.2f}".replace("-", "−"), "yes" if rho > 0.999 else "no"]
        values = [f"{value:.3f}" for value in row["values"].values()]
        lines.append([row["layer"], row["split"], row["pairs"], *values, *end])
    return lines if rows else []


def save() -> None:
    """Write the measurements for ``ssl-vision choose``."""
    every = [each for kind in get_args(Augmentation) for each in measured(ACCURACIES[0], kind)]
    rows = [asdict(each) for each in every if each.metric != "knn_top1"]
    FILE.write_text(json.dumps(rows, indent=1) + "\n")


def _title(metric: str) -> str:
    title = description_of(metric).title
    labels = "labels" in description_of(metric).needs
    return f"{title} (validation labels)" if labels else title


def main() -> None:
    """Print the tables."""
    for accuracy in ACCURACIES:
        for kind in get_args(Augmentation):
            print(f"\n{accuracy}, {kind} augmentation, correlation and regret in points:")
            for line in evidence_table(accuracy, kind):
                print(" | ".join(line))
        print(f"\nInfoNCE, {accuracy} in percent by temperature:")
        for line in temperature_table("InfoNCE", accuracy):
            print(" | ".join(line))


if __name__ == "__main__":
    main()
