"""Operations on image batches with individual parameters per image: colour, resampling and rotation.

Colour operations take images as planes (red, green and blue, or any other channels), each (N, H, W) float in
[0, 1], because three planes compile to one loop over the pixels. Some functions have separate fast paths for
eager and compiled code, which differ only by rounding.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Planes = tuple[Tensor, ...]

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def gray(planes: Planes) -> Tensor:
    """Compute the luma 0.2989 R + 0.587 G + 0.114 B, shape (N, H, W)."""
    red, green, blue = planes
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Select `yes` where the mask is 1.0 and `no` where it is 0.0; both must be finite."""
    if torch.compiler.is_compiling():
        return torch.where(mask > 0.5, yes, no)
    return torch.lerp(no, yes, mask)  # eight times as fast as torch.where on a CPU


def solarize(planes: Planes, threshold: float) -> Planes:
    """Invert values of at least `threshold`, x to 1 - x."""
    return tuple(choose(plane.clone().ge_(threshold), 1.0 - plane, plane) for plane in planes)


def blend(planes: Planes, recipe: Tensor) -> Planes:
    """Compute factor · image + (1 - factor) · reference, clamped to [0, 1].

    The reference is a times the gray image plus b times its mean. Without red, green and blue, it is b times
    the mean of each plane. A factor of 1 returns the image.

    Args:
        planes: Planes of N images.
        recipe: factor, a and b of each image, (N, 3). (a, b) is (0, 0) for brightness, (0, 1) for contrast
            and (1, 0) for saturation.
    """
    factor, a, b = recipe.view(-1, 3, 1, 1).unbind(1)
    if len(planes) != 3:
        means = [plane.mean(dim=(1, 2), keepdim=True) for plane in planes]
        return tuple(_clamp(_mix(mean * b, plane, factor)) for mean, plane in zip(means, planes, strict=True))
    reference = gray(planes)
    mean = reference.mean(dim=(1, 2), keepdim=True)
    reference = reference.mul_(a).add_(mean.mul_(b))
    return tuple(_clamp(_mix(reference, plane, factor)) for plane in planes)


def rotate_hue(planes: Planes, turn: Tensor) -> Planes:
    """Rotate the hue by `turn` of the colour circle, without changing saturation and value.

    With V the largest channel, C = V - smallest, h the hue in sixths of the circle and
    y = h + 6 turn + (3, 1, -1) for red, green and blue:  channel = V - C clamp(2 - |y - 6 round(y/6)|, 0, 1).

    Args:
        planes: Planes of N images.
        turn: Rotation of each image, (N,) in [-0.5, 0.5].
    """
    red, green, blue = planes
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    divisor = chroma.clamp(min=torch.finfo(chroma.dtype).tiny)
    sixths = ((red - green) / divisor).add_(4.0)
    sixths = choose(green.clone().eq_(high), ((blue - red) / divisor).add_(2.0), sixths)
    sixths = choose(red.clone().eq_(high), (green - blue) / divisor, sixths)
    sixths = sixths + 6.0 * turn.view(-1, 1, 1)

    def channel(offset: float) -> Tensor:
        y = sixths + offset
        y = y.sub_((y / 6.0).round_(), alpha=6.0).abs_()
        return torch.addcmul(high, chroma, _clamp(torch.rsub(y, 2.0)), value=-1.0)

    return channel(3.0), channel(1.0), channel(-1.0)


def recipes(order: Tensor, factors: Tensor, *, hue: bool) -> Tensor:
    """Compute the recipes of the blends of a colour jitter, for `jitter`.

    Three blends are applied before and three after the hue rotation. Blends that an image skips have factor
    1. Six blends and one hue rotation take half the time of four rounds of both.

    Args:
        order: Order of the four operations, (N, 4) int64; each row is a permutation.
        factors: Strengths by operation, (N, 4); (1, 1, 1, 0) changes nothing.
        hue: False omits the hue rotation, so that three blends suffice.

    Returns:
        (N, 6, 3), three blends before and three after the hue rotation, or (N, 3, 3).
    """
    place = (order == HUE).long().argmax(dim=1, keepdim=True)
    rank = torch.arange(3, device=order.device)
    blends = order.gather(1, rank + (rank >= place))
    strengths = factors.gather(1, blends)
    if hue:
        before = torch.where(rank < place, strengths, 1.0)
        after = torch.where(rank < place, 1.0, strengths)
        strengths, blends = torch.cat((before, after), dim=1), blends.repeat(1, 2)
    return torch.stack((strengths, blends == SATURATION, blends == CONTRAST), dim=2)


def jitter(planes: Planes, blends: Tensor, turn: Tensor | None) -> Planes:
    """Change brightness, contrast, saturation and hue, in an individual order per image.

    Args:
        planes: Planes of N images.
        blends: Result of `recipes`, (N, 6, 3), or (N, 3, 3) without hue rotation.
        turn: Hue rotation, (N,), or None.
    """
    for number, recipe in enumerate(blends.unbind(1)):
        if number == 3 and turn is not None:
            planes = rotate_hue(planes, turn)
        planes = blend(planes, recipe)
    return planes


def _mix(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return weight * end + (1.0 - weight) * start
    return torch.lerp(start, end, weight)


def _clamp(x: Tensor) -> Tensor:
    """Clamp to [0, 1], possibly in place."""
    if torch.compiler.is_compiling():  # clamp also checks for NaN, which takes four times the instructions
        x = torch.relu(x)
        return x - torch.relu(x - 1.0)
    return x.clamp_(0.0, 1.0)


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
