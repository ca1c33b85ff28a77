"""Random views of image batches, computed on the images' device."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data.augment.steps import apply_steps, plan_steps
from ssl_vision.data.augment.view_parameters import ViewOptions, ViewParameters, sample_parameters
from ssl_vision.data.images import Batch
from ssl_vision.data.random import Stream, fold, states
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
        make: Make = Views._make
        if self.compile and images.device.type != "cpu":
            make = _compiled() if self.compile is True else _compiled_or_eager()
        with torch.inference_mode(False), torch.no_grad():  # other modes would be compiled separately
            return make(self, images, starts, dtype, memory_format)

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
        return apply_steps(self, images, steps, dtype=dtype, memory_format=memory_format)


Make = Callable[[Views, Tensor, Tensor, torch.dtype, torch.memory_format], Tensor]


@functools.cache
def _compiled() -> Make:
    # Inductor cannot lower embedding_bag, which resampling uses, with symbolic shapes on a CUDA device.
    return torch.compile(Views._make, dynamic=False)


@functools.cache
def _compiled_or_eager() -> Make:
    """Return a function that is compiled until that first fails, which is logged with the reason."""
    works = True

    def make(*arguments: Any) -> Tensor:
        nonlocal works
        if works:
            try:
                return _compiled()(*arguments)
            except Exception as error:  # a missing compiler, Triton or header; each has its own exception
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                rank_zero_info(f"views are not compiled: {reason}")
                works = False
        return Views._make(*arguments)

    return make


class EpochViews:
    """Makes the views of training batches from tensors alone, so that a CUDA graph can contain it.

    The views are those that `Views` makes. The keys of the epoch are in a tensor at a fixed address.

    Args:
        views: Function that returns the random views of an epoch.
        seed: Seed of the views.
        dtype: Dtype of the views.
        device: Device of the batches.
    """

    def __init__(
        self, views: Callable[[int], Views], *, seed: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._views_of, self._views = views, views(0)
        self._seed, self._dtype = seed, dtype
        self._keys = torch.zeros(2, dtype=torch.int64, device=device)
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next views, without waiting for the device."""
        if epoch == self._epoch:
            return
        keys = [fold(self._seed, Stream.VIEWS, epoch, view) for view in (0, 1)]
        self._keys.copy_(torch.tensor(keys, pin_memory=self._keys.is_cuda), non_blocking=True)
        self._epoch, self._views = epoch, self._views_of(epoch)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its views (2N, 3, S, S), in channels_last."""
        starts = (batch.indices.unsqueeze(1) + self._keys).flatten()
        with torch.autocast(starts.device.type, enabled=False):
            views = self._views.from_states(
                batch.images, starts, dtype=self._dtype, memory_format=torch.channels_last
            )
        return batch._replace(views=views)
