"""Standard streams that a command can rely on: open, able to take any text, and no reason to stop."""

import io
import os
import sys
from typing import Any, TextIO


def prepare() -> None:
    """Opens the standard streams that the process was started without, and lets them take any text.

    The number of a closed stream would otherwise go to the next file that is opened. Characters that the
    encoding of a stream lacks are written as escape sequences.
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
    """A stream whose reader may go away: what cannot be written to it is dropped.

    Args:
        stream: the stream that is written to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text, or drops it."""
        try:
            return self._stream.write(text)
        except OSError:
            abandon(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flushes the stream, or drops what it holds."""
        try:
            self._stream.flush()
        except OSError:
            abandon(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def abandon(stream: TextIO) -> None:
    """Drops what a stream holds and all that follows, of which the interpreter would complain at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, stream.fileno())
    finally:
        os.close(nothing)
