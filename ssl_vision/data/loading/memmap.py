"""Files of raw pixels that are read in batches."""

import math
import mmap
import os
import warnings
import weakref
from pathlib import Path

import torch
from torch import Tensor

from ssl_vision.errors import InputError


class RowFile:
    """File of N consecutive images. It remains readable after its name has been deleted.

    Args:
        path: Path of the file.
        shape: (N, 3, H, W).
        by_column: The file stores pixels column by column, as those of STL-10 do.
        advice: Recommendation in the error for a damaged file.

    Raises:
        InputError: the size of the file does not match the shape.
        OSError: the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int, int, int],
        *,
        by_column: bool = False,
        advice: str = "delete it, so that it is created again",
    ) -> None:
        self.path, self.shape, self.by_column, self.advice = path, shape, by_column, advice
        count, channels, height, width = shape
        self._stored = (count, channels, width, height) if by_column else shape
        self._row = math.prod(shape[1:])
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size != self._row * shape[0]:
            raise self._damaged()

    def mapped(self) -> Tensor:
        """Return all images as a read-only memory map, (N, 3, H, W) uint8."""
        pages = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            images = torch.frombuffer(pages, dtype=torch.uint8).view(self._stored)
        return images.transpose(2, 3) if self.by_column else images

    def read(self, rows: Tensor, *, pin: bool = False) -> Tensor:
        """Copy rows, with read-ahead; unlike a memory map, this does not count as memory of the process.

        Args:
            rows: (M,) int64 in 0..N-1, on the CPU.
            pin: Copy into page-locked memory.

        Returns:
            (M, 3, H, W) uint8.

        Raises:
            InputError: the file is too short.
        """
        stored = (len(rows), *self._stored[1:])
        batch = torch.empty(stored, dtype=torch.uint8, pin_memory=pin and not self.by_column)
        size, numbers = self._row, rows.tolist()
        if hasattr(os, "posix_fadvise"):
            for number in sorted(numbers):
                os.posix_fadvise(self._file, number * size, size, os.POSIX_FADV_WILLNEED)
        target = memoryview(batch.view(-1).numpy())  # type: ignore[arg-type]
        for i, number in enumerate(numbers):
            part = target[i * size : (i + 1) * size]
            if os.preadv(self._file, [part], number * size) != size:
                raise self._damaged()
        if not self.by_column:
            return batch
        images = torch.empty((len(rows), *self.shape[1:]), dtype=torch.uint8, pin_memory=pin)
        return images.copy_(batch.transpose(2, 3))

    def _damaged(self) -> InputError:
        return InputError(f"{self.path} is damaged; {self.advice}")
