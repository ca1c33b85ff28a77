"""Where images live during a run: on the device while they fit, on the host where they do not."""

import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from ssl_vision.data.images import Images

_CHUNK = 2**26


class Resident:
    """Brings data sets to a device, each store once, whatever the number of data sets that show rows of it.

    Args:
        share: Largest share of the device's free memory that all of them together may take.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._placed: dict[tuple[Tensor, torch.device], Tensor] = {}

    def on(self, data: Images, device: torch.device) -> Images:
        """The same rows on the device; `data` itself where its store stays on the host.

        Only CUDA devices are moved to. One line says where a store went, and why it stayed.
        """
        if device.type != "cuda" or data.store.device == device:
            return data
        if (data.store, device) not in self._placed:
            self._placed[data.store, device] = self._place(data, device)
        store = self._placed[data.store, device]
        if store is data.store:
            return data
        rows = None if data.rows is None else data.rows.to(device)
        return Images(store, data.labels.to(device), data.classes, rows=rows)

    def clear(self) -> None:
        """Forgets the copies; their memory is free once no loader uses them."""
        self._placed.clear()

    def _place(self, data: Images, device: torch.device) -> Tensor:
        store, taken = data.store, self._taken(device)
        free = free_memory(device) + taken
        size = store.nbytes
        home = "kept in host memory" if data.file is None else "read from their file"
        reason = f"{_bytes(size)}, data.resident is 0"
        if size + taken <= self.share * free:
            try:
                copy = _copied(data, device)
            except torch.OutOfMemoryError:
                reason = f"no {_bytes(size)} in one piece on {device}"
            else:
                rank_zero_info(f"images: {_bytes(size)} on {device}")
                return copy
        elif self.share > 0:
            before = f" + {_bytes(taken)} there already" if taken else ""
            reason = f"{_bytes(size)}{before} > {100 * self.share:g} % of {_bytes(free)} free on {device}"
        rank_zero_info(f"images: {reason}, {home} and sent in pinned batches")
        return store

    def _taken(self, device: torch.device) -> int:
        return sum(
            placed.nbytes for (_, there), placed in self._placed.items() if placed.device == there == device
        )


def free_memory(device: torch.device) -> int:
    """Bytes that a CUDA device can still give, those that torch keeps in reserve included."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _copied(data: Images, device: torch.device) -> Tensor:
    """The whole store on the device, copied in parts so that a file is never in memory whole."""
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
