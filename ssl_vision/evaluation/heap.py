"""Settings of the C library's heap, so that freed memory is returned to the system."""

import ctypes
import sys

_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt: minimum size of blocks that are mapped, and unmapped when freed."""

_LARGE = 4 * 2**20


def unmap_large_blocks() -> None:
    """Let glibc return blocks of 4 MiB and more to the system as soon as they are freed.

    By default, glibc raises this size up to 32 MiB while a program runs. Smaller blocks remain in the heap,
    where the alignment of torch leaves gaps that are not filled again. Reading raw pixels in parts of 12 MiB
    would then take several hundred MiB more than it uses. The cost is that the pages of each block are
    cleared again. With another C library, this does nothing.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, _LARGE)
