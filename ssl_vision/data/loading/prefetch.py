"""Work done by threads before its result is asked for."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(
    make: Callable[[Item], Made], items: Iterable[Item], *, workers: int = 1, depth: int = 1
) -> Iterator[Made]:
    """``make(item)`` of every item, in order.

    Args:
        make: Runs in another thread; what it raises is raised here when its turn comes.
        items: Taken one by one, never further than `depth` ahead of what was asked for.
        workers: Number of threads; they start with the first result asked for and end with the iterator.
        depth: Number of results made, or in the making, beyond the one that was asked for.
    """
    pool = ThreadPoolExecutor(workers)
    rest = iter(items)
    try:
        coming: deque[Future[Made]] = deque(
            pool.submit(make, item) for item in itertools.islice(rest, depth + 1)
        )
        while coming:
            yield coming.popleft().result()
            coming.extend(pool.submit(make, item) for item in itertools.islice(rest, 1))
    finally:
        pool.shutdown(cancel_futures=True)
