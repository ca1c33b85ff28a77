"""Fixture of a batch in which all anchors have the same set of angles, so that each is typical."""

import math
from typing import NamedTuple

import pytest
import torch

IMAGES = 9
HEIGHT, TURN = 0.8, 0.17
"""Height of the ring above the equator (a cosine), and rotation of view 2 against view 1 in radians."""


class Ring(NamedTuple):
    """Two views, (9, 3) each."""

    z1: torch.Tensor
    z2: torch.Tensor

    def angles(self, pairs):
        """Return the angles of an anchor to its positive, (1,), and to its negatives, (1, K)."""
        views = {"within": [self.z1], "cross": [self.z2], "both": [self.z1, self.z2]}[pairs]
        negatives = torch.cat([view[1:] @ self.z1[0] for view in views]).arccos()
        return (self.z1[0] @ self.z2[0]).arccos()[None], negatives[None]


@pytest.fixture
def ring():
    """Images evenly spaced around a circle of latitude, all of them turned a little in view 2."""
    steps = 2 * math.pi / IMAGES * torch.arange(IMAGES, dtype=torch.float64)
    return Ring(_at(steps), _at(steps + TURN))


def _at(longitude):
    radius = math.sqrt(1 - HEIGHT**2)
    high = torch.full_like(longitude, HEIGHT)
    return torch.stack([radius * longitude.cos(), radius * longitude.sin(), high], dim=1)
