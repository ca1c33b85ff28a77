"""Log-sum-exp of the logit margin on a CUDA device by two Triton kernels, in O(N · D) memory.

Tensor cores multiply half-precision numbers more than ten times as fast as other units multiply float32.
Each float32 factor is therefore split into two halves, a = a₁ + a₂, where a₂ is the rounding error of a₁, and

    a · b = a₁ · b₁ + a₁ · b₂ + a₂ · b₁

is summed in float32. The omitted term a₂ · b₂ is of the size of float32's rounding error. Factors are scaled
by 2¹² first, so that their second halves remain in the range of half precision.

Sums have the same order at every call, so a second call gives the same bits.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ssl_vision.objectives.tiled import Pairs, refuse_second_derivative

try:
    import triton  # type: ignore[import-untyped,import-not-found]
    import triton.language as tl  # type: ignore[import-untyped,import-not-found]
except ImportError:  # torch's builds for the CPU bring no Triton
    triton = None

MAX_DIM = 256
"""Maximum dimension, padded to a power of two, whose tiles fit into ``SHARED`` bytes."""

SHARED = 202_000
"""Bytes of shared memory that the kernels need; devices of compute capability 9.0 and 10.0 have 232,448."""

BLOCK = 128
"""Number of rows of one program."""

SCALE = 4096.0
"""The factor 2¹² that scales the inputs."""


def available(u: Tensor) -> bool:
    """Return True for float32 rows of at most ``MAX_DIM`` dimensions on a device with enough memory."""
    if triton is None or not u.is_cuda or u.dtype != torch.float32 or u.shape[1] > MAX_DIM:
        return False
    # an attribute of NVIDIA's GPUs that PyTorch annotates since 2.15
    shared: int = getattr(torch.cuda.get_device_properties(u.device), "shared_memory_per_block_optin", 0)
    return shared >= SHARED


def fused_logit_margin(u: Tensor, positive: Tensor, tau: Tensor, *, pairs: Pairs) -> Tensor:
    """Compute log Σ_j exp((u_i · u_j − p_i) / τ_i) over the rows j of other images, for each row i.

    The result is differentiable once in all arguments.

    Args:
        u: rows of norm 1 or 0, those of view 1 first, shape (2N, D).
        positive: positive similarities p, shape (2N,).
        tau: temperatures τ > 0, shape (2N,).
        pairs: ``"both"`` for j in both views, or ``"cross"`` for j in the other view.

    Returns:
        The log-sum-exps, shape (2N,).
    """
    sides = (u, None) if pairs == "both" else u.chunk(2)
    d: Tensor = _Fused.apply(*sides, positive, tau)
    return d


class _Fused(torch.autograd.Function):
    """Log-sum-exp over the rows of one side, or over the rows of two sides with those of the other side.

    With m_i the largest similarity of row i and S_i = Σ_j exp((s_ij − m_i) / τ_i), the result is
    d_i = (m_i − p_i) / τ_i + log S_i, and the share of pair (i, j) in it is exp((s_ij − m_i) / τ_i) / S_i.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, u1: Tensor, u2: Tensor | None, positive: Tensor, tau: Tensor
    ) -> Tensor:
        sides = [_halves(u) for u in (u1, u2) if u is not None]
        rate = (math.log2(math.e) / SCALE**2 / tau).contiguous()  # exp(x / τ) = 2^(x · SCALE² · rate)
        parts = zip(sides, sides[::-1], rate.chunk(len(sides)), strict=True)
        images = len(tau) // 2
        sums = [_sums(x, y, r, images, mean=ctx.needs_input_grad[3]) for x, y, r in parts]
        largest, total, excess = torch.cat(sums, dim=1)
        nearest = (largest / SCALE**2 - positive) / tau
        ctx.width = u1.shape[1]
        ctx.save_for_backward(tau, rate, largest, total, nearest + math.log(2) * excess / total, *sides)
        d: Tensor = nearest + total.log()
        return d

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivative()
        tau, rate, largest, total, mean_gap, *sides = ctx.saved_tensors
        scaled = gradient / tau
        rows = torch.stack([rate, largest, scaled / total]).chunk(len(sides), dim=1)
        images = len(tau) // 2
        to_u: list[Tensor | None] = [None, None]
        for k, (x, y) in enumerate(zip(sides, sides[::-1], strict=True)):
            if ctx.needs_input_grad[k]:
                to_u[k] = _gradient(x, y, rows[k], rows[-1 - k], images, ctx.width)
        return *to_u, -scaled, -scaled * mean_gap


