"""``ssl-vision maps``: plot gate, weight and ratio of objectives over angles, as in the papers."""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor, nn

import ssl_vision.objectives  # noqa: F401  (registers the short names with the parser)
from ssl_vision.cli.parser import ArgumentParser, one_line
from ssl_vision.errors import InputError
from ssl_vision.experiments.report.gradient_factors import doubles, gradient_factors, scaling
from ssl_vision.optional import needed
from ssl_vision.runs.files import atomic_write, parse_yaml

FORMATS = (".svg", ".png", ".pdf")

COLOURS = "cividis"
"""Colour map that is perceived equally with colour blindness."""

SHUT = "#d9d9d9"
"""Colour of cells with a closed gate or without push."""

SPREAD_POSITIVE, SPREAD_NEGATIVE = 0.05, 0.10
"""Standard deviations of the angles in radians."""

OPEN = 0.01
"""Gates below this value count as closed."""

_ROWS = (
    ("gate GD", 1.0),
    ("hardest negative's\nshare of the weight W", 1.0),
    ("ratio R in effect", 5.0),
)
"""Title and maximum of the colour scale of each row."""


class Maps(NamedTuple):
    """Maps over P mean angles of positives and Q of negatives, each (P, Q); NaN where no gate is open."""

    gate: Tensor
    """Mean GD."""
    share: Tensor
    """Mean share of the hardest negative, over batches with an open gate and a push."""
    ratio: Tensor
    """Effective R without spread of angles; NaN also without a push, or if the positive is further away."""


def run(args: Sequence[str]) -> None:
    """Plot gate, weight and ratio of objectives over the angles to the positive and the negatives.

    All anchors of a batch are assumed to have the same angles. R is the effective ratio of pull to push on an
    embedding. With detach: negatives, which the Modified losses use, it is twice the objective's own ratio,
    as noted in the title. It is undefined where the negatives do not push.

    W over temperature and number of negatives, Figure 3 of the MACL paper, is plotted below the maps. The
    values are written to an .npz file next to the plot.

    Raises:
        InputError: an objective has no such map, or a file cannot be written.
    """
    parser = ArgumentParser(prog="ssl-vision maps", description=run.__doc__)
    parser.add_argument(
        "--objectives",
        type=str,
        nargs="+",
        default=["InfoNCE", "MPT", "MET", "MAT", "ArcCon"],
        help="Names, or with options: '{class_path: InfoNCE, init_args: {temperature: 0.05}}'.",
    )
    parser.add_argument("--output", type=str, default="maps.svg", help="Output file: .svg, .png or .pdf.")
    parser.add_argument("--grid", type=PositiveInt, default=40, help="Angles along each side of a map.")
    parser.add_argument("--batches", type=PositiveInt, default=100, help="Samples for each pair of angles.")
    parser.add_argument("--negatives", type=PositiveInt, default=127, help="Negatives of an anchor.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the samples.")
    options = parser.parse_args(list(args))
    picture = Path(options.output)
    if picture.suffix not in FORMATS:
        raise InputError(f"--output {picture} must end with one of {', '.join(FORMATS)}")
    objectives = {text: _objective(text) for text in options.objectives}
    axes = angles(options.grid)
    for objective in objectives.values():  # raises for unsupported objectives
        gradient_factors(objective, axes[0][:1], axes[1][:1, None])
    maps = {
        _title(text, objective): simulated(
            objective, *axes, batches=options.batches, negatives=options.negatives, seed=options.seed
        )
        for text, objective in objectives.items()
    }
    keys = torch.logspace(1, 6, 6, dtype=torch.float64)
    temperatures = torch.linspace(0.05, 1, 191, dtype=torch.float64)
    curves = scaling(keys[:, None], temperatures)
    with atomic_write(picture) as partial:
        _draw(partial, maps, axes, curves, (keys, temperatures))
    numbers = picture.with_suffix(".npz")
    stacked: dict[str, Any] = {
        field: torch.stack([values[place] for values in maps.values()])
        for place, field in enumerate(Maps._fields)
    }
    with atomic_write(numbers) as partial:
        np.savez(
            partial, objectives=list(maps), theta_positive=axes[0], theta_negative=axes[1], **stacked,
            negatives=keys, temperature=temperatures, scaling=curves,
        )  # fmt: skip
    print(f"written to {picture}, the numbers to {numbers}")


def _objective(text: str) -> nn.Module:
    parser = ArgumentParser(prog="ssl-vision maps")
    parser.add_argument("--objectives", type=nn.Module)
    try:
        objective: nn.Module = parser.instantiate(parser.parse_args(["--objectives", text])).objectives
    except (ValueError, TypeError) as error:
        raise InputError(one_line(str(error))) from error
    return objective


def _title(text: str, objective: nn.Module) -> str:
    """Return the name of the class, with its options and a note on its ratio on further lines."""
    name, options = _described(parse_yaml(text, where="--objectives"))
    return "\n".join([name, *options, *(["R in effect: 2 × its ratio"] if doubles(objective) else [])])


def _described(value: Any) -> tuple[str, list[str]]:
    """Return a config value, or the name of a class and its options."""
    path = value["class_path"] if isinstance(value, dict) else str(value)
    options = []
    for key, option in value.get("init_args", {}).items() if isinstance(value, dict) else ():
        name, nested = _described(option)
        options.append(f"{key} = {name}" + (f"({', '.join(nested)})" if nested else ""))
    last = path.rpartition(".")[2]
    return last if last.isidentifier() else path, options


