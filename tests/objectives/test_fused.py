"""Tests of the fused logit margin against its definition in float64.

The kernels run in Triton's interpreter, and on a CUDA device if there is one. Triton interprets kernels only
if an environment variable is set before it is imported. The interpreted kernels therefore run in a subprocess
for which this file is also the program.
"""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from scripts import import_script
from torch import Tensor
from torch.nn.functional import normalize

from ssl_vision.objectives import fused

tl: Any = getattr(fused, "tl", None)  # Triton looks this name up among the globals
PATHS = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Case(NamedTuple):
    pairs: str
    n: int
    dim: int
    tau: float
    batch: str = "random"
    temperature: str = "each"

    def __str__(self):
        return "-".join(map(str, self))


SHAPES = [
    *((n, dim, "each") for n, dim in [(2, 3), (3, 24), (37, 64), (70, 128)]),
    *((n, dim, "one") for n, dim in [(2, 128), (3, 64), (37, 24), (70, 3)]),
]
CASES = [
    Case(pairs, n, dim, tau, batch, temperature)
    for pairs in ("both", "cross")
    for (n, dim, temperature), tau, batch in product(SHAPES, [1.0, 0.1, 0.03, 0.01], ["near", "random"])
] + [
    *(
        Case(pairs, 20, 24, 0.03, batch)
        for pairs in ("both", "cross")
        for batch in ("equal", "zeros", "narrow")
    ),
    *(Case(pairs, 40, 24, 0.001, batch) for pairs in ("both", "cross") for batch in ("near", "random")),
    Case("cross", 129, 16, 0.1),  # the last tile of the last anchor holds only its own image
    Case("both", 140, 200, 0.03),  # several blocks and the widest tiles
    Case("both", 70, 24, 0.1, "random", "constant"),
    Case("cross", 70, 24, 0.1, "random", "constant"),
]
SIZES = [(63, 16), (64, 17), (65, 31), (127, 32), (128, 33), (129, 64), (64, 100), (65, 128), (128, 129)]
EDGES = [
    Case(pairs, n, dim, tau)
    for pairs in ("both", "cross")
    for n, dim in [*SIZES, (63, 255), (129, 256)]  # at the edges of tiles of 32, 64 and 128 rows
    for tau in (1.0, 0.1, 0.01)
]
FAR = 131_072
"""Rows of a batch of 65,536 images."""
REPEATED = [case for case in CASES if case.n == 70]


