"""``ssl-vision maps``: plot gate, weight and ratio of objectives, as in the papers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import nn

import ssl_vision.objectives  # noqa: F401  (registers the short names with the parser)
from ssl_vision.cli.parser import ArgumentParser, one_line
from ssl_vision.errors import InputError, check
from ssl_vision.experiments.report.maps.drawing import draw
from ssl_vision.experiments.report.maps.gradient_factors import doubles, gradient_factors, scaling
from ssl_vision.experiments.report.maps.simulation import Maps, angles, simulated
from ssl_vision.runs.files import atomic_write, parse_yaml

FORMATS = (".svg", ".png", ".pdf")

_FINEST = 1000
"""Maximum number of angles along a side, a million cells."""

_MOST_DRAWS = 2**22
"""Maximum number of negatives sampled for each pair of angles, 32 MB."""


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
    for name, value, largest in (
        ("--grid", options.grid, _FINEST),
        ("--batches times --negatives", options.batches * options.negatives, _MOST_DRAWS),
    ):
        check(name, value, at_most=largest)
    objectives = [_objective(text) for text in options.objectives]
    axes = angles(options.grid)
    for objective in objectives:  # raises for unsupported objectives
        gradient_factors(objective, axes[0][:1], axes[1][:1, None])
    maps = {
        _title(text, objective): simulated(
            objective, *axes, batches=options.batches, negatives=options.negatives, seed=options.seed
        )
        for text, objective in zip(options.objectives, objectives, strict=True)
    }
    keys = torch.logspace(1, 6, 6, dtype=torch.float64)
    temperatures = torch.linspace(0.05, 1, 191, dtype=torch.float64)
    curves = scaling(keys[:, None], temperatures)
    with atomic_write(picture) as partial:
        draw(partial, maps, axes, curves, (keys, temperatures))
    numbers = picture.with_suffix(".npz")
    fields: dict[str, Any] = {
        field: torch.stack([getattr(each, field) for each in maps.values()]) for field in Maps._fields
    }
    with atomic_write(numbers) as partial:
        np.savez(
            partial,
            objectives=list(maps),
            theta_positive=axes[0].numpy(),
            theta_negative=axes[1].numpy(),
            **fields,
            negatives=keys.numpy(),
            temperature=temperatures.numpy(),
            scaling=curves.numpy(),
        )
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
    name, options = _describe(parse_yaml(text, where="--objectives"))
    doubled = ["R in effect: 2 × its ratio"] if doubles(objective) else []
    return "\n".join([name, *options, *doubled])


def _describe(value: Any) -> tuple[str, list[str]]:
    """Return a config value, or the name of a class and its options."""
    if not isinstance(value, dict):
        last = str(value).rpartition(".")[2]
        return last if last.isidentifier() else str(value), []
    options = []
    for key, option in value.get("init_args", {}).items():
        name, nested = _describe(option)
        options.append(f"{key} = {name}" + (f"({', '.join(nested)})" if nested else ""))
    return value["class_path"].rpartition(".")[2], options
