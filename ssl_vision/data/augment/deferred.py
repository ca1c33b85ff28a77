"""Views that are made within a CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

from ssl_vision.data.augment.views import Views
from ssl_vision.data.images import Batch
from ssl_vision.data.random import Stream, fold


class DeferredViews:
    """Makes the views of batches on a device from tensors alone, so that a CUDA graph can contain it.

    The views are those that `Views` makes. Values that change with the epoch are in a tensor at a fixed
    address.

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
        self._seed = seed
        self._dtype = dtype
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
        starts: Tensor = (batch.indices.unsqueeze(1) + self._keys).flatten()
        with torch.autocast(starts.device.type, enabled=False):
            views = self._views.from_states(
                batch.images, starts, dtype=self._dtype, memory_format=torch.channels_last
            )
        return batch._replace(views=views)
