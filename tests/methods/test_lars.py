"""LARS against lightly's, a loop in float64 and torch's SGD; skipped steps, scaled gradients, no waits."""

import copy

import pytest
import torch
from lightly.utils.lars import LARS as LightlyLARS
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_vision.methods.lars import LARS
from ssl_vision.methods.optimizer import OptimizerRule

SHAPES = ((4, 3), (2, 3, 3, 3), (3, 5), (5,), (3,))
WEIGHTS = 3  # the first shapes; the third weight starts at zero


def parameters(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in SHAPES]
    made[2].zero_()
    return [torch.nn.Parameter(value) for value in made]


def give_gradients(made, step):
    """Gradients of a step; the first weight has one of zeros in step 2, the last bias none in step 1."""
    g = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(made):
        gradient = torch.randn(parameter.shape, generator=g, dtype=torch.float64).to(parameter.dtype)
        parameter.grad = torch.zeros_like(parameter) if (number, step) == (0, 2) else gradient
    if step == 1:
        made[-1].grad = None


def groups(made, **plain):
    return [{"params": made[:WEIGHTS]}, {"params": made[WEIGHTS:], "weight_decay": 0.0, **plain}]


def ours(made, **options):
    return LARS(groups(made, adapt=False), **({"lr": 0.3, "momentum": 0.9} | options))


def take_steps(made, optimizer, count=6, start=0):
    for step in range(start, start + count):
        give_gradients(made, step)
        for group in optimizer.param_groups:
            group["lr"] = 0.3 / (1 + step)
        optimizer.step()
    return [parameter.detach() for parameter in made]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [1e-4, 0.5])
def test_with_weight_decay_it_is_lightlys(weight_decay, momentum):
    options = {"lr": 0.3, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": 0.02}
    first, second = parameters(), parameters()
    mine = take_steps(first, ours(first, **options))
    theirs = take_steps(second, LightlyLARS(groups(second), **options))
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_weights_are_adapted_with_and_without_weight_decay(weight_decay):
    made = parameters(torch.float64)
    expected = [parameter.detach().clone() for parameter in made]
    velocity = [torch.zeros_like(value) for value in expected]
    for step in range(6):
        give_gradients(made, step)
        for number, (w, v, parameter) in enumerate(zip(expected, velocity, made, strict=True)):
            g = parameter.grad
            if g is None:
                continue
            if number < WEIGHTS:
                length, slope = float(w.square().sum().sqrt()), float(g.square().sum().sqrt())
                scale = 0.001 * length / (slope + weight_decay * length + 1e-8) if length else 1.0
                g = scale * (g + weight_decay * w) if slope else g
            v.mul_(0.9).add_(g)
            w.sub_(0.3 / (1 + step) * v)
    torch.testing.assert_close(
        take_steps(made, ours(made, weight_decay=weight_decay)), expected, rtol=1e-12, atol=1e-14
    )


def test_biases_take_the_steps_of_sgd():
    first, second = parameters(), parameters()
    mine = take_steps(first, ours(first, weight_decay=0.1))[WEIGHTS:]
    sgd = torch.optim.SGD(groups(second), lr=0.3, momentum=0.9)
    torch.testing.assert_close(mine, take_steps(second, sgd)[WEIGHTS:])


@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
def test_the_rule_adapts_weights_and_no_biases(weight_decay):
    """The first update of a convolution is as long as lr · 0.001 · ‖w‖, whatever its gradient."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    rule = OptimizerRule(name="lars", lr=0.5, weight_decay=weight_decay)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    rule.optimizer(network).step()
    moved = [old - new.detach() for old, new in zip(before, network.parameters(), strict=True)]
    assert float(moved[0].norm()) == pytest.approx(0.5 * 0.001 * float(before[0].norm()), rel=1e-3)
    assert all(torch.allclose(step, torch.tensor(3.5)) for step in moved[1:])


@pytest.mark.parametrize("skipped", [0, 3])
def test_a_step_with_found_inf_changes_nothing(skipped):
    """Neither parameters nor momenta; a skipped first step leaves the second as if it were the first."""
    made, twin = parameters(), parameters()
    optimizer, other = ours(made, weight_decay=0.1), ours(twin, weight_decay=0.1)
    take_steps(made, optimizer, skipped)
    take_steps(twin, other, skipped)
    give_gradients(made, skipped)
    for value in (torch.nan, torch.inf):
        made[0].grad[0, 0] = made[-1].grad[0] = value
        optimizer.found_inf = torch.tensor(1.0)
        optimizer.step()
    optimizer.found_inf = torch.tensor(0.0)
    mine = take_steps(made, optimizer, start=skipped)
    torch.testing.assert_close(mine, take_steps(twin, other, start=skipped), rtol=0, atol=0)


def test_under_a_gradient_scaler_it_is_the_plain_step_and_skips_overflows():
    made, twin = parameters(), parameters()
    optimizer, other = ours(made, weight_decay=0.1), ours(twin, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        for each in (made, twin):
            give_gradients(each, step)
        for parameter in made:
            if parameter.grad is not None:
                parameter.grad *= scaler.scale(torch.ones(()))
        if step == 2:
            made[1].grad.fill_(torch.inf)
        else:
            other.step()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512
    torch.testing.assert_close(made, twin)


class NoWaits(TorchDispatchMode):
    """Refuses what makes the host wait for a device: reading a number from a tensor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


def test_no_step_waits_for_the_device():
    made = parameters()
    optimizer = ours(made, lr=torch.tensor(0.3), weight_decay=0.1)
    for step in range(2):
        give_gradients(made, step)
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(float(step)), torch.tensor(8.0)
        with NoWaits():
            optimizer.step()
    with pytest.raises(AssertionError), NoWaits():
        float(made[0].detach().sum())


def test_checkpoints_of_lightlys_optimizer_load():
    first, second = parameters(), parameters()
    options = {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}
    theirs = LightlyLARS(groups(first), **options)
    take_steps(first, theirs, 3)
    optimizer = ours(second, weight_decay=0.1)
    optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for parameter, value in zip(second, first, strict=True):
        parameter.data.copy_(value.detach())
    assert [group["adapt"] for group in optimizer.param_groups] == [True, False]
    mine = take_steps(second, optimizer, start=3)
    torch.testing.assert_close(mine, take_steps(first, theirs, start=3), rtol=1e-6, atol=1e-6)
    again = ours(second, weight_decay=0.1)
    again.load_state_dict(optimizer.state_dict())
    assert set(again.state_dict()["state"][0]) == {"momentum_buffer"}
    torch.testing.assert_close(again.state_dict(), optimizer.state_dict())
