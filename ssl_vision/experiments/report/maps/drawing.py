"""Plotting of maps with matplotlib."""

import math
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from torch import Tensor

from ssl_vision.experiments.report.maps.simulation import Maps
from ssl_vision.optional import needed

COLUMNS = 6
"""Maximum number of objectives in a row."""

COLOURS = "cividis"
"""Colour map that is perceived equally with colour blindness."""

SHUT = "#d9d9d9"
"""Colour of cells with a closed gate or without push."""

_ROWS = {
    "gate": ("gate GD", 1.0),
    "share": ("hardest negative's\nshare of the weight W", 1.0),
    "ratio": ("ratio R in effect", 5.0),
}
"""Title and maximum of the colour scale of each row."""


def draw(
    path: Path,
    maps: dict[str, Maps],
    axes: tuple[Tensor, Tensor],
    scaling: Tensor,
    over: tuple[Tensor, Tensor],
) -> None:
    """Write the maps of all objectives and the curves of W to a file, in the format given by its suffix.

    Args:
        path: path of the file.
        maps: maps of each objective, by name.
        axes: angles of positives, shape (P,), and negatives, shape (Q,), of the maps.
        scaling: values of W, shape (K, T).
        over: numbers of negatives, shape (K,), and temperatures, shape (T,), of W.

    Raises:
        InputError: matplotlib is not installed.
    """
    matplotlib = needed("matplotlib", extra="maps")
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "maps", "font.family": "sans-serif", "font.size": 9}
    with matplotlib.rc_context(style):
        rows = math.ceil(len(maps) / COLUMNS)
        columns = math.ceil(len(maps) / rows)
        names = list(maps)
        groups = [names[i : i + columns] for i in range(0, len(names), columns)]
        titles = [max(len(_lines(name)) for name in group) for group in groups]
        heights = [*(6.4 + 0.17 * lines for lines in titles), 2.8]
        size = (max(2.1 * columns + 1.6, 6.5), sum(heights))
        figure = Figure(figsize=size, layout="constrained")
        parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights)
        for part, group in zip(parts[:-1], groups, strict=True):
            _maps(part, {name: maps[name] for name in group}, axes, columns)
        _curves(parts[-1], scaling, over)
        date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
        figure.savefig(path, dpi=150, facecolor="white", metadata=date)


def _lines(name: str) -> list[str]:
    """Wrap a title to lines that fit above a map."""
    return [part for line in name.split("\n") for part in wrap(line, 26, subsequent_indent="  ")]


def _maps(figure: Any, maps: dict[str, Maps], axes: tuple[Tensor, Tensor], columns: int) -> None:
    positive, negative = (axis.numpy() / math.pi for axis in axes)
    grid = figure.subplots(len(_ROWS), columns, sharex=True, sharey=True, squeeze=False)
    for row, (field, (title, end)) in zip(grid, _ROWS.items(), strict=True):
        for plot in row[len(maps) :]:
            plot.set_axis_off()
        for plot, (name, objective_maps) in zip(row, maps.items(), strict=False):
            values = np.ma.masked_invalid(getattr(objective_maps, field).numpy())
            mesh = plot.pcolormesh(
                negative, positive, values, cmap=COLOURS, vmin=0, vmax=end, shading="nearest", rasterized=True
            )
            plot.set_facecolor(SHUT)
            plot.set_xticks([0.25, 0.5, 0.75, 1], ["π/4", "π/2", "3π/4", "π"])
            plot.set_yticks([0.125, 0.25, 0.375, 0.5], ["π/8", "π/4", "3π/8", "π/2"])
            if field == "gate":
                plot.set_title("\n".join(_lines(name)), fontsize=9)
        exceeded = any(bool((getattr(each, field) > end + 1e-6).any()) for each in maps.values())
        extend = "max" if exceeded else "neither"
        figure.colorbar(mesh, ax=list(row), extend=extend, label=title, aspect=14)
    grey = "grey: gate shut or no push; for R also θ⁺ > θ⁻"
    figure.supxlabel(f"mean angle θ⁻ to the negatives ({grey})", fontsize=10)
    figure.supylabel("mean angle θ⁺ to the positive", fontsize=10)


def _curves(figure: Any, scaling: Tensor, over: tuple[Tensor, Tensor]) -> None:
    from matplotlib import colormaps

    keys, temperatures = over
    plot = figure.subplots()
    for i, (count, values) in enumerate(zip(keys.tolist(), scaling, strict=True)):
        colour = colormaps[COLOURS](i / len(keys))
        plot.plot(temperatures, values, color=colour, label=f"$10^{{{math.log10(count):.3g}}}$")
    plot.set(
        xlabel="temperature τ", ylabel="W", ylim=(-0.02, 1.02),
        xlim=(float(temperatures[0]), float(temperatures[-1])),
        title="gradient scaling of an anchor with s⁺ = 1 and K negatives at s = −1",
    )  # fmt: skip
    plot.title.set_fontsize(10)
    plot.legend(title="K", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plot.spines[["right", "top"]].set_visible(False)
