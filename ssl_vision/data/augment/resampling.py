"""Resampling of image batches with individual geometry per image."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Taps(NamedTuple):
    """Sparse linear map of lines of pixels: output t of line n is the sum over k of weight · line[pixel].

    Attributes:
        pixel: Input pixels of every output, (N, T, K) int64.
        weight: Weights of the input pixels, (N, T, K) float32; those of an output sum to 1.
    """

    pixel: Tensor
    weight: Tensor


def separable(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Resample every row of the images with `columns`, then every column with `rows`.

    With N = M · V views of M images, taps n are applied to image n // V.

    Args:
        images: (M, C, H, W) float32; a transposed memory layout saves a copy.
        rows: Taps of N views, from H to S.
        columns: Taps of N views, from W to T.

    Returns:
        (N, C, S, T).
    """
    return _lines(_lines(images.transpose(2, 3), columns).transpose(2, 3), rows)


def triangle(start: Tensor, length: Tensor, reverse: Tensor, *, source: int, size: int) -> Taps:
    """Compute taps that resize the interval [start, start + length) of a line of pixels to `size` pixels.

    They implement the triangle filter of antialiased bilinear resizing. Its half-width is one source pixel
    for enlargement and length/size source pixels for reduction; pixels outside the interval have no weight.

    Args:
        start: First pixel of the interval, (N,).
        length: Number of pixels in the interval, (N,), at most `source`.
        reverse: Reverse the order of the outputs, (N,) bool.
        source: Number of pixels in the line.
        size: Number of output pixels.

    Returns:
        N taps from `source` to `size`, with 2 taps per output, or as many as the widest filter covers.
    """
    start, length, reverse = (part.view(-1, 1, 1) for part in (start, length, reverse))
    count = 2 if source <= size else math.ceil(2 * source / size) + 1
    out = torch.arange(size, device=start.device).unsqueeze(1)
    out = out + reverse * (size - 1 - 2 * out)
    scale = length / size
    support = scale.clamp(min=1.0)
    centre = scale * (out + 0.5)
    first = (centre - 0.5 - support).floor().long() + 1
    pixel = first + torch.arange(count, device=start.device)
    # The order of operations is that of torch, so that the weights are rounded equally.
    distance = (pixel - centre + 0.5).abs_() / support
    weight = (1.0 - distance).clamp_(min=0.0) * ((pixel >= 0) & (pixel < length))
    return Taps((pixel + start).clamp_(0, source - 1), weight / weight.sum(dim=2, keepdim=True))


def gaussian(sigma: Tensor, *, kernel: int, size: int) -> Taps:
    """Compute taps of a Gaussian blur of a line of `size` pixels, truncated to `kernel` taps and reflected.

    Args:
        sigma: Standard deviation in pixels, (N,), above 0.
        kernel: Odd number of taps, below 2 * size.
        size: Number of pixels.

    Returns:
        N taps from `size` to `size`, with min(kernel, size) taps per output.
    """
    out = torch.arange(size, device=sigma.device).unsqueeze(1)
    count = min(kernel, size)
    pixel = (out - kernel // 2).clamp_(0, size - count) + torch.arange(count, device=sigma.device)
    sigma = sigma.view(-1, 1, 1)

    def density(offset: Tensor) -> Tensor:
        return torch.exp(-0.5 * (offset / sigma) ** 2) * (offset.abs() <= kernel // 2)

    weight = density(pixel - out)
    weight += density(-pixel - out) * (pixel > 0)
    weight += density(2 * (size - 1) - pixel - out) * (pixel < size - 1)
    return Taps(pixel.expand(weight.shape).contiguous(), weight / weight.sum(dim=2, keepdim=True))


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its centre, bilinear, with zeros outside the image.

    Args:
        images: (N, C, H, W) float.
        degrees: Angles in degrees, (N,).

    Returns:
        (N, C, H, W).
    """
    height, width = images.shape[-2:]
    cos, sin = torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))
    zero = torch.zeros_like(cos)
    # The coordinates of grid_sample run from -1 to 1 on both axes for any aspect ratio.
    x = torch.stack((cos, -sin * (height / width), zero), dim=1)
    y = torch.stack((sin * (width / height), cos, zero), dim=1)
    grid = F.affine_grid(torch.stack((x, y), dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _lines(images: Tensor, taps: Taps) -> Tensor:
    """Compute out[n, c, t] = Σ_k weight[n, t, k] · images[n // V, c, pixel[n, t, k]], shape (N, C, T, W).

    The lines are treated as a table of embeddings and the outputs as its bags. This is one pass over memory
    in one kernel, and in float32 for any precision of matrix products.
    """
    m, channels, height, width = images.shape
    n, size, count = taps.pixel.shape
    first = torch.arange(0, m * channels * height, height, device=images.device)
    index = taps.pixel.view(m, n // m, 1, size, count) + first.view(m, 1, channels, 1, 1)
    weight = taps.weight.unsqueeze(1).expand(n, channels, size, count)
    lines = F.embedding_bag(
        index.view(-1, count),
        images.reshape(m * channels * height, width),
        mode="sum",
        per_sample_weights=weight.reshape(-1, count),
    )
    return lines.view(n, channels, size, width)
