"""Tests of methods with a momentum network on 1, 2 and 4 processes."""

from unittest import mock

import pytest
import torch
from ranks import assert_ranks_succeed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ssl_vision import objectives as o
from ssl_vision.data import Batch
from ssl_vision.encoders import ModuleEncoder
from ssl_vision.methods import MoCo, MoCoV3, SimCo
from ssl_vision.methods.method import Method

N, STEPS = 8, 4
METHODS = {
    "moco": (MoCo, {"queue_size": 20, "symmetric": True, "objective": o.MACL()}),
    "moco with a short queue": (MoCo, {"queue_size": 5, "objective": o.DCL()}),
    "moco_v3": (MoCoV3, {"objective": o.DualTemperature(), "momentum_schedule": "constant", "bn": "joint"}),
    "simco": (SimCo, {}),
}


class Step(nn.Module):
    """The loss of a method as a module, which DistributedDataParallel can wrap."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, batch):
        return self.method.loss(batch)


def encoder():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 12), nn.ReLU(), nn.Linear(12, 10))


def share(part):
    """Yield batches of a part of the images."""
    views = torch.randn(STEPS, 2, N, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for first, second in views:
        rows = len(first[part])
        yield Batch(
            first[part], torch.zeros(rows), torch.arange(rows), torch.cat([first[part], second[part]])
        )


def trained(name, part, wrap):
    cls, options = METHODS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ModuleEncoder(encoder(), image_size=8)
    method = cls(
        encoder=network, hidden_dim=9, output_dim=6, head_batch_norm="none", seed=0, **options
    ).double()
    step = wrap(Step(method))
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for batch in share(part):
        loss = step(batch)
        optimizer.zero_grad()
        loss.backward()
        method.after_backward()
        optimizer.step()
        method.after_update()
        losses.append(loss.detach())
    return torch.stack(losses), method.state_dict()


def process(rank, world):
    part = slice(rank * N // world, (rank + 1) * N // world)
    for name in METHODS:
        losses, state = trained(name, part, DistributedDataParallel)
        with mock.patch("torch.distributed.is_initialized", return_value=False):
            expected_losses, expected = trained(name, slice(None), nn.Identity())
        torch.testing.assert_close(losses, expected_losses, rtol=1e-9, atol=1e-12, msg=name)
        for key, value in expected.items():
            torch.testing.assert_close(state[key], value, rtol=1e-8, atol=1e-10, msg=f"{name} {key}")


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.long)])
def test_processes_train_as_one(world, tmp_path):
    assert_ranks_succeed(process, world, tmp_path)
