"""Resampling of image batches where every image has its own geometry."""

import torch
from torch import Tensor
from torch.nn import functional as F


def separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Each image times its own two matrices: out[n, c] = rows[n] · images[n, c] · columns[n]ᵀ.

    Args:
        images: (N, C, H, W) float.
        rows: (N, S, H).
        columns: (N, T, W).

    Returns:
        (N, C, S, T).
    """
    n, c, h, w = images.shape
    images = torch.bmm(images.reshape(n, c * h, w), columns.transpose(1, 2))
    return torch.matmul(rows.unsqueeze(1), images.view(n, c, h, columns.shape[1]))


def triangle(start: Tensor, length: Tensor, reverse: Tensor, *, source: int, size: int) -> Tensor:
    """Weights that resize the interval [start, start + length) of a line of pixels to `size` pixels.

    The triangle filter of antialiased bilinear resizing: its half-width is one source pixel where the
    interval is enlarged and length/size source pixels where it is shrunk; no pixel outside weighs anything.

    Args:
        start: (N,) first pixel of the interval.
        length: (N,) number of pixels in it.
        reverse: (N,) bool, True to write the result from the last pixel to the first.
        source: Number of pixels in the line.
        size: Number of pixels to make.

    Returns:
        (N, size, source) float32, each row summing to 1.
    """
    start, length, reverse = (part.view(-1, 1, 1) for part in (start, length, reverse))
    out = torch.arange(size, device=start.device).unsqueeze(1)
    out = torch.where(reverse, size - 1 - out, out)
    pixel = torch.arange(source, device=start.device) - start
    scale = length / size
    # The order of operations is torch's own, so that the weights round alike.
    distance = (pixel - scale * (out + 0.5) + 0.5).abs_() / scale.clamp(min=1.0)
    weights = (1.0 - distance).clamp_(min=0.0) * ((pixel >= 0) & (pixel < length))
    return weights / weights.sum(dim=2, keepdim=True)


def gaussian(sigma: Tensor, *, kernel: int, size: int) -> Tensor:
    """Weights that blur a line of `size` pixels by a Gaussian cut to `kernel` taps, reflected at both ends.

    Args:
        sigma: (N,) standard deviation in pixels, above 0.
        kernel: Odd number of taps, below 2 * size.
        size: Number of pixels.

    Returns:
        (N, size, size) float32, each row summing to 1.
    """
    pixel = torch.arange(size, device=sigma.device)
    out = pixel.unsqueeze(1)
    sigma = sigma.view(-1, 1, 1)

    def taps(offset: Tensor) -> Tensor:
        return torch.exp(-0.5 * (offset / sigma) ** 2) * (offset.abs() <= kernel // 2)

    weights = taps(pixel - out)
    weights += taps(-pixel - out) * (pixel > 0)
    weights += taps(2 * (size - 1) - pixel - out) * (pixel < size - 1)
    return weights / weights.sum(dim=2, keepdim=True)


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
