"""Two random views of every image of a batch, made at once on the images' device."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data.parameters import ViewParameters, draw
from ssl_vision.data.random import Stream, states
from ssl_vision.data.rendering import Look, plan, render
from ssl_vision.errors import InputError

LARGEST_SIDE = 4096
"""Pixels: the largest side of a view or of a decoded image, which takes 200 MB in float32."""


@dataclass(frozen=True)
class Views:
    """Random views with the distributions and semantics of torchvision's transforms on float tensors.

    Order: rotation, random resized crop, flip, colour jitter, grayscale, blur, solarization, normalisation.
    A view is a pure function of (seed, epoch, index of the image, view), whatever else is in the batch.

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

    def __call__(
        self,
        images: Tensor,
        indices: Tensor,
        *,
        seed: int,
        epoch: int,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Two independent views of every image.

        Args:
            images: (N, 3, H, W) uint8.
            indices: (N,) int64 on the same device: what tells one image from another.
            seed: Any integer.
            epoch: Any integer; each gives new views.
            dtype: Of the views; what comes before is computed in float32.
            memory_format: Of the views.

        Returns:
            (2N, 3, size, size): all first views, then all second views.
        """
        starts = states(indices, *((seed, Stream.VIEWS, epoch, view) for view in (0, 1)))
        make = _compiled() if self.compile and images.device.type != "cpu" else Views._made
        with torch.inference_mode(False), torch.no_grad():  # one mode, or every other would compile anew
            return make(self, images, starts, dtype, memory_format)

    def plain(self, images: Tensor) -> Tensor:
        """Whole images, resized (antialiased bilinear) and normalised: the input of evaluation.

        Args:
            images: (N, 3, H, W) uint8.

        Returns:
            (N, 3, size, size) float32.
        """
        pixels = images.float().div_(255.0)
        if images.shape[-2:] != (self.size, self.size):
            pixels = F.interpolate(pixels, size=(self.size, self.size), mode="bilinear", antialias=True)
        return self._normalised(pixels)

    def parameters(
        self,
        indices: Tensor,
        *,
        seed: int,
        epoch: int,
        height: int,
        width: int,
        views: tuple[int, ...] = (0, 1),
    ) -> ViewParameters:
        """Draws what happens to each image.

        Args:
            indices: (N,) int64.
            seed: Any integer.
            epoch: Any integer.
            height: Rows of the images.
            width: Columns of the images.
            views: Which views of every image.

        Returns:
            One row for each view of the first image, then of the next, on the device of `indices`.
        """
        starts = states(indices, *((seed, Stream.VIEWS, epoch, view) for view in views))
        return draw(self, starts, height=height, width=width)

    def _made(
        self, images: Tensor, starts: Tensor, dtype: torch.dtype, memory_format: torch.memory_format
    ) -> Tensor:
        height, width = images.shape[-2:]
        p = draw(self, starts, height=height, width=width)
        return self.render(images, p, dtype=dtype, memory_format=memory_format)

    def render(
        self,
        images: Tensor,
        parameters: ViewParameters,
        *,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Applies the parameters; operations that these options never apply are skipped.

        Args:
            images: (M, 3, H, W) uint8.
            parameters: N = M · V rows, row n for a view of image n // V.
            dtype: Of the result.
            memory_format: Of the result.

        Returns:
            (N, 3, size, size), normalised: all first views, then all second views.
        """
        height, width = images.shape[-2:]
        steps = plan(self, parameters, height=height, width=width)
        look = Look(self.mean, self.std, self.threshold)
        compiled = self.compile and images.device.type == "cpu"
        return render(images, steps, look, dtype=dtype, memory_format=memory_format, compiled=compiled)

    def _normalised(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std in place, by numbers: the upload of a tensor would wait for the device."""
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            pixels[:, channel].sub_(mean).div_(std)
        return pixels


@functools.cache
def _compiled() -> Callable[[Views, Tensor, Tensor, torch.dtype, torch.memory_format], Tensor]:
    return torch.compile(Views._made)