def _halves(u: Tensor) -> Tensor:
    """Split each row into two halves, shape (rows, 2, columns), padded with zeros."""
    count, width = u.shape
    columns = max(16, 1 << (width - 1).bit_length())
    halves = u.new_zeros(-(-count // BLOCK) * BLOCK, 2, columns, dtype=torch.float16)
    scaled = u * SCALE
    halves[:count, 0, :width] = scaled
    halves[:count, 1, :width] = scaled - halves[:count, 0, :width]
    return halves


def _sums(x: Tensor, y: Tensor, rate: Tensor, images: int, *, mean: bool) -> Tensor:
    """Compute m · SCALE², S and, if ``mean``, Σ_j 2^e_ij e_ij, where 2^e_ij = exp((s_ij − m_i) / τ_i).

    The three rows have the shape (3, rows).
    """
    out = rate.new_zeros(3, len(rate))
    with torch.cuda.device_of(x):
        kernel = _sums_kernel[(len(x) // BLOCK,)]
        kernel(x, y, rate, out, len(rate), images, MEAN=mean, SCALE=SCALE, **_launch(x))
    return out


def _gradient(x: Tensor, y: Tensor, of_x: Tensor, of_y: Tensor, images: int, width: int) -> Tensor:
    """Compute Σ_j (w_i 2^e_ij + w_j 2^e_ji) y_j, (rows, width), from (3, rows): rate, m · SCALE², w."""
    of_x, of_y = of_x.contiguous(), of_y.contiguous()
    out = of_x.new_empty(of_x.shape[1], width)
    with torch.cuda.device_of(x):
        kernel = _gradient_kernel[(len(x) // BLOCK,)]
        kernel(x, y, of_x, of_y, out, len(out), images, width, SCALE=SCALE, **_launch(x))
    return out


def _launch(x: Tensor) -> dict[str, int]:
    """Choose sizes so that two tiles fit into shared memory and sums (nearly) into registers."""
    columns = x.shape[2]
    step = {128: 128, 256: 32}.get(columns, 64)
    tiles = {"D": columns, "BLOCK": BLOCK, "STEP": step}
    # Triton 3.9 warns where the fusing of a · b + c is left to its default.
    return tiles | {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": True}


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _tile(
        x: tl.tensor, start: tl.tensor, ROWS: tl.constexpr, D: tl.constexpr
    ) -> tuple[tl.tensor, tl.tensor]:
        row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, D)[None, :]
        first = x + tl.cast(start, tl.int64) * (2 * D) + (row * (2 * D) + column)
        return tl.load(first), tl.load(first + D)

    @triton.jit  # type: ignore[untyped-decorator]
    def _product(a1: tl.tensor, a2: tl.tensor, b1: tl.tensor, b2: tl.tensor) -> tl.tensor:
        small = tl.dot(a1, b2, tl.dot(a2, b1))
        return tl.dot(a1, b1, small)

    @triton.jit  # type: ignore[untyped-decorator]
    def _is_negative(i: tl.tensor, j: tl.tensor, rows: tl.tensor, images: tl.tensor) -> tl.tensor:
        i = tl.where(i < images, i, i - images)
        image = tl.where(j < images, j, j - images)
        return (i[:, None] != image[None, :]) & (j < rows)[None, :]

    @triton.jit  # type: ignore[untyped-decorator]
    def _sums_kernel(
        x: tl.tensor,
        y: tl.tensor,
        rate: tl.tensor,
        out: tl.tensor,
        rows: tl.tensor,
        images: tl.tensor,
        MEAN: tl.constexpr,
        SCALE: tl.constexpr,
        D: tl.constexpr,
        BLOCK: tl.constexpr,
        STEP: tl.constexpr,
    ) -> None:
        first = tl.program_id(0) * BLOCK
        i = first + tl.arange(0, BLOCK)
        a1, a2 = _tile(x, first, BLOCK, D)
        rate = tl.load(rate + i, mask=i < rows, other=0.0)
        # Below any cosine and finite, because −∞ − (−∞) would be NaN.
        largest = tl.full([BLOCK], -2 * SCALE * SCALE, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        excess = tl.zeros([BLOCK], tl.float32)
        for start in range(0, rows, STEP):
            b1, b2 = _tile(y, start, STEP, D)
            s = _product(a1, a2, tl.trans(b1), tl.trans(b2))
            s = tl.where(_is_negative(i, start + tl.arange(0, STEP), rows, images), s, -1e30)
            peak = tl.maximum(largest, tl.max(s, 1))
            exponent = (s - peak[:, None]) * rate[:, None]
            term = tl.exp2(exponent)
            sunk = (largest - peak) * rate
            if MEAN:
                excess = (excess + total * sunk) * tl.exp2(sunk) + tl.sum(term * exponent, 1)
            total = total * tl.exp2(sunk) + tl.sum(term, 1)
            largest = peak
        tl.store(out + i, largest, mask=i < rows)
        tl.store(out + rows + i, total, mask=i < rows)
        tl.store(out + 2 * rows + i, excess, mask=i < rows)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gradient_kernel(
        x: tl.tensor,
        y: tl.tensor,
        of_x: tl.tensor,
        of_y: tl.tensor,
        out: tl.tensor,
        rows: tl.tensor,
        images: tl.tensor,
        width: tl.tensor,
        SCALE: tl.constexpr,
        D: tl.constexpr,
        BLOCK: tl.constexpr,
        STEP: tl.constexpr,
    ) -> None:
        first = tl.program_id(0) * BLOCK
        i = first + tl.arange(0, BLOCK)
        a1, a2 = _tile(x, first, BLOCK, D)
        rate_i = tl.load(of_x + i, mask=i < rows, other=0.0)[:, None]
        largest_i = tl.load(of_x + rows + i, mask=i < rows, other=0.0)[:, None]
        w_i = tl.load(of_x + 2 * rows + i, mask=i < rows, other=0.0)[:, None]
        gradient = tl.zeros([BLOCK, D], tl.float32)
        for start in range(0, rows, STEP):
            j = start + tl.arange(0, STEP)
            b1, b2 = _tile(y, start, STEP, D)
            s = _product(a1, a2, tl.trans(b1), tl.trans(b2))
            # Loaded after the product, which needs the registers.
            rate_j = tl.load(of_y + j, mask=j < rows, other=0.0)[None, :]
            largest_j = tl.load(of_y + rows + j, mask=j < rows, other=0.0)[None, :]
            w_j = tl.load(of_y + 2 * rows + j, mask=j < rows, other=0.0)[None, :]
            share = tl.exp2((s - largest_i) * rate_i) * w_i
            share += tl.exp2((s - largest_j) * rate_j) * w_j
            share = tl.where(_is_negative(i, j, rows, images), share, 0.0)
            # Each row of a tile has its own scale. The sum over tiles is in float32, because a tensor core
            # rounds each of its thousands of additions towards zero.
            size = tl.maximum(tl.max(tl.abs(share), 1), 1e-30)[:, None]
            share *= SCALE / size
            share1 = share.to(tl.float16)
            share2 = (share - share1.to(tl.float32)).to(tl.float16)
            gradient += _product(share1, share2, b1, b2) * (size / (SCALE * SCALE))
        column = tl.arange(0, D)
        inside = (i < rows)[:, None] & (column < width)[None, :]
        tl.store(out + i.to(tl.int64)[:, None] * width + column[None, :], gradient, mask=inside)
