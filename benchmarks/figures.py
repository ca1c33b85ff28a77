"""Draw the figures of docs/results.md from the rows that ``benchmarks/results.py collect`` writes.

    python benchmarks/figures.py

Writes docs/gradient_dissipation.svg and docs/unified_gradient.svg. A line connects means over seeds, and each
point is one seed.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from paper_tables import NORMS, varied
from rows import Row, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#777777")
FIGURES = ("gradient_dissipation", "unified_gradient")
ACCURACY = "test kNN accuracy"
TERMS = {"margin": "margin m", "negatives_temperature": "temperature τ", "ratio": "ratio r"}

Points = dict[float, list[float]]
"""Values of all seeds by their place on the horizontal axis."""


def curves(rows: Iterable[Row], metric: str, scale: float = 1) -> dict[str, Points]:
    """Return the logged values of a metric by objective and step, at the steps that all its rows have.

    Args:
        rows: rows with curves.
        metric: name of the curve.
        scale: factor of the values.
    """
    values_at: dict[str, Points] = defaultdict(lambda: defaultdict(list))
    seeds: Counter[str] = Counter()
    for row in rows:
        seeds[row["objective"]] += 1
        for step, value in row["curves"].get(metric, ()):
            values_at[row["objective"]][step].append(scale * value)
    return {
        objective: {step: values for step, values in points.items() if len(values) == seeds[objective]}
        for objective, points in sorted(values_at.items())
    }


def terms(term: str) -> dict[str, Points]:
    """Return accuracy and share of the hardest negative in percent, by the value of a term."""
    groups = varied(term)
    accuracy = {value: [100 * row["test"]["test/knn_top1"] for row in rows] for value, rows in groups.items()}
    shares = {
        value: [100 * row["curves"]["gradient/hardest_share"][-1][1] for row in rows]
        for value, rows in groups.items()
    }
    return {ACCURACY: accuracy, "share of the hardest negative": shares}


def plot(axes: "Axes", lines: dict[str, Points]) -> None:
    """Draw lines through the means, and the points of all seeds."""
    for colour, (name, points) in zip(cycle(COLOURS), lines.items(), strict=False):
        places = sorted(points)
        axes.plot(places, [fmean(points[place]) for place in places], color=colour, label=name, linewidth=1.8)
        across = [place for place in places for _ in points[place]]
        values = [value for place in places for value in points[place]]
        axes.scatter(across, values, color=colour, s=7, linewidths=0)
    axes.spines[["top", "right"]].set_visible(False)


def panels_of(name: str) -> dict[str, dict[str, Points]]:
    """Return the lines of each panel of a figure, by its title."""
    if name == "unified_gradient":
        return {title: terms(term) for term, title in TERMS.items()}
    rows = rows_of("gradient_dissipation")
    norms = zip(("norm of the alignment part", "norm of the uniformity part"), NORMS, strict=True)
    return {"validation kNN accuracy, %": curves(rows, "val/knn_top1", 100)} | {
        title: curves(rows, metric) for title, metric in norms
    }


def digest(name: str) -> str:
    """Return a digest of the values in a figure, which its file states as its description."""
    return hashlib.sha256(json.dumps(panels_of(name)).encode()).hexdigest()


def draw(name: str) -> None:
    """Write a figure."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "results"})
    of_terms = name == "unified_gradient"
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=of_terms)
    for axes, (title, lines) in zip(panels, panels_of(name).items(), strict=True):
        plot(axes, lines)
        if of_terms:
            values = sorted(lines[ACCURACY])
            axes.set(xlabel=title, xscale="log")
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()
        else:
            axes.set(ylabel=title, xlabel="training step")
    if of_terms:
        panels[0].set_ylabel("%")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    description = {"Date": None, "Description": digest(name)}
    figure.savefig(DOCS / f"{name}.svg", metadata=description, facecolor="white")


def main() -> None:
    """Write both figures."""
    for name in FIGURES:
        draw(name)


if __name__ == "__main__":
    main()
