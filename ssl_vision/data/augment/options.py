"""Options of random views, and of smaller views in the first epochs of training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ssl_vision.errors import InputError, check, check_choice

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
        if self.blur > 0 and self.size < 2:
            raise InputError("views.blur must be 0 where views.size is 1")

    @property
    def channels(self) -> int:
        """Number of channels of the images."""
        return len(self.mean)

    @property
    def kernel(self) -> int:
        """Kernel size of the blur: size // 10, made odd, at least 3."""
        return max(3, self.size // 10 | 1)


Sizes = Mapping[int, int]
"""Side of the views in pixels, by the number of epochs after which a larger one follows."""


def size_at(sizes: Sizes, epoch: int, *, final: int) -> int:
    """Return the side of the views in an epoch of training.

    Args:
        sizes: Sides of the first epochs.
        epoch: Number of the epoch, from 0.
        final: Side after those epochs.

    Example:
        >>> [size_at({10: 16, 20: 24}, epoch, final=32) for epoch in (0, 9, 10, 19, 20)]
        [16, 16, 24, 24, 32]
    """
    return next((size for end, size in sorted(sizes.items()) if epoch < end), final)


def check_sizes(sizes: Sizes) -> None:
    """Check the option `progressive_resizing`.

    Raises:
        InputError: a number of epochs is not positive, or a side is not in 1..4096.
    """
    for end, size in sizes.items():
        if end < 1 or not 1 <= size <= LARGEST_SIDE:
            raise InputError(
                f"progressive_resizing must map numbers of epochs to sides in 1..{LARGEST_SIDE}, "
                f"not {end} to {size}"
            )
