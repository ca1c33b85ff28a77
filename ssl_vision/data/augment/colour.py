"""Colour changes of image batches where every image has its own strength.

Images come as planes (red, green, blue), each (N, H, W) float in [0, 1]: three planes compile to one loop
over the pixels. Where eager and compiled code are fast in different forms, both are here and differ by
rounding.
"""

import torch
from torch import Tensor

Planes = tuple[Tensor, ...]

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def gray(planes: Planes) -> Tensor:
    """Luma .2989 R + .587 G + .114 B, (N, H, W)."""
    red, green, blue = planes
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def choose(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`yes` where the mask is 1.0, `no` where it is 0.0, exactly; both are finite."""
    if torch.compiler.is_compiling():
        return torch.where(mask > 0.5, yes, no)
    return torch.lerp(no, yes, mask)  # on a CPU in an eighth of the time of torch.where


def solarize(planes: Planes, threshold: float) -> Planes:
    """Values of `threshold` or more inverted, x to 1 - x."""
    return tuple(choose(plane.clone().ge_(threshold), 1.0 - plane, plane) for plane in planes)


def blend(planes: Planes, recipe: Tensor) -> Planes:
    """factor · image + (1 - factor) · reference, cut to [0, 1].

    The reference is a times the gray image plus b times its mean. A factor of 1 returns the image.

    Args:
        planes: Of N images.
        recipe: (N, 3): factor, a and b of each image. (a, b) is (0, 0) for brightness, (0, 1) for contrast
            and (1, 0) for saturation.
    """
    factor, a, b = recipe.view(-1, 3, 1, 1).unbind(1)
    reference = gray(planes)
    mean = reference.mean(dim=(1, 2), keepdim=True)
    reference = reference.mul_(a).add_(mean.mul_(b))
    return tuple(_cut(_mix(reference, plane, factor)) for plane in planes)


def rotate_hue(planes: Planes, turn: Tensor) -> Planes:
    """Hue moved by `turn` of the colour circle, saturation and value kept.

    With V the largest channel, C = V - smallest, h the hue in sixths of the circle and
    y = h + 6 turn + (3, 1, -1) for red, green and blue:  channel = V - C clamp(2 - |y - 6 round(y/6)|, 0, 1).

    Args:
        planes: Of N images.
        turn: (N,) in [-0.5, 0.5].
    """
    red, green, blue = planes
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    divisor = chroma.clamp(min=torch.finfo(chroma.dtype).tiny)
    sixths = ((red - green) / divisor).add_(4.0)
    sixths = choose(green.clone().eq_(high), ((blue - red) / divisor).add_(2.0), sixths)
    sixths = choose(red.clone().eq_(high), (green - blue) / divisor, sixths)
    sixths = sixths + 6.0 * turn.view(-1, 1, 1)

    def turned(offset: float) -> Tensor:
        y = sixths + offset
        y = y.sub_((y / 6.0).round_(), alpha=6.0).abs_()
        return torch.addcmul(high, chroma, _cut(torch.rsub(y, 2.0)), value=-1.0)

    return turned(3.0), turned(1.0), turned(-1.0)


def recipes(order: Tensor, factors: Tensor, *, hue: bool) -> Tensor:
    """The blends of a colour jitter, for `jitter`.

    The blends that stand before the hue run first, then the hue once, then the blends behind it; an image
    whose blend is not due has factor 1. Six blends and one hue cost half of four rounds of both.

    Args:
        order: (N, 4) int64, each row a permutation of the four operations, the first to run first.
        factors: (N, 4) by operation; (1, 1, 1, 0) changes nothing.
        hue: False leaves the hue out, and three blends do.

    Returns:
        (N, 6, 3), three blends before the hue and three behind it, or (N, 3, 3).
    """
    place = (order == HUE).long().argmax(dim=1, keepdim=True)
    rank = torch.arange(3, device=order.device)
    blends = order.gather(1, rank + (rank >= place))
    strengths = factors.gather(1, blends)
    if hue:
        before = torch.where(rank < place, strengths, 1.0)
        behind = torch.where(rank < place, 1.0, strengths)
        strengths, blends = torch.cat((before, behind), dim=1), blends.repeat(1, 2)
    return torch.stack((strengths, blends == SATURATION, blends == CONTRAST), dim=2)


def jitter(planes: Planes, blends: Tensor, turn: Tensor | None) -> Planes:
    """Brightness, contrast, saturation and hue, each image in its own order.

    Args:
        planes: Of N images.
        blends: (N, 6, 3), or (N, 3, 3) without a hue, from `recipes`.
        turn: (N,) of the hue, or None.
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


def _cut(fresh: Tensor) -> Tensor:
    """Clamped to [0, 1]; may be in place."""
    if torch.compiler.is_compiling():  # clamp also looks for NaN, at four times the instructions
        fresh = torch.relu(fresh)
        return fresh - torch.relu(fresh - 1.0)
    return fresh.clamp_(0.0, 1.0)
