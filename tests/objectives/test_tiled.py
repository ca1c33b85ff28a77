"""Tests of the tiled logit margin against the dense one: values, gradients, reproducibility, memory."""

import importlib
import threading
import time

import pytest
import torch

from ssl_vision import objectives as o
from ssl_vision.objectives import tiled
from ssl_vision.objectives.logit_margin import dense
from ssl_vision.objectives.tiled import own_image

margin_module = importlib.import_module("ssl_vision.objectives.logit_margin")


@pytest.fixture(params=[(3, 0), (5, 0), (5, 1024), (256, 0), (256, 1024)], ids=str)
def small_tiles(request, monkeypatch):
    """Set tile sizes that do not divide the batch, and one that holds it; recompute or store the tiles."""
    monkeypatch.setattr(tiled, "TILE", request.param[0])
    monkeypatch.setattr(tiled, "KEPT", request.param[1])


def views(n=8, dim=6, noise=0.5, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    z1 = torch.randn(n, dim, generator=g, dtype=dtype)
    return z1.requires_grad_(), (
        z1.detach() + noise * torch.randn(n, dim, generator=g, dtype=dtype)
    ).requires_grad_()


def dense_and_tiled(compute, monkeypatch, leaves):
    results = []
    for size in (10**9, 0):
        monkeypatch.setattr(margin_module, "DENSE", size)
        value = compute()
        results.append((value, *torch.autograd.grad((value * torch.arange(len(value))).sum(), leaves)))
    return results


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("n", [2, 3, 7, 8])
@pytest.mark.parametrize("pairs", ["both", "cross"])
@pytest.mark.parametrize("tau", [0.5, 0.03, 0.01])
def test_tiled_equals_dense(monkeypatch, n, pairs, tau):
    z1, z2 = views(n)
    dense, small = dense_and_tiled(lambda: o.logit_margin(z1, z2, tau, pairs=pairs), monkeypatch, (z1, z2))
    for actual, expected in zip(small, dense, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_tiled_equals_dense_for_temperatures_with_gradient(monkeypatch, pairs):
    z1, z2 = views()
    per_image = torch.linspace(0.05, 0.5, 8, dtype=torch.float64).requires_grad_()
    learned = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    for tau in (per_image, learned):
        dense, small = dense_and_tiled(
            lambda tau=tau: o.logit_margin(z1, z2, tau, pairs=pairs), monkeypatch, (z1, z2, tau)
        )
        for actual, expected in zip(small, dense, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_tiled_margin_passes_gradcheck(pairs):
    g = torch.Generator().manual_seed(0)
    u = torch.randn(8, 4, generator=g, dtype=torch.float64).requires_grad_()
    p = torch.rand(8, generator=g, dtype=torch.float64).requires_grad_()
    tau = (0.5 + torch.rand(8, generator=g, dtype=torch.float64)).requires_grad_()
    exclude = own_image(4)
    assert torch.autograd.gradcheck(
        lambda u, p, tau: tiled.tiled(u, p, tau, exclude, pairs=pairs), (u, p, tau)
    )
    assert torch.autograd.gradcheck(lambda u, p: tiled.tiled_warm(u, p, 0.3, exclude, pairs=pairs), (u, p))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_tiled_margin_can_exclude_any_set_of_pairs(pairs):
    """A row that is left without a pair gets a value below any other and does not affect the gradients."""
    z1, z2 = views()
    u = torch.cat([z1, z2])
    included = torch.rand(16, 16, generator=torch.Generator().manual_seed(1)) < 0.5
    included = included & included.T
    included[3] = included[:, 3] = False

    def exclude(tile, rows, columns):
        tile[~included[rows, columns]] = tiled.NEVER

    shift, tau = u.detach().sum(1), torch.full((16,), 0.3, dtype=torch.float64)
    small, expected = (f(u, shift, tau, exclude, pairs=pairs) for f in (tiled.tiled, dense))
    assert small[3] < -1e29
    assert expected[3] < -1e29
    empty = expected < -1e29
    torch.testing.assert_close(small[~empty], expected[~empty], rtol=1e-10, atol=1e-10)
    gradients, expected_gradients = (
        torch.autograd.grad(d[~empty].sum(), (z1, z2)) for d in (small, expected)
    )
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("n", [2, 3, 7, 8])
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_hardest_is_most_similar_negative_of_each_row(n, pairs):
    u = torch.nn.functional.normalize(torch.cat(views(n))).detach()
    similarity, number = u @ u.T, torch.arange(2 * n)
    excluded = number[:, None] % n == number % n
    if pairs == "cross":
        excluded |= (number[:, None] < n) == (number < n)
    want = similarity.masked_fill(excluded, -2).argmax(1)
    assert torch.equal(tiled.hardest(u, pairs=pairs), want)


def test_large_batches_are_tiled_and_bitwise_reproducible():
    z1, z2 = views(300, 16, dtype=torch.float32)
    objective = o.MACL()
    first, second = (torch.autograd.grad(objective(z1, z2), (z1, z2)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert "Warm" in o.logit_margin(z1, z2, 0.1).grad_fn.name()
    assert "Cold" in o.logit_margin(z1, z2, 0.01).grad_fn.name()


@pytest.mark.parametrize("tau", [0.5, 0.1, 0.05, 0.03, 0.01])
@pytest.mark.parametrize("noise", [0.03, 3.0])
def test_float32_gradient_equals_float64_in_tiles(tau, noise):
    z1, z2 = views(400, 64, noise)
    objective = o.MACL(temperature=tau, alpha=1.0)

    def gradient(dtype):
        a, b = z1.detach().to(dtype).requires_grad_(), z2.detach().to(dtype).requires_grad_()
        return torch.cat(torch.autograd.grad(objective(a, b), (a, b))).double()

    exact, single = gradient(torch.float64), gradient(torch.float32)
    assert (single - exact).norm() / exact.norm() < (5e-5 if tau == 0.01 else 5e-6)


def test_autocast_around_backward_does_not_change_gradient():
    z1, z2 = views(200, 16, dtype=torch.float32)
    outside = torch.autograd.grad(o.DCL()(z1, z2), z1)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(o.DCL()(z1, z2), z1)[0]
    torch.testing.assert_close(inside, outside, rtol=1e-5, atol=1e-8)


def test_second_derivative_raises_runtime_error():
    z1, z2 = views(200)
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(o.DCL()(z1, z2), z1, create_graph=True)


@pytest.mark.parametrize("objective", [o.DCL(), o.MAT()], ids=["DCL", "MAT"])
def test_peak_memory_is_far_below_matrix_of_all_pairs(objective):
    """For 2N = 8,192, a matrix would take 256 MiB; the peak of both passes stays below a quarter of that."""

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    z1, z2 = views(4096, 64, dtype=torch.float32)
    objective(*views(600, 64, dtype=torch.float32)).backward()
    before, peak, done = resident(), 0, threading.Event()

    def track_peak():
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=track_peak)
    watcher.start()
    torch.autograd.grad(objective(z1, z2), (z1, z2))
    done.set()
    watcher.join()
    assert peak - before < 64e6
