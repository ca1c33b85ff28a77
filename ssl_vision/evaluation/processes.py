"""Embedding by all processes of torchrun: each embeds a share of the batches, and the first does all else."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from ssl_vision.errors import InputError
from ssl_vision.progress import silenced

T = TypeVar("T")

_LONGEST_MEASUREMENT = timedelta(weeks=1)
"""Maximum time between two embeddings, in which the other processes wait for the first one."""

_STORE: ContextVar[tuple[Any, int, int] | None] = ContextVar("_STORE", default=None)
"""Within `sharing`, torchrun's store, the number of this process, and the number of processes."""

_GROUPS = itertools.count()
"""Numbers of the process groups, which are the same in all processes."""


class ProcessEnded(InputError):
    """Error in a process because another one has left the process group."""


@contextmanager
def sharing() -> Iterator[None]:
    """Connect the processes of torchrun for `process_group`; all but the first print only errors."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield
        return
    store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    token = _STORE.set((store, rank, size))
    try:
        with silenced() if rank else nullcontext():
            yield
    finally:
        _STORE.reset(token)


def is_first() -> bool:
    """Return True in the first process, and outside of `sharing`."""
    shared = _STORE.get()
    return shared is None or shared[1] == 0


@contextmanager
def process_group() -> Iterator[None]:
    """Open a process group, in which all processes begin and end the body together.

    In a group that is open longer, metrics of torchmetrics would wait for the other processes. Outside of
    `sharing`, there is no group.
    """
    if (shared := _STORE.get()) is None:
        yield
        return
    store, rank, size = shared
    store = dist.PrefixStore(f"ssl_vision/{next(_GROUPS)}", store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_LONGEST_MEASUREMENT)
    try:
        yield
        _communicated(dist.barrier)
    finally:
        dist.destroy_process_group()


@contextmanager
def first_before_others() -> Iterator[None]:
    """Run the body in the first process, which may write files, before the others."""
    if is_first():
        yield
    with process_group():
        pass
    if not is_first():
        yield


def agreed(value: Any) -> Any:
    """Return the value of the first process in all processes of the `process_group`."""
    values = [value]
    if _is_connected():
        _communicated(dist.broadcast_object_list, values)
    return values[0]


def gathered(results: Callable[[slice], Iterator[T]], total: int) -> Iterator[T]:
    """Yield the results of all processes in order in the first one, and nothing in the others.

    Each process holds one result at a time. An error in any process is raised in the first one. Outside of
    `process_group`, this process computes all results.

    Args:
        results: function that yields the results of the items that a slice selects.
        total: number of items.
    """
    if not _is_connected():
        yield from results(slice(None))
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    own = results(slice(rank, None, size))
    for _ in range(0, total, size):
        result: Any
        try:
            result = next(own, None)
        except Exception as error:
            result = error
        of_all: list[Any] = [None] * size
        _communicated(dist.gather_object, result, None if rank else of_all)
        for each in of_all:
            if isinstance(each, Exception):
                raise each
            if each is not None:
                yield each


def _is_connected() -> bool:
    return _STORE.get() is not None and dist.is_initialized()


def _communicated(function: Callable[..., object], *args: Any) -> None:
    try:
        function(*args)
    except RuntimeError as error:
        raise ProcessEnded("another process has ended, probably because it ran out of memory") from error
