"""The C library's heap, which otherwise holds on to memory that an evaluation has freed."""

import ctypes
import sys

_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt: blocks from this size on are mapped, and unmapped when they are freed."""

_LARGE = 4 * 2**20


def unmap_large_blocks() -> None:
    """Let glibc return blocks of 4 MiB and more to the system as soon as they are freed.

    By default glibc raises that size up to 32 MiB as a program runs. Smaller blocks stay in the heap, where
    those that torch aligns leave gaps that are not filled again: reading raw pixels in parts of 12 MiB then
    takes several hundred MiB more than it uses. The price is clearing the pages of each block anew. With
    another C library this does nothing.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, _LARGE)
