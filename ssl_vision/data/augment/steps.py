"""Augmentation steps, which are planned for a whole batch and applied to its pixels in parts."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.augment import operations
from ssl_vision.data.augment.operations import HUE, Planes, Taps
from ssl_vision.data.augment.view_parameters import ViewOptions, ViewParameters

_CACHED = 2**18
"""Number of values in a part of a batch on a CPU, so that it stays in the cache with its intermediates."""


class AugmentationSteps(NamedTuple):
    """Augmentation steps of N views, in order; steps that are None are skipped. Masks are (N, 1, 1), 0 or 1.

    Attributes:
        angle: Rotation in degrees, (N,).
        rows: Taps of the crop, from the rows of the image to those of the view.
        columns: Taps of the crop and the flip, from the columns of the image to those of the view.
        blends: Blend recipes of the colour jitter, (N, 3 or 6, 3).
        turn: Hue rotation, (N,).
        grayscale: Mask of grayscale views.
        blur: Mask of blurred views.
        blurring: Taps of the blur, for rows and columns.
        solarize: Mask of solarized views.
    """

    angle: Tensor | None
    rows: Taps
    columns: Taps
    blends: Tensor | None
    turn: Tensor | None
    grayscale: Tensor | None
    blur: Tensor | None
    blurring: Taps | None
    solarize: Tensor | None

    def of_views(self, rows: slice | Tensor) -> "AugmentationSteps":
        """Return the steps of selected views."""

        def select(field: Tensor | Taps | None) -> Tensor | Taps | None:
            if isinstance(field, Taps):
                return Taps(*(tensor[rows] for tensor in field))
            return None if field is None else field[rows]

        return AugmentationSteps(*map(select, self))  # type: ignore[arg-type]


def plan_steps(
    views: ViewOptions, parameters: ViewParameters, *, height: int, width: int
) -> AugmentationSteps:
    """Plan the steps of N views; steps that the options never apply are None.

    Args:
        views: Options of the views.
        parameters: Parameters of the N views.
        height: Height of the images.
        width: Width of the images.
    """
    p, size = parameters, views.size

    def mask(chosen: Tensor, rate: float) -> Tensor | None:
        return chosen.view(-1, 1, 1).float() if rate > 0 else None

    blends = turn = None
    if views.jitter > 0 and max(views.brightness, views.contrast, views.saturation, views.hue) > 0:
        unchanged = (torch.arange(4, device=p.factors.device) < 3).float()
        factors = torch.where(p.jitter.unsqueeze(1), p.factors, unchanged)
        blends = operations.recipes(p.order, factors, hue=views.hue > 0)
        turn = factors[:, HUE].contiguous() if views.hue > 0 else None
    return AugmentationSteps(
        angle=p.angle if views.degrees > 0 else None,
        rows=operations.triangle(p.top, p.height, torch.zeros_like(p.flip), source=height, size=size),
        columns=operations.triangle(p.left, p.width, p.flip, source=width, size=size),
        blends=blends,
        turn=turn,
        grayscale=mask(p.grayscale, views.grayscale),
        blur=mask(p.blur, views.blur),
        blurring=operations.gaussian(p.sigma, kernel=views.kernel, size=size) if views.blur > 0 else None,
        solarize=mask(p.solarize, views.solarize),
    )


def apply_steps(
    views: ViewOptions,
    images: Tensor,
    steps: AugmentationSteps,
    *,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
) -> Tensor:
    """Augment and normalise images.

    On a CPU, `views.compile` compiles the steps after the crop, for parts of a shape that does not depend on
    the number of images. On other devices, the caller is compiled instead.

    Args:
        views: Options of the views.
        images: (M, C, H, W) uint8.
        steps: Steps of N = M · V views; view n is of image n // V.
        dtype: Dtype of the views.
        memory_format: Memory format of the views.

    Returns:
        (N, C, size, size): all first views, then all second views.
    """
    n, size = steps.rows.weight.shape[:2]
    m, v, c = len(images), n // len(images), images.shape[1]
    if torch.compiler.is_compiling():
        result = finished(views, cropped(images, steps), steps, dtype)
        result = result.view(m, v, c, size, size).transpose(0, 1).reshape(n, c, size, size)
        return result.contiguous(memory_format=memory_format)
    on_cpu = images.device.type == "cpu"
    compiled = views.compile is True and on_cpu
    result = torch.empty((n, c, size, size), dtype=dtype, device=images.device, memory_format=memory_format)
    by_image = result.view(v, m, c, size, size).transpose(0, 1)
    # a power of two divides most batch sizes
    count = 1 << max(0, (_CACHED // (v * c * size**2)).bit_length() - 1) if on_cpu else m
    if compiled and m % count:  # the last image fills up the last part
        rows = torch.arange(-(-m // count) * count).clamp_(max=m - 1)
        images, steps = images[rows], steps.of_views((v * rows.unsqueeze(1) + torch.arange(v)).flatten())
    for start in range(0, m, count):
        target = by_image[start : start + count]
        part = steps.of_views(slice(v * start, v * (start + count)))
        pixels = cropped(images[start : start + count], part)
        if compiled:
            augmented = _compiled()(views, pixels, part, dtype)
            target.copy_(augmented.view(count, v, c, size, size)[: len(target)])
            continue
        for channel, plane in enumerate(coloured(views, pixels.unbind(1), part)):
            normal = plane.view(-1, v, size, size).sub_(views.mean[channel])
            torch.div(normal, views.std[channel], out=target[:, :, channel])
    return result


def finished(views: ViewOptions, pixels: Tensor, steps: AugmentationSteps, dtype: torch.dtype) -> Tensor:
    """Apply the steps after the crop, as one expression."""
    planes = coloured(views, pixels.unbind(1), steps)
    normal = [(plane - mean) / std for plane, mean, std in zip(planes, views.mean, views.std, strict=True)]
    return torch.stack(normal, dim=1).to(dtype)


@functools.cache
def _compiled() -> Callable[[ViewOptions, Tensor, AugmentationSteps, torch.dtype], Tensor]:
    return torch.compile(finished, dynamic=False)


def cropped(images: Tensor, steps: AugmentationSteps) -> Tensor:
    """Rotate, crop and flip: (M, C, H, W) uint8 to (N, C, size, size) float32 in [0, 1]."""
    pixels = images.transpose(2, 3).contiguous().float().div_(255.0).transpose(2, 3)
    if steps.angle is not None:
        views_of_image = len(steps.angle) // len(images)
        pixels = operations.rotate(pixels.repeat_interleave(views_of_image, dim=0), steps.angle)
    return operations.separable(pixels, steps.rows, steps.columns)


def coloured(views: ViewOptions, planes: Planes, steps: AugmentationSteps) -> Planes:
    """Apply colour jitter, grayscale, blur and solarization; may modify the planes in place."""
    if steps.blends is not None:
        planes = operations.jitter(planes, steps.blends, steps.turn)
    if steps.grayscale is not None:
        luma = operations.gray(planes)
        planes = tuple(operations.choose(steps.grayscale, luma, plane) for plane in planes)
    if steps.blur is not None and steps.blurring is not None:
        blurred = operations.separable(torch.stack(planes, dim=1), steps.blurring, steps.blurring).unbind(1)
        planes = tuple(operations.choose(steps.blur, *pair) for pair in zip(blurred, planes, strict=True))
    if steps.solarize is not None:
        inverted = zip(operations.solarize(planes, views.threshold), planes, strict=True)
        planes = tuple(operations.choose(steps.solarize, *pair) for pair in inverted)
    return planes
