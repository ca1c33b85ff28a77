"""Options of random views."""

import math
from dataclasses import dataclass

from ssl_vision.errors import InputError

LARGEST_SIDE = 4096
"""Pixels: the largest side of a view or of a decoded image, which takes 200 MB in float32."""


@dataclass(frozen=True)
class ViewOptions:
    """Size, normalisation and random augmentation of views.

    Args:
        size: Side of a view, pixels.
        scale: Smallest and largest share of the image's area that a crop takes.
        ratio: Smallest and largest width / height of a crop.
        degrees: Rotation is uniform in [-degrees, degrees]; what comes in from outside the image is black.
        hflip: Probability of a left-right flip.
        brightness: Brightness factor is uniform in [max(0, 1 - brightness), 1 + brightness].
        contrast: Likewise for contrast.
        saturation: Likewise for saturation.
        hue: Turn of hue is uniform in [-hue, hue], in circles.
        jitter: Probability that the four colour changes are applied.
        grayscale: Probability of dropping the colour.
        blur: Probability of a Gaussian blur over about a tenth of the view.
        sigma: Smallest and largest standard deviation of the blur, pixels.
        solarize: Probability of inverting the values of `threshold` or more.
        threshold: In [0, 1].
        mean: Means of the channels, of pixels in [0, 1].
        std: Standard deviations of the channels.
        compile: Compile the making of views for the images' device: some seconds for the first batch, then
            faster; equal but for rounding. On a CPU it takes a C++ compiler.

    Raises:
        InputError: A value is out of range.
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
    mean: tuple[float, float, float] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, float, float] = (0.2023, 0.1994, 0.2010)
    compile: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"views.size must be 1 or more, not {self.size}")
        if self.size > LARGEST_SIDE:
            raise InputError(f"views.size must be {LARGEST_SIDE} or less, not {self.size}")
        for name, top in (("scale", 1.0), ("ratio", math.inf), ("sigma", math.inf)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= top or high == math.inf:
                bounds = f"0 < low <= high <= {top:g}"
                raise InputError(f"views.{name} must be (low, high) with {bounds}, not {(low, high)}")
        limits = {"degrees": 180.0, "hue": 0.5}
        limits |= dict.fromkeys(("brightness", "contrast", "saturation"), math.inf)
        limits |= dict.fromkeys(("hflip", "jitter", "grayscale", "blur", "solarize", "threshold"), 1.0)
        for name, top in limits.items():
            value = getattr(self, name)
            if not 0 <= value <= top or value == math.inf:
                raise InputError(f"views.{name} must lie in [0, {top:g}], not {value}")
        if len(self.mean) != 3 or not all(map(math.isfinite, self.mean)):
            raise InputError(f"views.mean must be three finite numbers, not {self.mean}")
        if len(self.std) != 3 or not all(0 < std < math.inf for std in self.std):
            raise InputError(f"views.std must be three numbers above 0, not {self.std}")
        if self.blur > 0 and self.size < 2:
            raise InputError("views.blur must be 0 where views.size is 1")

    @property
    def kernel(self) -> int:
        """Taps of the blur: size // 10, made odd, at least 3."""
        return max(3, self.size // 10 | 1)
