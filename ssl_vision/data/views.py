"""Two random views of every image of a batch, made at once on the images' device."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data.colour import gray, jitter
from ssl_vision.data.random import Stream, uniforms
from ssl_vision.data.resampling import gaussian, rotate, separable, triangle
from ssl_vision.errors import InputError

_TRIES = 10
_CACHED = 2**19


class ViewParameters(NamedTuple):
    """What happens to each image of a batch, one row an image. All are (N,) but order and factors, (N, 4).

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


@dataclass(frozen=True)
class Views:
    """Random views with the distributions and semantics of torchvision's transforms on float tensors.

    Order: rotation, random resized crop, flip, colour jitter, grayscale, blur, normalisation. A view is a
    pure function of (seed, epoch, index of the image, view): the rest of the batch does not matter.

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
        mean: Means of the channels, of pixels in [0, 1].
        std: Standard deviations of the channels.

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
    mean: tuple[float, float, float] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, float, float] = (0.2023, 0.1994, 0.2010)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"views.size must be 1 or more, not {self.size}")
        for name, top in (("scale", 1.0), ("ratio", math.inf), ("sigma", math.inf)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= top or high == math.inf:
                bounds = f"0 < low <= high <= {top:g}"
                raise InputError(f"views.{name} must be (low, high) with {bounds}, not {(low, high)}")
        limits = {"degrees": 180.0, "hue": 0.5}
        limits |= dict.fromkeys(("brightness", "contrast", "saturation"), math.inf)
        limits |= dict.fromkeys(("hflip", "jitter", "grayscale", "blur"), 1.0)
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

    def __call__(self, images: Tensor, indices: Tensor, *, seed: int, epoch: int) -> Tensor:
        """Two independent views of every image.

        Args:
            images: (N, 3, H, W) uint8.
            indices: (N,) int64 on the same device: what tells one image from another.
            seed: Any integer.
            epoch: Any integer; each gives new views.

        Returns:
            (2N, 3, size, size) float32: all first views, then all second views.
        """
        height, width = images.shape[-2:]
        both = [
            self.parameters(indices, seed=seed, epoch=epoch, view=view, height=height, width=width)
            for view in (0, 1)
        ]
        return torch.cat([self.render(images, parameters) for parameters in both])

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
        self, indices: Tensor, *, seed: int, epoch: int, view: int, height: int, width: int
    ) -> ViewParameters:
        """Draws what happens to each image.

        Args:
            indices: (N,) int64.
            seed: Any integer.
            epoch: Any integer.
            view: 0 or 1.
            height: Rows of the images.
            width: Columns of the images.

        Returns:
            Parameters on the device of `indices`.
        """
        drawn = uniforms(indices, key=(seed, Stream.VIEWS, epoch, view), count=2 * _TRIES + 16)
        boxes, order, single = drawn[:, : 2 * _TRIES + 2], drawn[:, -14:-10], drawn[:, -10:]
        angle, flip, jitter, brightness, contrast, saturation, hue, grayscale, blur, sigma = single.unbind(1)
        top, left, rows, columns = self._boxes(boxes, height=height, width=width)
        strengths = (
            _between(max(0.0, 1.0 - self.brightness), 1.0 + self.brightness, brightness),
            _between(max(0.0, 1.0 - self.contrast), 1.0 + self.contrast, contrast),
            _between(max(0.0, 1.0 - self.saturation), 1.0 + self.saturation, saturation),
            _between(-self.hue, self.hue, hue),
        )
        return ViewParameters(
            top=top,
            left=left,
            height=rows,
            width=columns,
            angle=_between(-self.degrees, self.degrees, angle),
            flip=flip < self.hflip,
            jitter=jitter < self.jitter,
            order=order.argsort(dim=1),
            factors=torch.stack(strengths, dim=1),
            grayscale=grayscale < self.grayscale,
            blur=blur < self.blur,
            sigma=_between(*self.sigma, sigma),
        )

    def render(self, images: Tensor, parameters: ViewParameters) -> Tensor:
        """Applies the parameters; operations that these options never apply are skipped.

        Args:
            images: (N, 3, H, W) uint8.
            parameters: One row for each image.

        Returns:
            (N, 3, size, size) float32, normalised.
        """
        step = len(images)
        if images.device.type == "cpu":  # parts that stay in the cache
            height, width = images.shape[-2:]
            step = max(1, _CACHED // (3 * max(height * width, self.size**2)))
        views = []
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            views.append(self._render(images[part], ViewParameters(*(field[part] for field in parameters))))
        return torch.cat(views)

    def _boxes(self, drawn: Tensor, *, height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Top, left, rows and columns, each (N,) int64, from (N, 2 tries + 2) uniforms.

        The first try whose box fits, at a uniform place, or else the largest central box within `ratio`.
        """
        area = height * width * _between(*self.scale, drawn[:, :_TRIES])
        low, high = map(math.log, self.ratio)
        aspect = _between(low, high, drawn[:, _TRIES : 2 * _TRIES]).exp()
        rows, columns = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
        fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)
        first = fits.long().argmax(dim=1, keepdim=True)
        nearest = min(max(width / height, self.ratio[0]), self.ratio[1])
        whole = (min(height, round(width / nearest)), min(width, round(height * nearest)))
        found = fits.any(dim=1)

        def place(lengths: Tensor, uniform: Tensor, *, source: int, whole: int) -> tuple[Tensor, Tensor]:
            length = torch.where(found, lengths.gather(1, first).squeeze(1), float(whole))
            start = torch.where(found, uniform * (source - length + 1), float((source - whole) // 2))
            return start.long(), length.long()

        top, rows = place(rows, drawn[:, -2], source=height, whole=whole[0])
        left, columns = place(columns, drawn[:, -1], source=width, whole=whole[1])
        return top, left, rows, columns

    def _render(self, images: Tensor, parameters: ViewParameters) -> Tensor:
        height, width = images.shape[-2:]
        p, size = parameters, self.size
        pixels = images.float().div_(255.0)
        if self.degrees > 0:
            pixels = rotate(pixels, p.angle)
        rows = triangle(p.top, p.height, torch.zeros_like(p.flip), source=height, size=size)
        columns = triangle(p.left, p.width, p.flip, source=width, size=size)
        pixels = separable(pixels, rows, columns)
        if self.jitter > 0 and max(self.brightness, self.contrast, self.saturation, self.hue) > 0:
            still = (torch.arange(4, device=images.device) < 3).float()
            factors = torch.where(p.jitter.unsqueeze(1), p.factors, still)
            pixels = jitter(pixels, p.order, factors, hue=self.hue > 0)
        if self.grayscale > 0:
            pixels = torch.where(p.grayscale.view(-1, 1, 1, 1), gray(pixels), pixels)
        if self.blur > 0:
            weights = gaussian(p.sigma, kernel=self.kernel, size=size)
            pixels = torch.where(p.blur.view(-1, 1, 1, 1), separable(pixels, weights, weights), pixels)
        return self._normalised(pixels)

    def _normalised(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std in place, by numbers: the upload of a tensor would wait for the device."""
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            pixels[:, channel].sub_(mean).div_(std)
        return pixels


def _between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform
