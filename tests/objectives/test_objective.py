"""Tests of the interface that all objectives share, including modules of other libraries."""

import inspect

import pytest
import torch
from torch import nn

from ssl_vision import objectives as o

CLASSES = [
    cls for name in o.__all__ if inspect.isclass(cls := getattr(o, name)) and issubclass(cls, o.Objective)
]
ABSTRACT = (o.Objective, o.TwoViews, o.HardestTriplet)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls not in ABSTRACT], ids=lambda c: c.__name__)
def test_every_objective_implements_the_interface(cls):
    objective = cls()
    assert isinstance(objective.required_inputs, tuple)
    assert isinstance(objective.gather, bool)
    assert objective.statistics() == {}
    assert len(objective.anchor_weights()) == 0
    assert isinstance(objective.embedding_objective, o.Objective)
    objective.set_epoch(3)
    objective.prepare(images=200, embeddings=8, features=16, shallow=8)


class Attraction(nn.Module):
    """A loss from another library."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, z1, z2):
        return self.scale * (z1 - z2).square().sum(dim=1).mean()


def test_plain_module_becomes_objective_without_statistics():
    module = Attraction()
    objective = o.as_objective(module)
    assert o.as_objective(objective) is objective
    assert objective(torch.zeros(3, 2), torch.ones(3, 2)) == 4
    assert objective.required_inputs == ()
    assert objective.statistics() == {}
    assert not list(objective.parameters())  # they belong to the module
    objective.double()
    assert module.scale.dtype == torch.float64
