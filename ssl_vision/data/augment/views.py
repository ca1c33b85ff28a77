"""Random views of image batches, computed on the images' device."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data.augment.compilation import CompiledOrEager
from ssl_vision.data.augment.options import ViewOptions
from ssl_vision.data.augment.parameters import ViewParameters, sample_parameters
from ssl_vision.data.augment.rendering import Normalization, plan_steps, render
from ssl_vision.data.random import Stream, states
from ssl_vision.errors import InputError


@dataclass(frozen=True)
class Views(ViewOptions):
    """Random views with the distributions and semantics of torchvision's transforms on float tensors.

    The order is rotation, random resized crop, flip, colour jitter, grayscale, blur, solarization,
    normalisation. A view is a pure function of (seed, epoch, index of the image, view) and does not depend on
    the rest of the batch. The arguments are those of `ViewOptions`.

    Example:
        >>> views = Views(size=16)
        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> views(images, torch.arange(4), seed=0, epoch=0).shape
        torch.Size([8, 3, 16, 16])
    """

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
        """Make two independent views of every image.

        Args:
            images: (N, C, H, W) uint8.
            indices: Number that identifies each image, (N,) int64 on the same device.
            seed: Any integer.
            epoch: Any integer; each epoch gives new views.
            dtype: Dtype of the views; augmentation itself is in float32.
            memory_format: Memory format of the views.

        Returns:
            (2N, C, size, size): all first views, then all second views.
        """
        starts = states(indices, *((seed, Stream.VIEWS, epoch, view) for view in (0, 1)))
        return self.from_states(images, starts, dtype=dtype, memory_format=memory_format)

    def from_states(
        self,
        images: Tensor,
        starts: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Make views from precomputed random states, a tensor, so that CUDA graphs can record the call.

        Args:
            images: (N, C, H, W) uint8.
            starts: States from `random.states`: all views of the first image, then of the next, (2N,) int64.
            dtype: Dtype of the views.
            memory_format: Memory format of the views.

        Returns:
            (2N, C, size, size): all first views, then all second views.

        Raises:
            InputError: `images` has another type or shape.
        """
        self._check(images)
        arguments = self, images, starts, dtype, memory_format
        with torch.inference_mode(False), torch.no_grad():  # other modes would be compiled separately
            if not self.compile or images.device.type == "cpu":
                return Views._make(*arguments)
            return _compiled()(*arguments) if self.compile == "auto" else _compiled().compiled(*arguments)

    def plain(self, images: Tensor) -> Tensor:
        """Resize (antialiased bilinear) and normalise whole images, for evaluation.

        Args:
            images: (N, C, H, W) uint8. Images that are not square are distorted.

        Returns:
            (N, C, size, size) float32.

        Raises:
            InputError: `images` has another type or shape.
        """
        self._check(images)
        pixels = images.float().div_(255.0)
        if images.shape[-2:] != (self.size, self.size):
            pixels = F.interpolate(pixels, size=(self.size, self.size), mode="bilinear", antialias=True)
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            # Python numbers, because uploading a tensor would synchronise the device.
            pixels[:, channel].sub_(mean).div_(std)
        return pixels

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
        """Draw the augmentation parameters of each image.

        Args:
            indices: Number that identifies each image, (N,) int64.
            seed: Any integer.
            epoch: Any integer.
            height: Height of the images.
            width: Width of the images.
            views: Numbers of the views.

        Returns:
            Parameters of all views of the first image, then of the next, on the device of `indices`.
        """
        starts = states(indices, *((seed, Stream.VIEWS, epoch, view) for view in views))
        return sample_parameters(self, starts, height=height, width=width)

    def _check(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.channels:
            expected = f"uint8 (N, {self.channels}, H, W)"
            raise InputError(f"images must be {expected}, not {images.dtype} {tuple(images.shape)}")

    def _make(
        self, images: Tensor, starts: Tensor, dtype: torch.dtype, memory_format: torch.memory_format
    ) -> Tensor:
        height, width = images.shape[-2:]
        parameters = sample_parameters(self, starts, height=height, width=width)
        return self.render(images, parameters, dtype=dtype, memory_format=memory_format)

    def render(
        self,
        images: Tensor,
        parameters: ViewParameters,
        *,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Render views with given parameters; operations that the options never apply are skipped.

        Args:
            images: (M, C, H, W) uint8.
            parameters: Parameters of N = M · V views; view n is of image n // V.
            dtype: Dtype of the views.
            memory_format: Memory format of the views.

        Returns:
            (N, C, size, size), normalised: all first views, then all second views.

        Raises:
            InputError: `images` has another type or shape.
        """
        self._check(images)
        height, width = images.shape[-2:]
        steps = plan_steps(self, parameters, height=height, width=width)
        look = Normalization(self.mean, self.std, self.threshold)
        compiled = self.compile is True and images.device.type == "cpu"
        return render(images, steps, look, dtype=dtype, memory_format=memory_format, compiled=compiled)


@functools.cache
def _compiled() -> CompiledOrEager[[Views, Tensor, Tensor, torch.dtype, torch.memory_format], Tensor]:
    return CompiledOrEager(Views._make, name="views")
