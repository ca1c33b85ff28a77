"""``ssl-vision maps``: the papers' pictures of objectives, drawn from the objectives themselves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jsonargparse.typing import PositiveInt
from torch import nn

import ssl_vision.objectives  # noqa: F401  (makes the short names known)
from ssl_vision.errors import InputError
from ssl_vision.maps.drawing import draw
from ssl_vision.maps.simulation import Maps, angles, simulated
from ssl_vision.maps.terms import scaling
from ssl_vision.runs.complaint import OneLineErrors, one_line
from ssl_vision.runs.output import completed

FORMATS = (".svg", ".png", ".pdf")


def run(args: Sequence[str]) -> None:
    """Draws gate, weight and ratio of objectives over the angles to positive and negatives.

    Below them is W over temperature and number of negatives, Figure 3 of the MACL paper. The numbers are
    written beside the picture, as .npz.

    Raises:
        InputError: an objective that has no such map, or a file that cannot be written.
    """
    parser = OneLineErrors(prog="ssl-vision maps", description=run.__doc__)
    parser.add_argument(
        "--objectives",
        type=str,
        nargs="+",
        default=["InfoNCE", "MPT", "MET", "MAT", "ArcCon"],
        help="Names, or with options: '{class_path: InfoNCE, init_args: {temperature: 0.05}}'.",
    )
    parser.add_argument("--output", type=str, default="maps.svg", help="The picture: .svg, .png or .pdf.")
    parser.add_argument("--grid", type=PositiveInt, default=40, help="Angles along each side of a map.")
    parser.add_argument("--batches", type=PositiveInt, default=100, help="Draws at each pair of angles.")
    parser.add_argument("--negatives", type=PositiveInt, default=127, help="Negatives of an anchor.")
    parser.add_argument("--seed", type=int, default=0, help="Of the draws.")
    options = parser.parse_args(list(args))
    picture = Path(options.output)
    if picture.suffix not in FORMATS:
        raise InputError(f"--output {picture} must end with one of {', '.join(FORMATS)}")
    objectives = [_objective(text) for text in options.objectives]
    axes = angles(options.grid)
    maps = {
        _title(text): simulated(
            objective, *axes, batches=options.batches, negatives=options.negatives, seed=options.seed
        )
        for text, objective in zip(options.objectives, objectives, strict=True)
    }
    keys = torch.logspace(1, 6, 6, dtype=torch.float64)
    temperatures = torch.linspace(0.05, 1, 191, dtype=torch.float64)
    curves = scaling(keys[:, None], temperatures)
    with completed(picture) as partial:
        draw(partial, maps, axes, curves, (keys, temperatures))
    numbers = picture.with_suffix(".npz")
    fields: dict[str, Any] = {
        field: torch.stack([getattr(each, field) for each in maps.values()]) for field in Maps._fields
    }
    with completed(numbers) as partial:
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
    parser = OneLineErrors(prog="ssl-vision maps")
    parser.add_argument("--objectives", type=nn.Module)
    try:
        objective: nn.Module = parser.instantiate_classes(
            parser.parse_args(["--objectives", text])
        ).objectives
    except (ValueError, TypeError) as error:
        raise InputError(one_line(str(error))) from error
    return objective


def _title(text: str) -> str:
    """The class's name, and under it the options that were given."""
    given = yaml.safe_load(text)
    path, options = (
        (given["class_path"], given.get("init_args", {})) if isinstance(given, dict) else (text, {})
    )
    return "\n".join([path.rpartition(".")[2], *(f"{key} = {value}" for key, value in options.items())])
