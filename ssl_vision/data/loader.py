"""Batches of images in memory, in an order that is a function of (seed, epoch) and not of the world size."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ssl_vision.data.images import Batch, Images
from ssl_vision.data.random import Stream, fold
from ssl_vision.errors import InputError


class Order:
    """The order in which the rows of a data set are seen.

    Args:
        length: Number of rows.
        shuffle: A new order every epoch; otherwise 0, 1, 2, ...
        seed: Any integer.

    Attributes:
        epoch: The epoch of the next pass.
    """

    def __init__(self, length: int, *, shuffle: bool, seed: int) -> None:
        self.length = length
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next pass; Lightning calls it before every epoch."""
        self.epoch = epoch

    def rows(self) -> Tensor:
        """(length,) int64, every row once: a pure function of (seed, epoch)."""
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator().manual_seed(fold(self.seed, Stream.ORDER, self.epoch))
        return torch.randperm(self.length, generator=generator)


class Batches:
    """Loader of one process's share of every global batch.

    A global batch is batch_size * world_size consecutive rows of the order; each process takes a contiguous
    share of it. At one global batch size every world size therefore sees the same global batches. The last,
    smaller one is dropped or shared out as evenly as can be; one of fewer rows than processes joins the batch
    before it, so that all processes make the same number of steps and none has an empty batch.

    Args:
        data: What to load.
        batch_size: Images for each process.
        shuffle: A new order every epoch.
        drop_last: Drop the last global batch where it is not full.
        seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes.

    Attributes:
        sampler: The order; its set_epoch(epoch) chooses the epoch.

    Raises:
        InputError: batch_size is below 1, or there are too few images for one batch.
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
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size must be 1 or more, not {batch_size}")
        self.data = data
        self.batch_size = batch_size
        self.sampler = Order(len(data), shuffle=shuffle, seed=seed)
        self.batch_sampler = None  # Lightning asks for one wherever it finds a sampler
        self._rank = rank
        self._world_size = world_size
        whole = batch_size * world_size
        starts = range(0, len(data) - (whole if drop_last else world_size) + 1, whole)
        if not starts:
            raise InputError(
                f"batch_size {batch_size} on {world_size} process(es) leaves no batch of {len(data)} images"
            )
        self._bounds = [*starts, starts[-1] + whole if drop_last else len(data)]

    def __len__(self) -> int:
        """Number of batches in one pass."""
        return len(self._bounds) - 1

    def __iter__(self) -> Iterator[Batch]:
        rows = self.sampler.rows()
        for start, stop in pairwise(self._bounds):
            share = rows[start:stop].tensor_split(self._world_size)[self._rank]
            yield Batch(self.data.images[share], self.data.labels[share], share)
