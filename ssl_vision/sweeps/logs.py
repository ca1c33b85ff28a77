"""What a process that ended said last."""

import os
import re
from pathlib import Path

_TAIL = 1 << 16
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST = 300


def last_line(log: Path, begin: int = 0) -> str:
    """The last line of a log that says something, from a place in it on."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begin, end - _TAIL))
        text = _ESCAPES.sub("", file.read().decode("utf-8", errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST] if lines else "it said nothing"
