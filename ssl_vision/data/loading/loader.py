"""Batches of images, in an order that is a function of (seed, epoch) and not of the world size."""

from collections.abc import Callable, Iterator
from itertools import islice, pairwise

import torch
from torch import Tensor

from ssl_vision.data.images import Batch, Images
from ssl_vision.data.loading.prefetch import ahead
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

    Images that live on a device are gathered there, and no step waits for it. Those read from a file, or sent
    from the host to a CUDA device, are copied one batch ahead by a thread.

    A pass that was interrupted continues where it stopped: at the batch that ``completed`` gives, or, without
    it, at the one that a loaded state names.

    Args:
        data: What to load.
        batch_size: Images for each process.
        shuffle: A new order every epoch.
        drop_last: Drop the last global batch where it is not full.
        seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes.
        device: Where the batches are used; None means where the images live.
        completed: Returns how many batches of the coming pass were already used, and is called when the pass
            begins. A trainer's own count stays right however and whenever it restores a checkpoint. None
            starts at the first batch, or where ``load_state_dict`` says.

    Attributes:
        sampler: The order; its set_epoch(epoch) chooses the epoch.

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
        self._home = data.store.device
        self._pin = device is not None and device.type == "cuda" and self._home.type == "cpu"
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
        shares = islice(self._shares(), done, None)
        streamed = self._pin or self.data.file is not None
        for batch in ahead(self._batch, shares) if streamed else map(self._batch, shares):
            done += 1
            self._position = (epoch, done)
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The epoch of the current pass, and how many of its batches were given out."""
        epoch, step = self._position
        return {"epoch": epoch, "step": step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Starts the next pass after the state's batches, if it is a pass of the state's epoch."""
        self._position = self._resumed = (state["epoch"], state["step"])

    def _shares(self) -> Iterator[Tensor]:
        """This process's rows of every global batch, where the images are."""
        rows = self.sampler.rows()
        if self._home.type == "cuda":
            rows = rows.pin_memory().to(self._home, non_blocking=True)
        for start, stop in pairwise(self._bounds):
            yield rows[start:stop].tensor_split(self._world_size)[self._rank]

    def _batch(self, rows: Tensor) -> Batch:
        labels = self.data.labels[rows]
        if self._pin:
            return Batch(self.data.at(rows, pin=True), labels.pin_memory(), rows.pin_memory())
        return Batch(self.data.at(rows), labels, rows)
