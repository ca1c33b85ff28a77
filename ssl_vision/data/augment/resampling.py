"""Resampling of image batches where every image has its own geometry."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Taps(NamedTuple):
    """How a line of pixels becomes another: output t of line n is the sum over k of weight · line[pixel].

    Attributes:
        pixel: (N, T, K) int64, the input pixels of every output.
        weight: (N, T, K) float32, those of an output summing to 1.
    """

    pixel: Tensor
    weight: Tensor


def separable(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Resamples every line by `columns`, then every column by `rows`.

    The taps of N = M · V views serve M images: taps n are for image n // V.

    Args:
        images: (M, C, H, W) float32; a transposed memory layout saves a copy.
        rows: Of N views, from H to S.
        columns: Of N views, from W to T.

    Returns:
        (N, C, S, T).
    """
    return _lines(_lines(images.transpose(2, 3), columns).transpose(2, 3), rows)


def triangle(start: Tensor, length: Tensor, reverse: Tensor, *, source: int, size: int) -> Taps:
    """Taps that resize the interval [start, start + length) of a line of pixels to `size` pixels.

    The triangle filter of antialiased bilinear resizing: its half-width is one source pixel where the
    interval is enlarged and length/size source pixels where it is shrunk; no pixel outside weighs anything.

    Args:
        start: (N,) first pixel of the interval.
        length: (N,) number of pixels in it, at most `source`.
        reverse: (N,) bool, True to write the result from the last pixel to the first.
        source: Number of pixels in the line.
        size: Number of pixels to make.

    Returns:
        N taps from `source` to `size`: 2 an output, or as many as the widest filter meets.
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
    # The order of operations is torch's own, so that the weights round alike.
    distance = (pixel - centre + 0.5).abs_() / support
    weight = (1.0 - distance).clamp_(min=0.0) * ((pixel >= 0) & (pixel < length))
    return Taps((pixel + start).clamp_(0, source - 1), weight / weight.sum(dim=2, keepdim=True))


def gaussian(sigma: Tensor, *, kernel: int, size: int) -> Taps:
    """Taps that blur a line of `size` pixels by a Gaussian cut to `kernel` taps, reflected at both ends.

    Args:
        sigma: (N,) standard deviation in pixels, above 0.
        kernel: Odd number of taps, below 2 * size.
        size: Number of pixels.

    Returns:
        N taps from `size` to `size`, min(kernel, size) an output.
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
    """Each image turned counter-clockwise about its centre, bilinear, zero outside the image.

    Args:
        images: (N, C, H, W) float.
        degrees: (N,) angles.

    Returns:
        (N, C, H, W).
    """
    height, width = images.shape[-2:]
    cos, sin = torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))
    zero = torch.zeros_like(cos)
    # grid_sample's coordinates run from -1 to 1 on both axes, whatever the image's proportions.
    x = torch.stack((cos, -sin * (height / width), zero), dim=1)
    y = torch.stack((sin * (width / height), cos, zero), dim=1)
    grid = F.affine_grid(torch.stack((x, y), dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _lines(images: Tensor, taps: Taps) -> Tensor:
    """out[n, c, t] = Σ_k weight[n, t, k] · images[n // V, c, pixel[n, t, k]]: (M, C, H, W) to (N, C, T, W).

    The lines are a table of embeddings and the outputs are bags of it: one pass over memory in one kernel,
    in float32 whatever the precision of matrix products.
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
