"""Features that are too large for memory, in files that are mapped."""

import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssl_vision.errors import InputError
from ssl_vision.metrics.rows import CPU, Features, LazyRows

IN_MEMORY = 2**30
"""Maximum size in bytes of features that are kept in memory."""

_ROWS = 4096


def empty_rows(shape: tuple[int, int], *, device: torch.device = CPU, folder: Path | None = None) -> Tensor:
    """Return an uninitialised tensor for float32 rows, in memory or, above `IN_MEMORY`, in a temporary file.

    Args:
        shape: (N, F).
        device: device of rows in memory; mapped rows are on the CPU.
        folder: existing directory of the file; None uses the system's directory for temporary files. The
            file has no name there, and its space is freed with the tensor.

    Raises:
        InputError: the file cannot be written, for example because the disk is full.
    """
    size = 4 * math.prod(shape)
    if size <= IN_MEMORY:
        return torch.empty(shape, device=device)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if sys.platform == "linux":  # a full disk raises an error here; later, it would raise a signal
                os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=shape))
    except OSError as error:
        place = f"{tempfile.gettempdir()} (TMPDIR)" if folder is None else folder
        raise InputError(
            f"{place}: {size / 2**30:.1f} GiB of features cannot be written ({error.strerror})"
        ) from error


def is_large(features: Tensor) -> bool:
    """Return True for features, or views of them, that take more than `IN_MEMORY`."""
    return features.untyped_storage().nbytes() > IN_MEMORY


def in_parts(features: Tensor, device: torch.device) -> Features:
    """Return large features as rows that are read and moved to a device on access, others as they are."""
    if not is_large(features):
        return features
    return LazyRows(lambda rows: features[rows].to(device), (len(features), features.shape[1]), device=device)


def blocks(values: Tensor) -> Iterator[Tensor]:
    """Iterate over values of any shape in parts of a few rows, in the order of a contiguous tensor."""
    if values.ndim > 2:
        for each in values:
            yield from blocks(each)
    else:
        yield from values.split(_ROWS) if values.ndim else [values]


def is_finite(values: Tensor) -> bool:
    """Return True if all values are finite, with a few rows in memory at a time."""
    return all(bool(block.isfinite().all()) for block in blocks(values))