def leaves(case, dtype, device="cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (u1, u2, positive, τ), the same float32 numbers in every dtype."""
    g = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    z1 = randn(case.n, case.dim)
    if case.batch == "narrow":
        z1 = 0.1 * z1 + randn(case.dim)
    z2 = z1 + (3.0 if case.batch == "random" else 0.2) * randn(case.n, case.dim)
    u1, u2 = normalize(z1), normalize(z2)
    if case.batch == "equal":
        u1[1::2], u2[3:] = u1[0], u1[0]
    if case.batch == "zeros":
        u1[::3], u2[::2] = 0, 0
    positive = (u1 * u2).sum(dim=1)
    each = case.tau * torch.linspace(1, 1.5, 2 * case.n, dtype=torch.float64)
    tau = each if case.temperature == "each" else torch.tensor(case.tau, dtype=torch.float64)
    u1, u2, positive, tau = (
        leaf.float().to(device, dtype).requires_grad_() for leaf in (u1, u2, positive, tau)
    )
    return u1, u2, positive, tau.requires_grad_(case.temperature != "constant")


def dense_margin(u1, u2, positive, tau, pairs):
    n = len(u1)
    s = u1 @ u2.T
    s = torch.cat([torch.cat([u1 @ u1.T, s], 1), torch.cat([s.T, u2 @ u2.T], 1)]) if pairs == "both" else s
    s = s if pairs == "both" else torch.cat([s, s.T])
    own = torch.eye(n, dtype=torch.bool, device=s.device).repeat(2, s.shape[1] // n)
    gap = (s - positive.repeat(2)[:, None]) / tau[:, None]
    return gap.masked_fill(own, -torch.inf).logsumexp(dim=1)


def fused_margin(u1, u2, positive, tau, pairs):
    return fused.fused_logit_margin(torch.cat([u1, u2]), positive.repeat(2), tau, pairs=pairs)


def outcome(case, margin, dtype=torch.float32, device="cpu"):
    """Return the margin, and the gradient of its weighted sum for each leaf that requires one."""
    inputs = leaves(case, dtype, device)
    *rows, tau = inputs
    d = margin(*rows, tau if tau.ndim else tau.expand(2 * case.n), case.pairs)
    weight = torch.linspace(0.5, 1, len(d), dtype=dtype, device=device)
    gradients = torch.autograd.grad((d * weight).sum(), [leaf for leaf in inputs if leaf.requires_grad])
    return [d.detach(), *gradients]


def assert_exact(case, results, device="cpu"):
    want = outcome(case, dense_margin, torch.float64, device)
    bounds = dict.fromkeys(("d", "u1", "u2", "positive", "tau"), 5e-6 if case.tau >= 0.03 else 5e-5)
    if device == "cuda" and case.batch == "narrow":
        # Tensor cores round sums towards zero, which shifts all similarities alike. This does not change
        # their softmax shares, but it does change their small distances to the positive, on which these
        # two depend.
        bounds |= {"d": 1e-4, "tau": 1e-4}
    assert len(results) == len(want)
    for (name, bound), result, exact in zip(bounds.items(), results, want, strict=False):
        assert result.shape == exact.shape
        error = (result - exact).norm() / exact.norm()
        assert error < bound, f"{name}: {error:.1e}"


def check_second_derivative_raises(device="cpu"):
    inputs = leaves(Case("both", 8, 4, 0.1), torch.float32, device)
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(fused_margin(*inputs, "both").sum(), inputs[0], create_graph=True)
    return True


def save_results(path):
    """Save the results of the interpreter for the tests below."""
    results = {"first": [outcome(case, fused_margin) for case in CASES]}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results["autocast"] = [outcome(case, fused_margin) for case in REPEATED]
    results["refused"] = check_second_derivative_raises()
    torch.save(results, path)


def save_edge_results(path):
    """Save the results of the interpreter at tile edges and in the last tile of many rows."""
    torch.save({"edges": [outcome(case, fused_margin) for case in EDGES], "far": last_tile()}, path)


def last_tile():
    """Return whether the last of 131,072 rows fill the last tile, and which of their images are negatives."""

    @fused.triton.jit  # type: ignore[attr-defined]
    def kernel(x, first, second, mask, start, rows, images, ROWS: tl.constexpr, D: tl.constexpr):  # type: ignore[name-defined]
        a1, a2 = fused._tile(x, start, ROWS, D)
        row = tl.arange(0, ROWS)
        place = row[:, None] * D + tl.arange(0, D)[None, :]
        tl.store(first + place, a1)
        tl.store(second + place, a2)
        for side in range(2):
            j = (1 + side) * images - ROWS + row
            place = row[:, None] * (2 * ROWS) + side * ROWS + row[None, :]
            tl.store(mask + place, fused._is_negative(start + row, j, rows, images))

    x = torch.randn(FAR, 2, 256, generator=torch.Generator().manual_seed(0)).half()
    first, second = (torch.empty(fused.BLOCK, 256, dtype=torch.float16) for _ in range(2))
    mask = torch.empty(fused.BLOCK, 2 * fused.BLOCK, dtype=torch.bool)
    start = FAR - fused.BLOCK
    kernel[(1,)](x, first, second, mask, start, FAR, FAR // 2, ROWS=fused.BLOCK, D=256)
    return bool(torch.equal(first, x[start:, 0]) and torch.equal(second, x[start:, 1])), mask


def interpret(folder, *mode):
    pytest.importorskip("triton")
    path = folder / "results.pt"
    env = os.environ | PATHS | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", __file__, str(path), *mode]
    process = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True)
    if "only 0-dimensional arrays can be converted" in process.stderr:  # Triton 3.6, NumPy 2.4
        pytest.skip("the interpreter of this version of Triton does not work with this version of NumPy")
    assert process.returncode == 0, process.stderr
    return torch.load(path)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    return interpret(tmp_path_factory.mktemp("fused"))


@pytest.fixture(scope="module")
def interpreted_edges(tmp_path_factory):
    return interpret(tmp_path_factory.mktemp("edges"), "edges")


@pytest.mark.long
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_interpreted_kernels_equal_the_definition_at_tile_edges(interpreted_edges, case):
    assert_exact(case, interpreted_edges["edges"][EDGES.index(case)])


@pytest.mark.long
def test_last_tile_of_131072_rows_has_correct_rows_and_negatives(interpreted_edges):
    """The negatives are all rows of the tile except each anchor's own image in both views."""
    equal, mask = interpreted_edges["far"]
    assert equal
    own = torch.eye(fused.BLOCK, dtype=torch.bool)
    assert torch.equal(mask, ~torch.cat([own, own], dim=1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_interpreted_kernels_equal_the_definition(interpreted, case):
    assert_exact(case, interpreted["first"][CASES.index(case)])


def test_kernels_are_bitwise_reproducible_under_autocast(interpreted):
    for case, again in zip(REPEATED, interpreted["autocast"], strict=True):
        for one, two in zip(interpreted["first"][CASES.index(case)], again, strict=True):
            assert torch.equal(one, two), case


def test_second_derivative_raises_runtime_error(interpreted):
    assert interpreted["refused"]


def test_kernels_compile_for_hopper_and_fit_its_shared_memory(tmp_path, monkeypatch):
    """The compiler rejects code that the interpreter accepts; compiling needs no device."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launch = fused._launch(torch.empty(fused.BLOCK, 2, 128))
    options = {name: launch.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion")}
    constants = launch | {"MEAN": True, "SCALE": fused.SCALE}
    types = dict.fromkeys(("rate", "of_x", "of_y", "out"), "*fp32") | {"x": "*fp16", "y": "*fp16"}
    types |= dict.fromkeys(("rows", "images", "width"), "i32") | dict.fromkeys(constants, "constexpr")
    for kernel in (fused._sums_kernel, fused._gradient_kernel):
        names = kernel.arg_names
        source = ASTSource(
            kernel,
            {name: types[name] for name in names},
            {name: constants[name] for name in names if name in constants},
            {(k,): [["tt.divisibility", 16]] for k, name in enumerate(names) if types[name].startswith("*")},
        )
        compiled = triton.compile(source, GPUTarget("cuda", 90, 32), options)
        assert compiled.metadata.shared <= fused.SHARED
        assert "wgmma" in compiled.asm["ptx"]


def test_fused_kernels_are_unavailable_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    module = import_script(Path(fused.__file__))
    assert module.triton is None
    assert not module.available(torch.zeros(4, 2))


def test_fused_kernels_are_unavailable_on_cpu():
    assert not fused.available(torch.zeros(4, 2))


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, False),
        ({"shared_memory_per_block_optin": fused.SHARED - 1}, False),
        ({"shared_memory_per_block_optin": fused.SHARED}, True),
    ],
)
def test_fused_kernels_require_enough_reported_shared_memory(monkeypatch, properties, expected):
    rows = SimpleNamespace(is_cuda=True, dtype=torch.float32, shape=(4, 2), device="cuda")
    monkeypatch.setattr(fused, "triton", object())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))
    assert fused.available(rows) is expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnDevice:
    @pytest.fixture(autouse=True)
    def _large_enough(self):
        if not fused.available(torch.zeros(4, 2, device="cuda")):
            pytest.skip("too small a device")

    @pytest.mark.parametrize("tau", [1.0, 0.1, 0.03, 0.01])
    @pytest.mark.parametrize("batch", ["near", "random", "narrow"])
    @pytest.mark.parametrize(("n", "dim"), [(2, 3), (37, 24), (400, 64), (400, 200), (4096, 128)])
    @pytest.mark.parametrize("pairs", ["both", "cross"])
    def test_kernels_equal_the_definition_and_are_reproducible(self, pairs, n, dim, tau, batch):
        case = Case(pairs, n, dim, tau, batch)
        results = outcome(case, fused_margin, device="cuda")
        assert_exact(case, results, "cuda")
        again = outcome(case, fused_margin, device="cuda")
        assert all(torch.equal(one, two) for one, two in zip(results, again, strict=True))

    def test_second_derivative_raises_runtime_error(self):
        assert check_second_derivative_raises("cuda")

    @pytest.mark.parametrize("pairs", ["both", "cross"])
    def test_memory_grows_with_rows_not_with_pairs(self, pairs):
        """One similarity matrix of 2N = 131,072 rows would take 64 GiB."""
        inputs = leaves(Case(pairs, 65536, 128, 0.1), torch.float32, "cuda")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(fused_margin(*inputs, pairs).sum(), inputs)
        assert torch.cuda.max_memory_allocated() - before < 0.5e9


if __name__ == "__main__":
    (save_edge_results if sys.argv[2:] else save_results)(sys.argv[1])