def angles(size: int) -> tuple[Tensor, Tensor]:
    """Return the axes of a map: ``size`` angles from π/20 to π/2 for positives, to π for negatives."""
    low = math.pi / 20
    positive = torch.linspace(low, math.pi / 2, size, dtype=torch.float64)
    return positive, torch.linspace(low, math.pi, size, dtype=torch.float64)


def simulated(
    objective: nn.Module,
    positive: Tensor,
    negative: Tensor,
    *,
    batches: int = 100,
    negatives: int = 127,
    seed: int = 0,
) -> Maps:
    """Simulate the maps of an objective as in the code of the unified-gradient paper.

    For each pair of means, the angle of an anchor to its positive is sampled from N(μ⁺, 0.05) and those to
    its negatives from N(μ⁻, 0.10), in radians, and folded into [0, π]. The same normal numbers are used for
    all cells and objectives, so that cells differ only by their means.

    Args:
        objective: as in `gradient_factors`.
        positive: means μ⁺, shape (P,).
        negative: means μ⁻, shape (Q,).
        batches: number of samples per cell; the paper's code uses 1000.
        negatives: number of negatives K.
        seed: seed of the samples.

    Raises:
        InputError: as `gradient_factors`.
    """
    generator = torch.Generator().manual_seed(seed)
    near = SPREAD_POSITIVE * torch.randn(batches, generator=generator, dtype=torch.float64)
    far = SPREAD_NEGATIVE * torch.randn(batches, negatives, generator=generator, dtype=torch.float64)
    maps = Maps(*(positive.new_full((len(positive), len(negative)), torch.nan) for _ in Maps._fields))
    for p, mean_positive in enumerate(positive):
        for n, mean_negative in enumerate(negative):
            samples = gradient_factors(objective, _fold(mean_positive + near), _fold(mean_negative + far))
            maps.gate[p, n] = samples.gate.mean()
            maps.share[p, n] = samples.share[samples.gate >= OPEN].nanmean()
            exact = gradient_factors(objective, mean_positive[None], mean_negative.expand(1, negatives))
            if exact.gate >= OPEN and mean_positive <= mean_negative:
                maps.ratio[p, n] = exact.ratio[0]
    return maps


def _fold(angle: Tensor) -> Tensor:
    return math.pi - (angle.abs() - math.pi).abs()


def _draw(
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

    size = 2.1 * len(maps) + 1.6
    style = {"svg.fonttype": "none", "svg.hashsalt": "maps", "font.family": "sans-serif", "font.size": 9}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(max(size, 6.5), 9.8), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=[7, 2.8])
        _plot_maps(parts[0], maps, axes)
        _plot_scaling(parts[1], scaling, over)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, facecolor="white", metadata=metadata)


def _plot_maps(figure: Any, maps: dict[str, Maps], axes: tuple[Tensor, Tensor]) -> None:
    positive, negative = (axis / math.pi for axis in axes)
    grid = figure.subplots(len(_ROWS), len(maps), sharex=True, sharey=True, squeeze=False)
    for row, (title, end) in enumerate(_ROWS):
        for plot, (name, values) in zip(grid[row], maps.items(), strict=True):
            mesh = plot.pcolormesh(
                negative, positive, values[row], cmap=COLOURS, vmin=0, vmax=end, shading="nearest",
                rasterized=True,
            )  # fmt: skip
            plot.set_facecolor(SHUT)
            plot.set_xticks([0.25, 0.5, 0.75, 1], ["π/4", "π/2", "3π/4", "π"])
            plot.set_yticks([0.125, 0.25, 0.375, 0.5], ["π/8", "π/4", "3π/8", "π/2"])
            if row == 0:
                lines = (fill(line, 26, subsequent_indent="  ") for line in name.split("\n"))
                plot.set_title("\n".join(lines), fontsize=9)
        figure.colorbar(mesh, ax=list(grid[row]), extend="max", label=title, aspect=14)
    grey = "grey: gate shut or no push; for R also θ⁺ > θ⁻"
    figure.supxlabel(f"mean angle θ⁻ to the negatives ({grey})", fontsize=10)
    figure.supylabel("mean angle θ⁺ to the positive", fontsize=10)


def _plot_scaling(figure: Any, scaling: Tensor, over: tuple[Tensor, Tensor]) -> None:
    from matplotlib import colormaps

    keys, temperatures = over
    plot = figure.subplots()
    for i, (count, values) in enumerate(zip(keys.tolist(), scaling, strict=True)):
        label = f"$10^{{{math.log10(count):.3g}}}$"
        plot.plot(temperatures, values, color=colormaps[COLOURS](i / len(keys)), label=label)
    plot.set(
        xlabel="temperature τ", ylabel="W", ylim=(-0.02, 1.02),
        xlim=(float(temperatures[0]), float(temperatures[-1])),
    )  # fmt: skip
    title = "gradient scaling of an anchor with s⁺ = 1 and K negatives at s = −1"
    plot.set_title(title, fontsize=10)
    plot.legend(title="K", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    plot.spines[["right", "top"]].set_visible(False)
