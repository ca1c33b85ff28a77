"""Tests of the gradients of all objectives on 2 and 4 processes against one process with the whole batch."""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from contrastive_classes import PRESETS
from ranks import assert_ranks_succeed
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_vision import objectives as o
from ssl_vision.objectives.gather import equal_shares, gather

WITH_PAIRS = [*PRESETS, o.SupCon, o.ArcCon, o.MPT, o.MET, o.MAT, o.UnifiedGradient]
OBJECTIVES: dict[str, tuple[type, dict[str, Any]]] = {
    f"{c.__name__}-{p}": (c, {"pairs": p}) for c in WITH_PAIRS for p in ("both", "cross")
}
OBJECTIVES["AlignmentUniformity-within"] = (o.AlignmentUniformity, {"pairs": "within"})
OBJECTIVES |= {
    c.__name__: (c, {})
    for c in (
        o.MHE,
        o.MHS,
        o.BarlowTwins,
        o.SphericalBarlowTwins,
        o.VICReg,
        o.SphericalVICReg,
        o.ModifiedMHE,
        o.ModifiedMHS,
        o.ModifiedBarlowTwins,
        o.ModifiedVICReg,
    )
}
SHARES = {2: [5, 7], 4: [4, 1, 3, 4]}  # images of each process: uneven, one with a single image
TOTAL = 12


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))


def batch():
    g = torch.Generator().manual_seed(1)
    x1 = torch.randn(TOTAL, 6, generator=g)
    return x1, x1 + 0.5 * torch.randn(TOTAL, 6, generator=g)


def arguments(objective, rows):
    """Return labels for SupCon: classes of 4 and of 2 images, and images without a label."""
    labels = torch.tensor([0, 1, 0, 2, 0, 1, 2, -1, 0, -1, 3, 3])
    return [labels[rows]] if isinstance(objective, o.SupCon) else []


OBJECTIVES |= {  # negatives from a queue; the temperature of MACL depends on the whole batch
    "queue": (o.InfoNCE, {"pairs": "queue"}),
    "queue, MACL": (o.MACL, {"pairs": "queue"}),
}
QUEUE = torch.randn(9, 5, generator=torch.Generator().manual_seed(2))


def inputs(objective):
    return {"negatives": QUEUE} if "negatives" in objective.required_inputs else {}


def build(name):
    cls, options = OBJECTIVES[name]
    if cls in (o.InfoNCE, o.DCL):  # these also have a parameter of their own
        options = {"temperature": o.Learnable(0.2), **options}
    return cls(**options)


def one_process(name):
    net, objective, (x1, x2) = network(), build(name), batch()
    loss = objective(net(x1), net(x2), *arguments(objective, slice(None)), **inputs(objective))
    loss.backward()
    return loss.detach(), [p.grad for p in net.parameters()]


def process(rank, world):
    start = sum(SHARES[world][:rank])
    rows = slice(start, start + SHARES[world][rank])
    for name in OBJECTIVES:
        x1, x2 = (x[rows] for x in batch())
        net, objective = DistributedDataParallel(network()), build(name)
        loss = objective(*net(torch.cat([x1, x2])).chunk(2), *arguments(objective, rows), **inputs(objective))
        loss.backward()
        expected_loss, expected = one_process_alone(name)
        torch.testing.assert_close(loss.detach(), expected_loss, rtol=1e-5, atol=1e-6, msg=name)
        gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
        expected_gradient = torch.cat([g.flatten() for g in expected])
        error = float((gradient - expected_gradient).norm() / expected_gradient.norm().clamp_min(1e-12))
        assert error < 1e-5, f"{name}: relative gradient error {error}"
        objective.gather = False
        local_loss = (
            objective(*(network()(x) for x in (x1, x2)), *arguments(objective, rows), **inputs(objective))
            if len(x1) > 1
            else 0
        )
        with mock.patch("torch.distributed.is_initialized", return_value=False):
            assert len(x1) == 1 or local_loss == build(name)(
                *(network()(x) for x in (x1, x2)), *arguments(objective, rows), **inputs(objective)
            )
        losses = [torch.zeros_like(loss) for _ in range(world)]
        dist.all_gather(losses, loss.detach())
        assert all(torch.equal(other, loss.detach()) for other in losses), name
    check_equal_shares(rank, world)


def check_equal_shares(rank, world):
    """Check that equal shares need one exchange, of the rows, and make the host wait for no number."""
    expected = batch()[0]
    share = expected.tensor_split(world)[rank]
    with mock.patch("torch.distributed.all_gather", wraps=dist.all_gather) as exchange:
        with equal_shares(), ForbidScalarReads():
            assert torch.equal(gather(share), expected)
        assert exchange.call_count == 1
        with equal_shares(False):
            assert torch.equal(gather(share), expected)
        assert exchange.call_count == 3


class ForbidScalarReads(TorchDispatchMode):
    """Forbid reading a number from a tensor, because the host would have to wait for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def one_process_alone(name):
    """Compute the reference without using the initialized process group."""
    with mock.patch("torch.distributed.is_initialized", return_value=False):
        return one_process(name)


def test_every_objective_that_states_that_it_gathers_is_compared_with_one_process():
    classes = [c for c in map(vars(o).get, o.__all__) if isinstance(c, type) and issubclass(c, o.Objective)]
    tested = {cls for cls, _ in OBJECTIVES.values()}
    own_tests = {o.RECLAIM, o.Contrastive}  # in test_reclaim.py, and as InfoNCE
    abstract = {o.Objective, o.TwoViews, o.HardestTriplet}
    assert {c for c in classes if c not in abstract and c().gather} == tested | own_tests
    assert {c for c in classes if c not in abstract and not c().gather} == set()
    assert o.TwoViews().gather
    assert not o.RECLAIM(objective=o.InfoNCE(gather=False)).gather


@pytest.mark.parametrize(
    "world", [pytest.param(world, marks=[pytest.mark.long] if world > 2 else []) for world in SHARES]
)
def test_averaged_gradients_equal_single_process_gradients(world, tmp_path):
    assert_ranks_succeed(process, world, tmp_path)
