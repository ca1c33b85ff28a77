"""Distances on the unit sphere: product, Euclidean distance and angle.

The latter two are computed from differences of rows instead of cosines, so that they are accurate for nearly
equal rows. The norm of a gradient is at most 1. It is 0 instead of infinite if two rows are equal.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.errors import check_choice

DistanceName = Literal["product", "euclidean", "angle"]


class Distance(NamedTuple):
    """A distance as a function of two unit vectors, and its slope."""

    between: Callable[[Tensor, Tensor], Tensor]
    """Distance of vectors of shape (…, D), shape (…)."""
    slope: Callable[[Tensor, Tensor], Tensor]
    """−∂distance/∂s for the cosine s. Lengths are at least √ε, with ε the resolution of the dtype."""


def chord(a: Tensor, b: Tensor) -> Tensor:
    """Compute δ = ‖a − b‖ = √(2 − 2s)."""
    length: Tensor = torch.linalg.vector_norm(a - b, dim=-1)
    return length


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Compute θ = arccos s in [0, π]; π/2 for two rows of zeros, whose cosine is defined as 0."""
    across, along = chord(a, b), torch.linalg.vector_norm(a + b, dim=-1)
    undefined = across + along == 0
    return 2 * torch.atan2(torch.where(undefined, 1.0, across), torch.where(undefined, 1.0, along))


def sine(a: Tensor, b: Tensor) -> Tensor:
    """Compute sin θ, at least √ε."""
    return _at_least_root(chord(a, b) * torch.linalg.vector_norm(a + b, dim=-1) / 2)


def _at_least_root(length: Tensor) -> Tensor:
    return length.clamp(min=torch.finfo(length.dtype).eps ** 0.5)


def distance(metric: DistanceName) -> Distance:
    """Return 1 − s with slope 1, δ with slope 1/δ, or θ with slope 1/sin θ.

    Raises:
        ValueError: the metric is unknown.
    """
    check_choice("metric", metric, _DISTANCES)
    return _DISTANCES[metric]


def _product(a: Tensor, b: Tensor) -> Tensor:
    return 1 - (a * b).sum(dim=-1)


def _slope_of_product(a: Tensor, b: Tensor) -> Tensor:
    return a.new_ones(a.shape[:-1])


def _slope_of_chord(a: Tensor, b: Tensor) -> Tensor:
    return 1 / _at_least_root(chord(a, b))


def _slope_of_angle(a: Tensor, b: Tensor) -> Tensor:
    return 1 / sine(a, b)


_DISTANCES: dict[str, Distance] = {
    "product": Distance(_product, _slope_of_product),
    "euclidean": Distance(chord, _slope_of_chord),
    "angle": Distance(angle, _slope_of_angle),
}
