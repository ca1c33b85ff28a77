"""Options of random views, and the random parameters that are drawn from them."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.random import numbers
from ssl_vision.errors import InputError, check, check_choice

_TRIES = 10
_BOX = 2 * _TRIES + 2

LARGEST_SIDE = 4096
"""Maximum side of a view or a decoded image in pixels; such an image takes 200 MB in float32."""


@dataclass(frozen=True)
class ViewOptions:
    """Size, normalisation and random augmentation of views.

    Args:
        size: Side of a view in pixels.
        scale: Minimum and maximum area of a crop, as a share of the image's area.
        ratio: Minimum and maximum aspect ratio (width / height) of a crop.
        degrees: Largest rotation in degrees. The angle is uniform in [-degrees, degrees]; pixels outside the
            image are black.
        hflip: Probability of a horizontal flip.
        brightness: Largest change of brightness. The factor is uniform in [max(0, 1 - brightness), 1 +
            brightness].
        contrast: Largest change of contrast. The factor is drawn like that of brightness.
        saturation: Largest change of saturation. The factor is drawn like that of brightness.
        hue: Largest rotation of the hue, as a fraction of the colour circle. It is uniform in [-hue, hue].
        jitter: Probability of the colour jitter. It changes brightness, contrast, saturation and hue.
        grayscale: Probability of conversion to grayscale.
        blur: Probability of a Gaussian blur. Its kernel is about a tenth of the view.
        sigma: Minimum and maximum standard deviation of the blur in pixels.
        solarize: Probability of solarization. It inverts values of at least `threshold`.
        threshold: Threshold of solarization, in [0, 1].
        mean: Means of the channels, for pixels in [0, 1], one for each channel of the images. If there are
            not three, `saturation`, `hue` and `grayscale`, which are defined for red, green and blue, must be
            0, and `contrast` changes each channel about its own mean, not about that of the gray image.
        std: Standard deviations of the channels, likewise.
        compile: Compile the augmentation for training. The first batch takes some seconds, later ones are
            faster; results differ only by rounding. Requires Triton on a CUDA device and a C++ compiler on a
            CPU. "auto": on CUDA devices where a compiler works, not on a CPU.

    Raises:
        InputError: a value is out of range.
    """

    size: int = 32
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    degrees: float = 0.0
    hflip: float = 0.5
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter: float = 0.8
    grayscale: float = 0.2
    blur: float = 0.0
    sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    threshold: float = 0.5
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    compile: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        check("views.size", self.size, at_least=1, at_most=LARGEST_SIDE)
        for name, top in (("scale", 1.0), ("ratio", math.inf), ("sigma", math.inf)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= top or high == math.inf:
                bounds = f"0 < low <= high <= {top:g}"
                raise InputError(f"views.{name} must be (low, high) with {bounds}, not {(low, high)}")
        limits: dict[str, float | None] = {"degrees": 180.0, "hue": 0.5}
        limits |= dict.fromkeys(("brightness", "contrast", "saturation"))
        limits |= dict.fromkeys(("hflip", "jitter", "grayscale", "blur", "solarize", "threshold"), 1.0)
        for name, limit in limits.items():
            check(f"views.{name}", getattr(self, name), at_least=0, at_most=limit)
        if not self.mean or not all(0 <= mean <= 1 for mean in self.mean):
            raise InputError(f"views.mean must be one number in [0, 1] for each channel, not {self.mean}")
        if len(self.mean) != len(self.std):
            counts = f"{len(self.mean)} and {len(self.std)}"
            raise InputError(f"views.mean must have as many numbers as views.std, not {counts}")
        if not all(0 < std <= 1 for std in self.std):
            raise InputError(f"views.std must be above 0 and at most 1, for pixels in [0, 1], not {self.std}")
        colour = [name for name in ("saturation", "hue", "grayscale") if getattr(self, name) > 0]
        if self.channels != 3 and colour:
            raise InputError(
                f"views.{' and views.'.join(colour)} must be 0 for images with {self.channels} channels "
                "(see views.mean), because colour is defined for RGB only"
            )
        check_choice("views.compile", self.compile, (True, False, "auto"))

    @property
    def channels(self) -> int:
        """Number of channels of the images."""
        return len(self.mean)

    @property
    def kernel(self) -> int:
        """Kernel size of the blur: size // 10, made odd, at least 3."""
        return max(3, self.size // 10 | 1)


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
