"""Image corruptions at five severities, for robustness evaluation."""

import io
import math
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from ssl_vision.data.random import Stream, uniforms
from ssl_vision.errors import InputError

Corruption = Literal["noise", "blur", "contrast", "jpeg", "pixelate"]

CORRUPTIONS: tuple[Corruption, ...] = get_args(Corruption)
SEVERITIES = (1, 2, 3, 4, 5)

_NOISE = (0.04, 0.06, 0.08, 0.09, 0.10)
_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)
_BLUR_SIDE = 32
_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
_JPEG = (80, 65, 58, 50, 40)
_PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)

_AT_ONCE = 1 << 22
"""Maximum number of values whose noise is drawn at a time, to limit memory."""


def corrupt(images: Tensor, indices: Tensor, *, corruption: Corruption, severity: int, seed: int) -> Tensor:
    """Corrupt images, as a pure function of each image, its index, the severity and the seed.

    The strengths at severities 1 to 5 are those of CIFAR-10-C (Hendrycks & Dietterich 2019):

    - noise: x + σ n, with n standard normal for each value and σ = 0.04, 0.06, 0.08, 0.09, 0.10 of the range.
      The n of an image is the same at all severities.
    - blur: Gaussian with σ = 0.4, 0.6, 0.7, 0.8, 1.0 pixels for images of side 32, otherwise in proportion to
      the shorter side; truncated at 4 σ, reflected at the border.
    - contrast: μ + c (x − μ), with μ the mean of the image's channel and c = 0.75, 0.5, 0.4, 0.3, 0.15.
    - jpeg: quality 80, 65, 58, 50, 40, by Pillow on the CPU, with chroma at half the resolution.
    - pixelate: resize to 0.95, 0.9, 0.85, 0.75, 0.65 of each side (rounded down, box filter) and back
      (nearest).

    Differences from CIFAR-10-C: values are rounded to the nearest instead of down, the random numbers of the
    noise are those of this package, and the blur of CIFAR-10-C repeats the border.

    Args:
        images: (N, C, H, W) uint8, C = 1 or 3, on any device.
        indices: Number that identifies each image, (N,) int64 on the same device.
        corruption: Name of the corruption.
        severity: 1 to 5.
        seed: Seed of the noise; nothing else is random.

    Returns:
        (N, C, H, W) uint8, on the same device; other devices give the same up to rounding.

    Raises:
        InputError: unknown corruption or severity, or invalid shape or dtype.
    """
    if corruption not in CORRUPTIONS:
        raise InputError(f"corruption must be one of {', '.join(CORRUPTIONS)}, not {corruption}")
    if severity not in SEVERITIES:
        raise InputError(f"severity must be one of {', '.join(map(str, SEVERITIES))}, not {severity}")
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape[2:]:
        raise InputError(f"images must be uint8 (N, 1 or 3, H, W), not {images.dtype} {shape}")
    if indices.dtype != torch.int64 or indices.shape != images.shape[:1]:
        raise InputError(f"indices must be int64 {shape[:1]}, not {indices.dtype} {tuple(indices.shape)}")
    if not len(images):
        return images.clone()
    if corruption == "noise":
        return _noise(images, indices, _NOISE[severity - 1], seed)
    function: Callable[[Tensor, float], Tensor]
    function, strengths = {
        "blur": (_blur, _BLUR),
        "contrast": (_contrast, _CONTRAST),
        "jpeg": (_jpeg, _JPEG),
        "pixelate": (_pixelate, _PIXELATE),
    }[corruption]
    return function(images, strengths[severity - 1])


def _noise(images: Tensor, indices: Tensor, sigma: float, seed: int) -> Tensor:
    values = images[0].numel()
    half, rows = math.ceil(values / 2), max(1, _AT_ONCE // values)
    parts = []
    for part, ids in zip(images.split(rows), indices.split(rows), strict=True):
        drawn = uniforms(ids, key=(seed, Stream.CORRUPTIONS), count=2 * half)
        radius, angle = (1 - drawn[:, :half]).log_().mul_(-2).sqrt_(), drawn[:, half:].mul_(2 * math.pi)
        normal = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)[:, :values]
        parts.append(_bytes(part + (255 * sigma) * normal.reshape(part.shape)))
    return torch.cat(parts)


def _blur(images: Tensor, sigma: float) -> Tensor:
    sigma *= min(images.shape[-2:]) / _BLUR_SIDE
    blurred: Tensor = gaussian_blur(images, 2 * int(4 * sigma + 0.5) + 1, sigma)
    return blurred


def _contrast(images: Tensor, factor: float) -> Tensor:
    pixels = images.float()
    mean = pixels.mean(dim=(2, 3), keepdim=True)
    return _bytes(mean + factor * (pixels - mean))


def _jpeg(images: Tensor, quality: float) -> Tensor:
    colour = images.shape[1] == 3
    decoded = np.empty((len(images), *images.shape[2:], images.shape[1]), dtype=np.uint8)
    for pixels, out in zip(images.permute(0, 2, 3, 1).cpu().numpy(), decoded, strict=True):
        file = io.BytesIO()
        Image.fromarray(pixels if colour else pixels[..., 0]).save(file, "JPEG", quality=int(quality))
        out.flat = np.asarray(Image.open(file)).flat
    return torch.from_numpy(decoded).permute(0, 3, 1, 2).contiguous().to(images.device)


def _pixelate(images: Tensor, share: float) -> Tensor:
    pixels = images.float()
    for dim in (3, 2):  # as in PIL: rows first, rounded in between
        side = images.shape[dim]
        size = max(1, int(share * side))
        pixels = _bytes(pixels.movedim(dim, -1) @ _boxes(side, size).to(pixels).T).movedim(-1, dim).float()
    for dim in (3, 2):
        side, size = images.shape[dim], pixels.shape[dim]
        nearest = (torch.arange(side, device=images.device) * 2 + 1) * size // (2 * side)
        pixels = pixels.index_select(dim, nearest)
    return pixels.to(torch.uint8)


def _boxes(side: int, size: int) -> Tensor:
    """Return the weights (size, side) of a box filter, the mean of the pixels with centres in an interval."""
    width = side / size
    centre = (torch.arange(size, dtype=torch.float64) + 0.5) * width
    offset = (torch.arange(side) + 0.5 - centre[:, None]) / width
    inside = ((offset > -0.5) & (offset <= 0.5)).float()
    return inside / inside.sum(dim=1, keepdim=True)


def _bytes(pixels: Tensor) -> Tensor:
    return (pixels + 0.5).floor_().clamp_(0, 255).to(torch.uint8)
