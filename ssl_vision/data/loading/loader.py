"""Loader of image batches, whose order depends on (seed, epoch) but not on the world size.

Images are copied to the device as far as they fit.
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor

from ssl_vision.data.images import Batch, Images
from ssl_vision.data.loading.prefetch import batches_of_workers, prefetched
from ssl_vision.data.random import Stream, fold
from ssl_vision.errors import InputError, check

_CHUNK = 2**26


class Order:
    """Order of the rows of a data set.

    Args:
        length: Number of rows.
        shuffle: Use a new random order every epoch; otherwise the order is 0, 1, 2, ...
        seed: Any integer.

    Attributes:
        epoch: Epoch of the next pass.
    """

    def __init__(self, length: int, *, shuffle: bool, seed: int) -> None:
        self.length = length
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; Lightning calls this before every epoch."""
        self.epoch = epoch

    def rows(self) -> Tensor:
        """Return all rows in order, (length,) int64; a pure function of (seed, epoch)."""
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator().manual_seed(fold(self.seed, Stream.ORDER, self.epoch))
        return torch.randperm(self.length, generator=generator)


class Batches:
    """Loader of this process's part of every global batch.

    A global batch consists of batch_size * world_size consecutive rows of the order, and each process loads a
    contiguous part of it. The global batches therefore depend only on the global batch size, not on the world
    size. The last, smaller batch is dropped or divided as evenly as possible. If it has fewer rows than
    processes, it is merged with the previous batch, so that all processes make the same number of steps and
    no batch is empty.

    Images on a device are gathered there without synchronisation. Images that are read from a file, or sent
    from the host to a CUDA device, are copied one batch ahead by a thread. Images that are decoded for each
    batch are decoded ahead by `data.workers` processes; their number does not change the batches.

    An interrupted pass continues where it stopped, at the batch given by ``completed`` or by a loaded state.

    Args:
        data: Images to load.
        batch_size: Batch size per process.
        shuffle: Use a new random order every epoch.
        drop_last: Drop the last global batch if it is not full.
        seed: Seed of the order.
        rank: Rank of this process.
        world_size: Number of processes.
        device: Device on which the batches are used. Default: the device of the images.
        completed: Function that returns the number of already used batches of a pass, called when the pass
            starts; unlike a loaded state, the trainer's count is correct whenever a checkpoint is restored.
            None starts at the first batch, or as set by ``load_state_dict``.

    Attributes:
        sampler: Order of the rows; its set_epoch(epoch) sets the epoch.

    Raises:
        InputError: batch_size is below 1, or there are too few images for one batch.

    Example:
        >>> import torch
        >>> pixels, labels = torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.zeros(10, dtype=torch.int64)
        >>> images = Images(pixels, labels, ("cat",))
        >>> loader = Batches(images, batch_size=4, shuffle=True, drop_last=False, seed=0)
        >>> tuple(len(batch.images) for batch in loader)
        (4, 4, 2)
    """

    def __init__(
        self,
        data: Images,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
        completed: Callable[[], int] | None = None,
    ) -> None:
        check("batch_size", batch_size, at_least=1)
        self.data = data
        self.batch_size = batch_size
        self.sampler = Order(len(data), shuffle=shuffle, seed=seed)
        self.batch_sampler = None  # Lightning expects this attribute next to a sampler
        self._rank = rank
        self._world_size = world_size
        global_size = batch_size * world_size
        starts = range(0, len(data) - (global_size if drop_last else world_size) + 1, global_size)
        if not starts:
            of_each = f" on {world_size} processes" if world_size > 1 else ""
            largest = len(data) // world_size
            advice = f": set --data.batch_size {largest} or less" if drop_last and largest else ""
            raise InputError(f"batch_size {batch_size}{of_each} is more than the {len(data)} images{advice}")
        self._bounds = [*starts, starts[-1] + global_size if drop_last else len(data)]
        self._device = data.store.device
        self._pin = device is not None and device.type == "cuda" and self._device.type == "cpu"
        self._completed = completed
        self._position = self._resumed = (0, 0)

    def __len__(self) -> int:
        """Number of batches in one pass."""
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.sampler.epoch
        if self._completed is not None:
            done = self._completed()
        else:
            done = self._resumed[1] if self._resumed[0] == epoch else 0
        self._resumed = (0, 0)
        before = self.data.replaced
        for batch in self._batches(islice(self._rows_of_batches(), done, None)):
            done += 1
            self._position = (epoch, done)
            yield batch
        if count := self.data.replaced - before:
            warnings.warn(f"{count} images were replaced by others, as they cannot be decoded", stacklevel=2)

    @property
    def equal_shares(self) -> bool:
        """True if each batch has the same number of images in all processes."""
        return all((stop - start) % self._world_size == 0 for start, stop in pairwise(self._bounds))

    def state_dict(self) -> dict[str, int]:
        """Return the epoch of the current pass and the number of batches that it has yielded."""
        epoch, step = self._position
        return {"epoch": epoch, "step": step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the batches of the state, if the next pass is of the same epoch."""
        self._position = self._resumed = (state["epoch"], state["step"])

    def _batches(self, shares: Iterator[Tensor]) -> Iterator[Batch]:
        """Make the batches of the shares, in order."""
        if self.data.workers:
            return batches_of_workers(self.data, shares, pin=self._pin)
        streamed = self._pin or self.data.file is not None or not len(self.data.store)
        return prefetched(self._batch, shares) if streamed else map(self._batch, shares)

    def _rows_of_batches(self) -> Iterator[Tensor]:
        """Iterate over this process's rows of every global batch, on the device of the images."""
        rows = self.sampler.rows()
        if self._device.type == "cuda":
            rows = rows.pin_memory().to(self._device, non_blocking=True)
        for start, stop in pairwise(self._bounds):
            yield rows[start:stop].tensor_split(self._world_size)[self._rank]

    def _batch(self, rows: Tensor) -> Batch:
        images, labels = self.data.at(rows, pin=self._pin), self.data.labels[rows]
        return Batch(images, *(each.pin_memory() if self._pin else each for each in (labels, rows)))


class DeviceCopies:
    """Copies of images on devices; a store is copied once, even if several data sets use it.

    Args:
        share: Maximum share of the device's free memory for all stores together.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._stores: dict[tuple[Tensor, torch.device], Tensor] = {}

    def on(self, data: Images, device: torch.device) -> Images:
        """Return the images on a CUDA device, or `data` itself if its store is empty or stays on the host.

        The placement of each store is logged, with the reason if it stays on the host.
        """
        if device.type != "cuda" or data.store.device == device or not len(data.store):
            return data
        key = data.store, device
        if key not in self._stores:
            self._stores[key] = self._copy_if_it_fits(data, device)
        store = self._stores[key]
        if store is data.store:
            return data
        rows = None if data.rows is None else data.rows.to(device)
        return Images(store, data.labels.to(device), data.classes, rows=rows)

    def clear(self) -> None:
        """Release the copies; their memory is freed once no loader uses them."""
        self._stores.clear()

    def _copy_if_it_fits(self, data: Images, device: torch.device) -> Tensor:
        size = data.store.nbytes
        used = sum(store.nbytes for store in self._stores.values() if store.device == device)
        free = free_memory(device) + used
        present = f" + {_bytes(used)} there already" if used else ""
        reason = f"{_bytes(size)}{present} > {100 * self.share:g} % of {_bytes(free)} free on {device}"
        if size + used <= self.share * free:
            try:
                copy = _copy(data, device)
            except torch.OutOfMemoryError:
                reason = f"no {_bytes(size)} in one piece on {device}"
            else:
                rank_zero_info(f"images: {_bytes(size)} on {device}")
                return copy
        location = "kept in host memory" if data.file is None else "read from their file"
        rank_zero_info(f"images: {reason}, {location} and sent in pinned batches")
        return data.store


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
