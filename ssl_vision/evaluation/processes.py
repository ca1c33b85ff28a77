"""Embedding by all processes of torchrun: each embeds a share of the batches, and the first does all else."""

import itertools
import os
import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ssl_vision.errors import InputError
from ssl_vision.quiet import silenced

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The processes that torchrun started, or this one alone.

    Args:
        rank: number of this process, from 0.
        size: number of processes.
        connections: connections by rank: from the first process to all others, and from each of them to it.

    Example:
        >>> list(Processes().gathered(iter("ab"), 2))
        ['a', 'b']
    """

    rank: int = 0
    size: int = 1
    connections: dict[int, Connection] = field(default_factory=dict)

    @property
    def share(self) -> slice:
        """The items of this process in a sequence: every ``size``-th, beginning with number ``rank``."""
        return slice(self.rank, None, self.size)

    def gathered(self, own: Iterator[T], total: int) -> Iterator[T]:
        """Yield the results of all processes in order in the first one, and nothing in the others.

        Processes take turns, so that each holds one result at a time. An error in any process is raised in
        the first one.

        Args:
            own: results of this process, one for each item of its `share`.
            total: number of results of all processes.
        """
        if self.size == 1:
            yield from own
            return
        results = _or_error(own)
        if self.rank:
            for result in results:
                with self._until_first_ends():
                    _send(self.connections[0], result)
            return
        for number in range(total):
            owner = number % self.size
            result = self._exchange(owner, _received) if owner else next(results)
            if isinstance(result, Exception):
                raise result
            yield result

    def discard(self, numbers: Iterable[int]) -> None:
        """Receive results of the other processes, by their numbers, that the first one no longer needs."""
        for number in numbers:
            if owner := number % self.size:
                self._exchange(owner, _received)

    def agreed(self, value: Any = None) -> Any:
        """Return the value of the first process in all of them."""
        if self.rank:
            with self._until_first_ends():
                return _received(self.connections[0])
        for owner in self.connections:
            self._exchange(owner, partial(_send, value=value))
        return value

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Run the body in the first process, which may write files, before the others read them."""
        if self.rank:
            self.agreed()
        yield
        if not self.rank:
            self.agreed()

    def _exchange(self, owner: int, function: Callable[[Connection], Any]) -> Any:
        try:
            return function(self.connections[owner])
        except (EOFError, OSError) as error:
            raise RuntimeError(
                f"process {owner} of {self.size} has ended, probably because it ran out of memory"
            ) from error

    @contextmanager
    def _until_first_ends(self) -> Iterator[None]:
        """End another process silently when the first one has ended, which reports the reason."""
        try:
            yield
        except (EOFError, OSError) as error:
            raise SystemExit(1) from error


@contextmanager
def process_group() -> Iterator[Processes]:
    """Connect the processes that torchrun started; all but the first print only errors.

    The default process group of torch is not used, because metrics of torchmetrics would then wait for the
    same metric in the other processes.

    Raises:
        InputError: not all processes call this function.
    """
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    store, rank, size = next(rendezvous("env://"))
    name = f"ssl_vision/{next(_CALLS)}"
    store.set(f"{name}/{rank}", "")
    try:
        store.wait([f"{name}/{each}" for each in range(size)], _LONGEST_WAIT)
    except RuntimeError as error:
        raise InputError(f"torchrun started {size} processes, which must all run the same command") from error
    if rank:
        port, key = store.get(name).decode().split()
        connection_to_first = Client((os.environ["MASTER_ADDR"], int(port)), authkey=bytes.fromhex(key))
        connection_to_first.send(rank)
        connections = {0: connection_to_first}
    else:
        key = secrets.token_hex()
        with Listener(("", 0), backlog=size, authkey=bytes.fromhex(key)) as listener:
            store.set(name, f"{listener.address[1]} {key}")
            accepted = [listener.accept() for _ in range(1, size)]
        connections = dict(sorted((connection.recv(), connection) for connection in accepted))
    with silenced() if rank else nullcontext():
        yield Processes(rank, size, connections)


def _send(connection: Connection, value: Any) -> None:
    connection.send_bytes(pickle.dumps(value))  # send() would put tensors into shared memory


def _received(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())


ALONE = Processes()
"""One process, without torchrun."""


class _InputErrorOfProcess(RuntimeError):
    """An InputError after which no process can continue; evaluation continues after any other InputError."""


@dataclass
class _Sharing:
    processes: Processes
    networks: Sequence[Any]
    data: Sequence[Any]
    left: range = range(0)
    """Results of the last request that its caller has not taken, because an error occurred there."""

    def discard(self) -> None:
        self.processes.discard(self.left)
        self.left = range(0)


_CALLS = itertools.count()
"""Numbers of the calls of `process_group`, which are the same in all processes."""

_LONGEST_WAIT = timedelta(minutes=5)

_SHARING: ContextVar[_Sharing | None] = ContextVar("_SHARING", default=None)


@contextmanager
def sharing(processes: Processes, networks: Sequence[Any], data: Sequence[Any]) -> Iterator[None]:
    """Share `results_of_all` among all processes. All but the first do only this, and exit after the body.

    Args:
        processes: the processes.
        networks: networks, in the same order in all processes.
        data: image sets, in the same order in all processes.

    Raises:
        InputError: an image cannot be decoded in one of several processes.
        SystemExit: this is not the first process.
    """
    shared = _Sharing(processes, networks, data)
    if processes.rank:
        while (request := processes.agreed()) is not None:
            function, network, images, arguments, total = request
            results = function(networks[network], data[images], *arguments, processes.share)
            list(processes.gathered(results, total))
        raise SystemExit(0)
    token = _SHARING.set(shared if processes.size > 1 else None)
    try:
        yield
        shared.discard()
    except _InputErrorOfProcess as error:
        raise InputError(str(error)) from error
    finally:
        _SHARING.reset(token)
    processes.agreed()


def results_of_all(
    function: Callable[..., Iterator[T]], network: Any, data: Any, *arguments: Any, total: int
) -> Iterator[T]:
    """Yield the results of a function, which all processes compute inside `sharing`, in order.

    Args:
        function: function of a module, which yields a result for each selected item. It is called with the
            network, the data, the arguments and a slice that selects items.
        network: first argument; this process computes all items if `sharing` does not name it.
        data: second argument, of which the same holds.
        arguments: further arguments, which are sent to the other processes.
        total: number of items.

    Raises:
        RuntimeError: a process failed. The others cannot continue.
    """
    shared = _SHARING.get()
    places = shared and (_place(shared.networks, network), _place(shared.data, data))
    if not shared or not places or None in places:
        yield from function(network, data, *arguments, slice(None))
        return
    shared.discard()
    shared.processes.agreed((function, *places, arguments, total))
    own_results = function(network, data, *arguments, shared.processes.share)
    results = shared.processes.gathered(own_results, total)
    for number in range(total):
        try:
            result = next(results)
        except InputError as error:
            raise _InputErrorOfProcess(str(error)) from error
        except Exception as error:
            raise RuntimeError(str(error)) from error
        shared.left = range(number + 1, total)
        yield result


def _place(items: Sequence[Any], item: Any) -> int | None:
    return next((place for place, each in enumerate(items) if each is item), None)


def _or_error(results: Iterator[T]) -> Iterator[T | Exception]:
    try:
        yield from results
    except InputError as error:
        yield error
    except Exception as error:  # its class may not support pickling
        yield RuntimeError(f"{type(error).__name__}: {error}")
