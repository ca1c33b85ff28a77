"""Tests of LARS against lightly's, a float64 loop and torch's SGD, and of skipped and scaled steps."""

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
    values = [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in SHAPES]
    values[2].zero_()
    return [torch.nn.Parameter(value) for value in values]


def set_gradients(params, step):
    """Set the gradients of a step: zeros for the first weight in step 2, None for the last bias in step 1."""
    g = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(params):
        gradient = torch.randn(parameter.shape, generator=g, dtype=torch.float64).to(parameter.dtype)
        parameter.grad = torch.zeros_like(parameter) if (number, step) == (0, 2) else gradient
    if step == 1:
        params[-1].grad = None


def groups(params, **plain):
    return [{"params": params[:WEIGHTS]}, {"params": params[WEIGHTS:], "weight_decay": 0.0, **plain}]


def make_lars(params, **options):
    return LARS(groups(params, adapt=False), **({"lr": 0.3, "momentum": 0.9} | options))


def take_steps(params, optimizer, count=6, start=0):
    for step in range(start, start + count):
        set_gradients(params, step)
        for group in optimizer.param_groups:
            group["lr"] = 0.3 / (1 + step)
        optimizer.step()
    return [parameter.detach() for parameter in params]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [1e-4, 0.5])
def test_lars_with_weight_decay_matches_lightly(weight_decay, momentum):
    options = {"lr": 0.3, "momentum": momentum, "weight_decay": weight_decay, "trust_coefficient": 0.02}
    first, second = parameters(), parameters()
    actual = take_steps(first, make_lars(first, **options))
    expected = take_steps(second, LightlyLARS(groups(second), **options))
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lars_matches_float64_loop(weight_decay):
    params = parameters(torch.float64)
    expected = [parameter.detach().clone() for parameter in params]
    velocity = [torch.zeros_like(value) for value in expected]
    for step in range(6):
        set_gradients(params, step)
        for number, (w, v, parameter) in enumerate(zip(expected, velocity, params, strict=True)):
            g = parameter.grad
            if g is None:
                continue
            if number < WEIGHTS:
                w_norm, g_norm = float(w.square().sum().sqrt()), float(g.square().sum().sqrt())
                scale = 0.001 * w_norm / (g_norm + weight_decay * w_norm + 1e-8) if w_norm else 1.0
                g = scale * (g + weight_decay * w) if g_norm else g
            v.mul_(0.9).add_(g)
            w.sub_(0.3 / (1 + step) * v)
    torch.testing.assert_close(
        take_steps(params, make_lars(params, weight_decay=weight_decay)), expected, rtol=1e-12, atol=1e-14
    )


def test_lars_updates_biases_like_sgd():
    first, second = parameters(), parameters()
    actual = take_steps(first, make_lars(first, weight_decay=0.1))[WEIGHTS:]
    sgd = torch.optim.SGD(groups(second), lr=0.3, momentum=0.9)
    torch.testing.assert_close(actual, take_steps(second, sgd)[WEIGHTS:])


@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
def test_optimizer_rule_adapts_weights_but_not_biases(weight_decay):
    """The first update of a convolution has the norm lr · 0.001 · ‖w‖, whatever its gradient."""
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    rule = OptimizerRule(name="lars", lr=0.5, weight_decay=weight_decay)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    rule.optimizer(network).step()
    updates = [old - new.detach() for old, new in zip(before, network.parameters(), strict=True)]
    assert float(updates[0].norm()) == pytest.approx(0.5 * 0.001 * float(before[0].norm()), rel=1e-3)
    assert all(torch.allclose(step, torch.tensor(3.5)) for step in updates[1:])


@pytest.mark.parametrize("skipped", [0, 3])
def test_step_with_found_inf_changes_nothing(skipped):
    """Parameters and momenta stay the same, and after a skipped first step the next one acts as the first."""
    params, twin_params = parameters(), parameters()
    optimizer, twin_optimizer = make_lars(params, weight_decay=0.1), make_lars(twin_params, weight_decay=0.1)
    take_steps(params, optimizer, skipped)
    take_steps(twin_params, twin_optimizer, skipped)
    set_gradients(params, skipped)
    for value in (torch.nan, torch.inf):
        params[0].grad[0, 0] = params[-1].grad[0] = value
        optimizer.found_inf = torch.tensor(1.0)
        optimizer.step()
    optimizer.found_inf = torch.tensor(0.0)
    actual = take_steps(params, optimizer, start=skipped)
    torch.testing.assert_close(actual, take_steps(twin_params, twin_optimizer, start=skipped), rtol=0, atol=0)


def test_steps_with_gradient_scaler_match_plain_steps_and_skip_overflows():
    params, plain = parameters(), parameters()
    optimizer, plain_optimizer = make_lars(params, weight_decay=0.1), make_lars(plain, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        for each in (params, plain):
            set_gradients(each, step)
        for parameter in params:
            if parameter.grad is not None:
                parameter.grad *= scaler.scale(torch.ones(()))
        if step == 2:
            params[1].grad.fill_(torch.inf)
        else:
            plain_optimizer.step()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512
    torch.testing.assert_close(params, plain)


class ForbidWaits(TorchDispatchMode):
    """Fails on operations that make the host wait for a device by reading a number from a tensor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


def test_step_does_not_wait_for_device():
    params = parameters()
    optimizer = make_lars(params, lr=torch.tensor(0.3), weight_decay=0.1)
    for step in range(2):
        set_gradients(params, step)
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(float(step)), torch.tensor(8.0)
        with ForbidWaits():
            optimizer.step()
    with pytest.raises(AssertionError), ForbidWaits():
        float(params[0].detach().sum())
