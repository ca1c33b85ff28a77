"""Files of arrays, which are mapped into memory when they are read."""

import os
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
"""One-dimensional arrays by name."""


def load_arrays(file: Path) -> Arrays | None:
    """Map the arrays of a file into memory.

    Returns:
        The arrays; None if there is no such file, it is damaged, or it is replaced while it is opened.
    """
    try:
        stored = torch.load(file, mmap=True, weights_only=True)
        arrays = {name: values.numpy() for name, values in stored["arrays"].items()}
        return arrays if stored["checksum"] == _checksum(arrays) else None
    except Exception:  # torch may raise nearly anything for damaged files
        return None


def store_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file if its directory is writable.

    The file is renamed when it is complete. If several processes write it at once, at least one succeeds.
    """
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    with suppress(OSError, RuntimeError):  # torch reports a full disk as a RuntimeError
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as stream:
            torch.save({"arrays": tensors, "checksum": _checksum(arrays)}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    with suppress(OSError):
        for unfinished in file.parent.glob(f"{file.name}.*.partial"):  # left by killed writers
            unfinished.unlink(missing_ok=True)


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> int:
    checksum = 0
    for name, values in sorted(arrays.items()):
        checksum = zlib.crc32(f"{name} {values.dtype} {values.shape}".encode(), checksum)
        checksum = zlib.crc32(np.ascontiguousarray(values).data, checksum)
    return checksum
