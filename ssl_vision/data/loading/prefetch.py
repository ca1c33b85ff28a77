"""Prefetching in threads, and of batches that are decoded in worker processes."""

import itertools
import multiprocessing
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing.synchronize import Event
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ssl_vision.data.images import Batch, Images
from ssl_vision.errors import InputError

_SECONDS_OF_A_STEP = 120
"""Time that workers give the main process to finish its step, which may compile, and to save."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetched(
    make: Callable[[Item], Result], items: Iterable[Item], *, workers: int = 1, depth: int = 1
) -> Iterator[Result]:
    """Yield ``make(item)`` for every item, in order, computed in threads ahead of time.

    Args:
        make: Function that runs in another thread; its exceptions are raised when the result is due.
        items: The items, which are consumed at most `depth` ahead of the results.
        workers: Number of threads, which live from the first result until the end of the iterator.
        depth: Number of results that are computed in advance.

    An iterator that is closed or discarded before its end cancels what has not started and waits for nothing.
    """
    pool = ThreadPoolExecutor(workers)
    remaining = iter(items)
    try:
        pending: deque[Future[Result]] = deque(
            pool.submit(make, item) for item in itertools.islice(remaining, depth + 1)
        )
        while pending:
            yield pending.popleft().result()
            pending.extend(pool.submit(make, item) for item in itertools.islice(remaining, 1))
    except BaseException:
        # The garbage collector may close this generator in a thread that holds a lock of `threading`. Joining
        # the workers needs the same lock up to Python 3.12, and would never return.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


class _Decoded(NamedTuple):
    batch: Batch | None
    messages: list[str]
    """Warnings, or the error if there is no batch."""
    replaced: int = 0
    """Number of images that were replaced."""


class _BatchesOfRows(Dataset[_Decoded]):
    """Map-style data set whose indices are the rows of a batch."""

    def __init__(self, data: Images) -> None:
        self.data = data

    def __getitem__(self, index: NDArray[np.int64]) -> _Decoded:
        rows, before = torch.from_numpy(index), self.data.replaced
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                images = self.data.at(rows)
            except InputError as error:
                return _Decoded(None, [str(error)])
        batch = Batch(images, self.data.labels[rows], rows)
        return _Decoded(batch, [str(each.message) for each in caught], self.data.replaced - before)


def batches_of_workers(data: Images, shares: Iterator[Tensor], *, pin: bool) -> Iterator[Batch]:
    """Decode batches in `data.workers` processes, two ahead in each, and yield them in order.

    Warnings are repeated in this process.

    Args:
        data: The images.
        shares: Rows of each batch, (N,) int64.
        pin: Copy the batches into page-locked memory.

    Raises:
        InputError: an image cannot be decoded.
    """
    loader: DataLoader[Any] = DataLoader(
        _BatchesOfRows(data),
        sampler=(rows.numpy() for rows in shares),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=data.workers,
        pin_memory=pin,
        worker_init_fn=partial(_defer_signals, ending=_ending(os.getpid())),
        generator=torch.Generator(),  # the global generator keeps its state
    )
    try:
        for decoded in loader:
            if decoded.batch is None:
                raise InputError(decoded.messages[0])
            for message in decoded.messages:
                warnings.warn(message, stacklevel=2)
            data.replaced += decoded.replaced
            yield decoded.batch
    except Exception as error:
        # The traceback refers to the loader, and to the error itself: both, and the workers, would remain.
        raise error.with_traceback(None) from None


@cache
def _ending(process: int) -> Event:
    """Return an event that is set when the process with this id ends, before it waits for its workers."""
    event = multiprocessing.Event()
    Finalize(None, event.set, exitpriority=0)
    return event


def _defer_signals(worker: int, *, ending: Event) -> None:
    """Let the main process finish its step when a signal ends all processes of a job."""

    def on_sigterm(*_: object) -> None:
        if ending.is_set():
            os._exit(0)
        signal.alarm(_SECONDS_OF_A_STEP)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, on_sigterm)
