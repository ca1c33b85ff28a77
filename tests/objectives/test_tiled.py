"""The tiled margin against the dense one: values, gradients, bits, memory."""

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
    """Tiles that do not divide the batch, and one that holds it; computed again or kept."""
    monkeypatch.setattr(tiled, "TILE", request.param[0])
    monkeypatch.setattr(tiled, "KEPT", request.param[1])


def views(n=8, dim=6, noise=0.5, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    z1 = torch.randn(n, dim, generator=g, dtype=dtype)
    return z1.requires_grad_(), (
        z1.detach() + noise * torch.randn(n, dim, generator=g, dtype=dtype)
    ).requires_grad_()


def both_ways(compute, monkeypatch, leaves):
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
    dense, small = both_ways(lambda: o.logit_margin(z1, z2, tau, pairs=pairs), monkeypatch, (z1, z2))
    for ours, want in zip(small, dense, strict=True):
        torch.testing.assert_close(ours, want, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_temperatures_that_carry_a_gradient(monkeypatch, pairs):
    z1, z2 = views()
    per_image = torch.linspace(0.05, 0.5, 8, dtype=torch.float64).requires_grad_()
    learned = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    for tau in (per_image, learned):
        dense, small = both_ways(
            lambda tau=tau: o.logit_margin(z1, z2, tau, pairs=pairs), monkeypatch, (z1, z2, tau)
        )
        for ours, want in zip(small, dense, strict=True):
            torch.testing.assert_close(ours, want, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_gradcheck(pairs):
    g = torch.Generator().manual_seed(0)
    u = torch.randn(8, 4, generator=g, dtype=torch.float64).requires_grad_()
    p = torch.rand(8, generator=g, dtype=torch.float64).requires_grad_()
    tau = (0.5 + torch.rand(8, generator=g, dtype=torch.float64)).requires_grad_()
    some = own_image(4)
    assert torch.autograd.gradcheck(lambda u, p, tau: tiled.tiled(u, p, tau, some, pairs=pairs), (u, p, tau))
    assert torch.autograd.gradcheck(lambda u, p: tiled.tiled_warm(u, p, 0.3, some, pairs=pairs), (u, p))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_any_set_of_pairs_can_be_excluded(pairs):
    """A row that is left with no pair gets a value below any other and harms no gradient."""
    z1, z2 = views()
    u = torch.cat([z1, z2])
    counts = torch.rand(16, 16, generator=torch.Generator().manual_seed(1)) < 0.5
    counts = counts & counts.T
    counts[3] = counts[:, 3] = False

    def exclude(tile, rows, columns):
        tile[~counts[rows, columns]] = tiled.NEVER

    shift, tau = u.detach().sum(1), torch.full((16,), 0.3, dtype=torch.float64)
    small, want = (f(u, shift, tau, exclude, pairs=pairs) for f in (tiled.tiled, dense))
    assert (small[3], want[3]) < (-1e29, -1e29)
    empty = want < -1e29
    torch.testing.assert_close(small[~empty], want[~empty], rtol=1e-10, atol=1e-10)
    ours, exact = (torch.autograd.grad(d[~empty].sum(), (z1, z2)) for d in (small, want))
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("n", [2, 3, 7, 8])
@pytest.mark.parametrize("pairs", ["both", "cross"])
def test_hardest_is_the_most_similar_row_of_each(n, pairs):
    u = torch.nn.functional.normalize(torch.cat(views(n))).detach()
    similarity, number = u @ u.T, torch.arange(2 * n)
    excluded = number[:, None] % n == number % n
    if pairs == "cross":
        excluded |= (number[:, None] < n) == (number < n)
    want = similarity.masked_fill(excluded, -2).argmax(1)
    assert torch.equal(tiled.hardest(u, pairs=pairs), want)


def test_large_batches_are_tiled_and_give_the_same_bits_twice():
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


def test_autocast_around_the_backward_pass_changes_nothing():
    z1, z2 = views(200, 16, dtype=torch.float32)
    outside = torch.autograd.grad(o.DCL()(z1, z2), z1)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(o.DCL()(z1, z2), z1)[0]
    torch.testing.assert_close(inside, outside, rtol=1e-5, atol=1e-8)


def test_a_second_derivative_is_an_error_and_not_a_wrong_number():
    z1, z2 = views(200)
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(o.DCL()(z1, z2), z1, create_graph=True)


@pytest.mark.parametrize("objective", [o.DCL(), o.MAT()], ids=["DCL", "MAT"])
def test_no_matrix_of_all_pairs_is_kept(objective):
    """2N = 16,384 would need 1 GiB a matrix; the peak of both passes stays below a tenth of that."""

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    z1, z2 = views(8192, 64, dtype=torch.float32)
    objective(*views(600, 64, dtype=torch.float32)).backward()
    before, peak, done = resident(), 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    torch.autograd.grad(objective(z1, z2), (z1, z2))
    done.set()
    watcher.join()
    assert peak - before < 110e6
