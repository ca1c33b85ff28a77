"""Robust standard streams: open, able to encode any text, and without errors if the reader is gone."""

import io
import os
import sys
from typing import Any, TextIO


def prepare() -> None:
    """Open standard streams that are closed, and make all of them accept any text.

    Otherwise, the next file that is opened would get the number of a closed stream. Characters that a stream
    cannot encode are written as escape sequences.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class BestEffort:
    """A stream that discards text which cannot be written, for example because its reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, or discard it."""
        try:
            return self._stream.write(text)
        except OSError:
            abandon(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush the stream, or discard its buffer."""
        try:
            self._stream.flush()
        except OSError:
            abandon(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def abandon(stream: TextIO) -> None:
    """Discard buffered and later output of a stream, about which Python would print an error at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, stream.fileno())
    finally:
        os.close(nothing)
