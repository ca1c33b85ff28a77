"""Random parameters of the views."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.augment.options import ViewOptions
from ssl_vision.data.random import numbers

_TRIES = 10
_BOX = 2 * _TRIES + 2


class ViewParameters(NamedTuple):
    """Augmentation parameters of N views; all have shape (N,) except order and factors, which have (N, 4).

    Attributes:
        top: First row of the crop box, int64.
        left: First column of the crop box, int64.
        height: Height of the crop box, int64.
        width: Width of the crop box, int64.
        angle: Rotation before the crop in degrees, counter-clockwise.
        flip: Flip horizontally, bool.
        jitter: Apply the colour jitter, bool.
        order: Order of brightness 0, contrast 1, saturation 2 and hue 3, int64.
        factors: Strengths by operation: three blend factors and the hue rotation.
        grayscale: Convert to grayscale, bool.
        blur: Apply the Gaussian blur, bool.
        sigma: Standard deviation of the blur in pixels of the view.
        solarize: Apply solarization, bool.

    Example:
        >>> ViewParameters._fields[:5]
        ('top', 'left', 'height', 'width', 'angle')
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    angle: Tensor
    flip: Tensor
    jitter: Tensor
    order: Tensor
    factors: Tensor
    grayscale: Tensor
    blur: Tensor
    sigma: Tensor
    solarize: Tensor


def sample_parameters(views: ViewOptions, starts: Tensor, *, height: int, width: int) -> ViewParameters:
    """Draw the parameters of N views from the distributions given by the options.

    Args:
        views: Options of the views.
        starts: Random states of the views from `random.states`, (N,).
        height: Height of the images.
        width: Width of the images.
    """
    drawn = numbers(starts, count=_BOX + 15)
    order, single = drawn[:, _BOX : _BOX + 4], drawn[:, _BOX + 4 :].unbind(1)
    angle, flip, jitter, brightness, contrast, saturation, hue, grayscale, blur, sigma, solarize = single
    box = boxes(drawn[:, :_BOX], height=height, width=width, scale=views.scale, ratio=views.ratio)
    strengths = (
        _between(max(0.0, 1.0 - views.brightness), 1.0 + views.brightness, brightness),
        _between(max(0.0, 1.0 - views.contrast), 1.0 + views.contrast, contrast),
        _between(max(0.0, 1.0 - views.saturation), 1.0 + views.saturation, saturation),
        _between(-views.hue, views.hue, hue),
    )
    return ViewParameters(
        *box,
        angle=_between(-views.degrees, views.degrees, angle),
        flip=flip < views.hflip,
        jitter=jitter < views.jitter,
        order=order.argsort(dim=1),
        factors=torch.stack(strengths, dim=1),
        grayscale=grayscale < views.grayscale,
        blur=blur < views.blur,
        sigma=_between(*views.sigma, sigma),
        solarize=solarize < views.solarize,
    )


def boxes(
    drawn: Tensor, *, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the boxes of random resized crops: the first of ten candidates that fits, randomly placed.

    The area of a candidate is uniform in `scale`, as a share of the image's area, and its aspect ratio is
    log-uniform in `ratio`. If none fits, the largest central box with a valid aspect ratio is used.

    Args:
        drawn: Uniform random numbers, (N, 22).
        height: Height of the images.
        width: Width of the images.
        scale: Minimum and maximum share of the area.
        ratio: Minimum and maximum aspect ratio (width / height).

    Returns:
        Top, left, height and width, each (N,) int64.
    """
    area = height * width * _between(*scale, drawn[:, :_TRIES])
    low, high = map(math.log, ratio)
    aspect = _between(low, high, drawn[:, _TRIES : 2 * _TRIES]).exp()
    rows, columns = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)
    first = fits.long().argmax(dim=1, keepdim=True)
    nearest = min(max(width / height, ratio[0]), ratio[1])
    central = (min(height, round(width / nearest)), min(width, round(height * nearest)))
    any_fits = fits.any(dim=1)

    def place(lengths: Tensor, uniform: Tensor, *, source: int, central: int) -> tuple[Tensor, Tensor]:
        length = torch.where(any_fits, lengths.gather(1, first).squeeze(1), float(central))
        start = torch.where(any_fits, uniform * (source - length + 1), float((source - central) // 2))
        return start.long(), length.long()

    top, rows = place(rows, drawn[:, -2], source=height, central=central[0])
    left, columns = place(columns, drawn[:, -1], source=width, central=central[1])
    return top, left, rows, columns


def _between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform
