"""The pixels of views: steps are worked out for the whole batch, pixels pass through them in parts."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.augment.colour import HUE, Planes, choose, gray, jitter, recipes, solarize
from ssl_vision.data.augment.options import ViewOptions
from ssl_vision.data.augment.parameters import ViewParameters
from ssl_vision.data.augment.resampling import Taps, gaussian, rotate, separable, triangle

_CACHED = 2**18
"""Numbers in the pixels of a part of a batch on a CPU: what stays in its cache, with what is made of them."""


class Normalization(NamedTuple):
    """What all views share.

    Attributes:
        mean: Means of the channels.
        std: Standard deviations of the channels.
        threshold: Values of this or more are inverted where a view is solarized.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    threshold: float


class AugmentationSteps(NamedTuple):
    """What happens to N views, in this order; None is left out. Masks are (N, 1, 1), 0 or 1.

    Attributes:
        angle: (N,) rotation in degrees.
        rows: Taps of the crop, from the image's rows to the view's.
        columns: Taps of the crop and the flip, from the image's columns to the view's.
        blends: (N, 3 or 6, 3) of the colour jitter.
        turn: (N,) of the hue.
        grayscale: Mask.
        blur: Mask.
        blurring: Taps of the blur, for rows and for columns.
        solarize: Mask.
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

    def part(self, rows: slice | Tensor) -> "AugmentationSteps":
        """Those of some views."""

        def cut(field: Tensor | Taps | None) -> Tensor | Taps | None:
            if isinstance(field, Taps):
                return Taps(*(tensor[rows] for tensor in field))
            return None if field is None else field[rows]

        return AugmentationSteps(*map(cut, self))  # type: ignore[arg-type]


def plan_steps(
    views: ViewOptions, parameters: ViewParameters, *, height: int, width: int
) -> AugmentationSteps:
    """The steps of N views; those that the options never take are None.

    Args:
        views: The options.
        parameters: N rows.
        height: Rows of the images.
        width: Columns of the images.
    """
    p, size = parameters, views.size

    def mask(chosen: Tensor, rate: float) -> Tensor | None:
        return chosen.view(-1, 1, 1).float() if rate > 0 else None

    blends = turn = None
    if views.jitter > 0 and max(views.brightness, views.contrast, views.saturation, views.hue) > 0:
        still = (torch.arange(4, device=p.factors.device) < 3).float()
        factors = torch.where(p.jitter.unsqueeze(1), p.factors, still)
        blends = recipes(p.order, factors, hue=views.hue > 0)
        turn = factors[:, HUE].contiguous() if views.hue > 0 else None
    return AugmentationSteps(
        angle=p.angle if views.degrees > 0 else None,
        rows=triangle(p.top, p.height, torch.zeros_like(p.flip), source=height, size=size),
        columns=triangle(p.left, p.width, p.flip, source=width, size=size),
        blends=blends,
        turn=turn,
        grayscale=mask(p.grayscale, views.grayscale),
        blur=mask(p.blur, views.blur),
        blurring=gaussian(p.sigma, kernel=views.kernel, size=size) if views.blur > 0 else None,
        solarize=mask(p.solarize, views.solarize),
    )


def render(
    images: Tensor,
    steps: AugmentationSteps,
    look: Normalization,
    *,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    compiled: bool = False,
) -> Tensor:
    """Views of images.

    Args:
        images: (M, 3, H, W) uint8.
        steps: Of N = M · V views, view n of image n // V.
        look: What all views share.
        dtype: Of the result.
        memory_format: Of the result.
        compiled: On a CPU: what follows the crop is compiled, for parts of one shape whatever M is. Elsewhere
            compile the caller: within torch.compile this is one expression.

    Returns:
        (N, 3, size, size), all first views, then all second views.
    """
    n, size = steps.rows.weight.shape[:2]
    m, v = len(images), n // len(images)
    if torch.compiler.is_compiling():
        made = finished(cropped(images, steps), steps, look, dtype)
        made = made.view(m, v, 3, size, size).transpose(0, 1).reshape(n, 3, size, size)
        return made.contiguous(memory_format=memory_format)
    out = torch.empty((n, 3, size, size), dtype=dtype, device=images.device, memory_format=memory_format)
    views = out.view(v, m, 3, size, size).transpose(0, 1)
    count = m
    if images.device.type == "cpu":  # a power of two, so that the parts of most batches are full
        count = 1 << max(0, (_CACHED // (v * 3 * size**2)).bit_length() - 1)
    if compiled and m % count:  # the last image fills up the last part
        rows = torch.arange(-(-m // count) * count).clamp_(max=m - 1)
        images, steps = images[rows], steps.part((v * rows.unsqueeze(1) + torch.arange(v)).flatten())
    for start in range(0, m, count):
        there = views[start : start + count]
        part = steps.part(slice(v * start, v * (start + count)))
        pixels = cropped(images[start : start + count], part)
        if compiled:
            made = _compiled()(pixels, part, look, dtype)
            there.copy_(made.view(count, v, 3, size, size)[: len(there)])
            continue
        for channel, plane in enumerate(coloured(pixels.unbind(1), part, look)):
            normal = plane.view(-1, v, size, size).sub_(look.mean[channel])
            torch.div(normal, look.std[channel], out=there[:, :, channel])
    return out


def finished(pixels: Tensor, steps: AugmentationSteps, look: Normalization, dtype: torch.dtype) -> Tensor:
    """What follows the crop, as one expression."""
    planes = coloured(pixels.unbind(1), steps, look)
    normal = [(plane - mean) / std for plane, mean, std in zip(planes, look.mean, look.std, strict=True)]
    return torch.stack(normal, dim=1).to(dtype)


@functools.cache
def _compiled() -> Callable[[Tensor, AugmentationSteps, Normalization, torch.dtype], Tensor]:
    return torch.compile(finished, dynamic=False)


def cropped(images: Tensor, steps: AugmentationSteps) -> Tensor:
    """Crops in [0, 1], rotated and flipped: (M, 3, H, W) uint8 to (N, 3, size, size) float32."""
    pixels = images.transpose(2, 3).contiguous().float().div_(255.0).transpose(2, 3)
    if steps.angle is not None:
        pixels = rotate(pixels.repeat_interleave(len(steps.angle) // len(images), dim=0), steps.angle)
    return separable(pixels, steps.rows, steps.columns)


def coloured(planes: Planes, steps: AugmentationSteps, look: Normalization) -> Planes:
    """Colour jitter, grayscale, blur and solarization; the planes are new, or were nobody else's."""
    if steps.blends is not None:
        planes = jitter(planes, steps.blends, steps.turn)
    if steps.grayscale is not None:
        luma = gray(planes)
        planes = tuple(choose(steps.grayscale, luma, plane) for plane in planes)
    if steps.blur is not None and steps.blurring is not None:
        blurred = separable(torch.stack(planes, dim=1), steps.blurring, steps.blurring).unbind(1)
        planes = tuple(choose(steps.blur, *pair) for pair in zip(blurred, planes, strict=True))
    if steps.solarize is not None:
        inverted = solarize(planes, look.threshold)
        planes = tuple(choose(steps.solarize, *pair) for pair in zip(inverted, planes, strict=True))
    return planes
