"""What is drawn for every view."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.augment.options import ViewOptions
from ssl_vision.data.random import numbers

_TRIES = 10
_BOX = 2 * _TRIES + 2


class ViewParameters(NamedTuple):
    """What happens to each image of a batch, one row a view. All are (N,) but order and factors, (N, 4).

    Attributes:
        top: First row of the crop box, int64.
        left: First column of the crop box, int64.
        height: Rows of the crop box, int64.
        width: Columns of the crop box, int64.
        angle: Rotation before the crop, degrees counter-clockwise.
        flip: Mirror left and right, bool.
        jitter: Apply the colour jitter, bool.
        order: Order of brightness 0, contrast 1, saturation 2, hue 3, int64.
        factors: Strengths, by operation: three blend factors and the turn of hue.
        grayscale: Drop the colour, bool.
        blur: Apply the Gaussian blur, bool.
        sigma: Standard deviation of the blur, pixels of the view.
        solarize: Invert the bright pixels, bool.

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
    """Parameters with the distributions that the options ask for.

    Args:
        views: The options.
        starts: (N,) `random.states`, one a view.
        height: Rows of the images.
        width: Columns of the images.

    Returns:
        N rows.
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
    """Boxes of random resized crops: the first of ten tries that fits, at a uniform place.

    A try has an area uniform in `scale`, as a share of the image's, and a width / height log-uniform in
    `ratio`. Where none fits, it is the largest central box within `ratio`.

    Args:
        drawn: (N, 22) uniform numbers.
        height: Rows of the images.
        width: Columns of the images.
        scale: Smallest and largest share of the area.
        ratio: Smallest and largest width / height.

    Returns:
        Top, left, rows and columns, each (N,) int64.
    """
    area = height * width * _between(*scale, drawn[:, :_TRIES])
    low, high = map(math.log, ratio)
    aspect = _between(low, high, drawn[:, _TRIES : 2 * _TRIES]).exp()
    rows, columns = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)
    first = fits.long().argmax(dim=1, keepdim=True)
    nearest = min(max(width / height, ratio[0]), ratio[1])
    whole = (min(height, round(width / nearest)), min(width, round(height * nearest)))
    found = fits.any(dim=1)

    def place(lengths: Tensor, uniform: Tensor, *, source: int, whole: int) -> tuple[Tensor, Tensor]:
        length = torch.where(found, lengths.gather(1, first).squeeze(1), float(whole))
        start = torch.where(found, uniform * (source - length + 1), float((source - whole) // 2))
        return start.long(), length.long()

    top, rows = place(rows, drawn[:, -2], source=height, whole=whole[0])
    left, columns = place(columns, drawn[:, -1], source=width, whole=whole[1])
    return top, left, rows, columns


def _between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform
