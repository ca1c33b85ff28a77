"""Copies of images in device memory, as far as they fit."""

import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from ssl_vision.data.images import Images

_CHUNK = 2**26


class Resident:
    """Moves images to a device; a store is moved once, even if several data sets use it.

    Args:
        share: Maximum share of the device's free memory for all stores together.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._placed: dict[tuple[Tensor, torch.device], Tensor] = {}

    def on(self, data: Images, device: torch.device) -> Images:
        """Return the images on a CUDA device, or `data` itself if its store is empty or stays on the host.

        The placement of each store is logged, with the reason if it stays on the host.
        """
        if device.type != "cuda" or data.store.device == device or not len(data.store):
            return data
        if (data.store, device) not in self._placed:
            self._placed[data.store, device] = self._place(data, device)
        store = self._placed[data.store, device]
        if store is data.store:
            return data
        rows = None if data.rows is None else data.rows.to(device)
        return Images(store, data.labels.to(device), data.classes, rows=rows)

    def clear(self) -> None:
        """Release the copies; their memory is freed once no loader uses them."""
        self._placed.clear()

    def _place(self, data: Images, device: torch.device) -> Tensor:
        store, used = data.store, self._used(device)
        free = free_memory(device) + used
        size = store.nbytes
        location = "kept in host memory" if data.file is None else "read from their file"
        reason = f"{_bytes(size)}, data.resident is 0"
        if size + used <= self.share * free:
            try:
                copy = _copy(data, device)
            except torch.OutOfMemoryError:
                reason = f"no {_bytes(size)} in one piece on {device}"
            else:
                rank_zero_info(f"images: {_bytes(size)} on {device}")
                return copy
        elif self.share > 0:
            present = f" + {_bytes(used)} there already" if used else ""
            reason = f"{_bytes(size)}{present} > {100 * self.share:g} % of {_bytes(free)} free on {device}"
        rank_zero_info(f"images: {reason}, {location} and sent in pinned batches")
        return store

    def _used(self, device: torch.device) -> int:
        return sum(
            store.nbytes for (_, target), store in self._placed.items() if store.device == target == device
        )


def free_memory(device: torch.device) -> int:
    """Return the free memory of a CUDA device in bytes, including memory that torch holds in reserve."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _copy(data: Images, device: torch.device) -> Tensor:
    """Copy a store to a device, in parts so that a file is never in host memory as a whole."""
    store, file = data.store, data.file
    copy = torch.empty_like(store, device=device)
    rows = max(1, _CHUNK // store[:1].nbytes)
    for start in range(0, len(store), rows):
        stop = min(start + rows, len(store))
        part = store[start:stop] if file is None else file.read(torch.arange(start, stop))
        copy[start:stop].copy_(part)
    return copy


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
