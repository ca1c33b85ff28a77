"""Prefetching in threads."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
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
