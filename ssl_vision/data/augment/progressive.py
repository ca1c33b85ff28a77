"""Progressive resizing: smaller views in the first epochs of training."""

from collections.abc import Mapping

from ssl_vision.data.augment.options import LARGEST_SIDE
from ssl_vision.errors import InputError

Sizes = Mapping[int, int]
"""Side of the views in pixels, by the number of epochs after which a larger one follows."""


def size_at(sizes: Sizes, epoch: int, *, final: int) -> int:
    """Return the side of the views in an epoch of training.

    Args:
        sizes: Sides of the first epochs.
        epoch: Number of the epoch, from 0.
        final: Side after those epochs.

    Example:
        >>> [size_at({10: 16, 20: 24}, epoch, final=32) for epoch in (0, 9, 10, 19, 20)]
        [16, 16, 24, 24, 32]
    """
    return next((size for end, size in sorted(sizes.items()) if epoch < end), final)


def check_sizes(sizes: Sizes) -> None:
    """Check the option `progressive_resizing`.

    Raises:
        InputError: a number of epochs is not positive, or a side is not in 1..4096.
    """
    for end, size in sizes.items():
        if end < 1 or not 1 <= size <= LARGEST_SIDE:
            raise InputError(
                f"progressive_resizing must map numbers of epochs to sides in 1..{LARGEST_SIDE}, "
                f"not {end} to {size}"
            )
