"""Images in a file, read a batch at a time."""

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
    """N images in a file, one behind the other. It stays readable when its name is deleted.

    Args:
        path: The file.
        shape: (N, 3, H, W).
        by_column: True if the file holds the pixels of an image column by column, as those of STL-10 do.
        advice: What the error for a damaged file recommends.

    Raises:
        InputError: The file is not of that size.
        OSError: The file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int, int, int],
        *,
        by_column: bool = False,
        advice: str = "delete it, and it is made again",
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
        """(N, 3, H, W) uint8, mapped into memory and not to be written to."""
        pages = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            images = torch.frombuffer(pages, dtype=torch.uint8).view(self._stored)
        return images.transpose(2, 3) if self.by_column else images

    def read(self, rows: Tensor, *, pin: bool = False) -> Tensor:
        """Copies rows, announced to the disk first; unlike those of a map, their pages stay the system's.

        Args:
            rows: (M,) int64 in 0..N-1, on the CPU.
            pin: Copy into page-locked memory.

        Returns:
            (M, 3, H, W) uint8.

        Raises:
            InputError: The file has become shorter.
        """
        stored = (len(rows), *self._stored[1:])
        batch = torch.empty(stored, dtype=torch.uint8, pin_memory=pin and not self.by_column)
        size, wanted = self._row, rows.tolist()
        if hasattr(os, "posix_fadvise"):
            for row in sorted(wanted):
                os.posix_fadvise(self._file, row * size, size, os.POSIX_FADV_WILLNEED)
        target = memoryview(batch.view(-1).numpy())  # type: ignore[arg-type]
        for place, row in enumerate(wanted):
            part = target[place * size : (place + 1) * size]
            if os.preadv(self._file, [part], row * size) != size:
                raise self._damaged()
        if not self.by_column:
            return batch
        images = torch.empty((len(rows), *self.shape[1:]), dtype=torch.uint8, pin_memory=pin)
        return images.copy_(batch.transpose(2, 3))

    def _damaged(self) -> InputError:
        return InputError(f"{self.path} is damaged: {self.advice}")
