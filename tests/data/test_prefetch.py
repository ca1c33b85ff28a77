import threading
import time
from collections.abc import Generator

import pytest

from ssl_vision.data.loading.prefetch import prefetched


@pytest.mark.parametrize(
    ("workers", "depth", "count"), [(1, 1, 0), (1, 1, 1), (1, 1, 9), (4, 3, 2), (4, 7, 50)]
)
def test_results_come_in_order(workers, depth, count):
    def make(item):
        time.sleep(0.001 * (item % 3))
        return item**2

    results = prefetched(make, range(count), workers=workers, depth=depth)
    assert list(results) == [item**2 for item in range(count)]


def test_prefetch_depth_is_never_exceeded():
    started, taken = [], 0

    def make(item):
        started.append(item)

    for taken, _ in enumerate(prefetched(make, range(100), workers=3, depth=5), start=1):
        time.sleep(0.001)
        assert len(started) <= taken + 5
    assert taken == 100


def test_next_result_is_computed_while_current_one_is_used():
    computed = [threading.Event() for _ in range(3)]
    results = prefetched(lambda item: computed[item].set(), range(3))
    next(results)
    assert computed[1].wait(timeout=5)
    assert not computed[2].is_set()


def test_error_is_raised_when_its_result_is_due():
    def make(item):
        return 6 // (3 - item)

    results = prefetched(make, range(5))
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_closing_iterator_ends_its_threads():
    before = set(threading.enumerate())
    results = prefetched(str, range(10), workers=2)
    assert next(results) == "0"
    threads = set(threading.enumerate()) - before
    assert threads
    assert isinstance(results, Generator)
    results.close()
    for thread in threads:
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_discarded_iterator_does_not_wait_for_its_threads():
    """Waiting in a finalizer, which may run in any thread, can deadlock in `threading`."""
    started, release, later = threading.Event(), threading.Event(), []

    def make(item):
        if item == 1:
            started.set()
            release.wait(timeout=5)
        if item > 1:
            later.append(item)

    results = prefetched(make, range(4), depth=3)
    next(results)
    assert started.wait(timeout=5)
    start = time.monotonic()
    del results
    assert time.monotonic() - start < 4
    release.set()
    assert not later
