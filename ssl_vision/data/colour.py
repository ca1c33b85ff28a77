"""Colour changes of image batches where every image has its own strength. Pixels are float in [0, 1]."""

import torch
from torch import Tensor

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def gray(images: Tensor) -> Tensor:
    """Luma .2989 R + .587 G + .114 B: (N, 3, H, W) to (N, 1, H, W)."""
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze_(1)


def blend(images: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """factor * image + (1 - factor) * reference, cut to [0, 1].

    The reference is black for BRIGHTNESS, the mean of the gray image for CONTRAST and the gray image for
    SATURATION. A factor of 1 returns the image.

    Args:
        images: (N, 3, H, W).
        operation: (N,) int64, one of the three for each image.
        factor: (N,), 0 or more.

    Returns:
        (N, 3, H, W).
    """
    operation, factor = operation.view(-1, 1, 1, 1), factor.view(-1, 1, 1, 1)
    reference = gray(images)
    mean = reference.mean(dim=(2, 3), keepdim=True)
    reference = torch.where(operation == SATURATION, reference, mean * (operation == CONTRAST))
    return torch.lerp(reference, images, factor).clamp_(0.0, 1.0)


def rotate_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Hue moved by `turn` of the colour circle, saturation and value kept.

    With V the largest channel, C = V - smallest, h the hue in sixths of the circle and
    y = h + 6 turn + (3, 1, -1) for red, green and blue:  channel = V - C clamp(2 - |y - 6 round(y/6)|, 0, 1).

    Args:
        images: (N, 3, H, W).
        turn: (N,) in [-0.5, 0.5].

    Returns:
        (N, 3, H, W).
    """
    red, green, blue = images.chunk(3, dim=1)
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - torch.minimum(torch.minimum(red, green), blue)
    divisor = torch.where(chroma > 0, chroma, 1.0)
    sixths = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, (blue - red) / divisor + 2.0, (red - green) / divisor + 4.0),
    )
    offsets = 3.0 - 2.0 * torch.arange(3, device=images.device).view(3, 1, 1)
    y = (sixths + 6.0 * turn.view(-1, 1, 1, 1)) + offsets
    y = y.sub_((y / 6.0).round_(), alpha=6.0).abs_()
    return torch.addcmul(high, chroma, y.neg_().add_(2.0).clamp_(0.0, 1.0), value=-1.0)


def jitter(images: Tensor, order: Tensor, factors: Tensor, *, hue: bool) -> Tensor:
    """Brightness, contrast, saturation and hue, each image in its own order.

    The blends that stand before the hue run first, then the hue once, then the blends behind it; an image
    whose blend is not due has factor 1. Six blends and one hue cost half of four rounds of both.

    Args:
        images: (N, 3, H, W).
        order: (N, 4) int64, each row a permutation of the four operations, the first to run first.
        factors: (N, 4) by operation; (1, 1, 1, 0) changes nothing.
        hue: False leaves the hue out.

    Returns:
        (N, 3, H, W).
    """
    place = (order == HUE).long().argmax(dim=1, keepdim=True)
    rank = torch.arange(3, device=order.device)
    blends = order.gather(1, rank + (rank >= place))
    strengths = factors.gather(1, blends)
    if not hue:
        return _rounds(images, blends, strengths)
    images = _rounds(images, blends, torch.where(rank < place, strengths, 1.0))
    images = rotate_hue(images, factors[:, HUE])
    return _rounds(images, blends, torch.where(rank < place, 1.0, strengths))


def _rounds(images: Tensor, operations: Tensor, factors: Tensor) -> Tensor:
    for operation, factor in zip(operations.unbind(1), factors.unbind(1), strict=True):
        images = blend(images, operation, factor)
    return images
