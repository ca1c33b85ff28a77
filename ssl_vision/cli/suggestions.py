"""Suggestions for unknown names."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from ssl_vision.errors import InputError

_LISTED = 20


def closest_match(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message about an unknown name: the closest known name, or all if few."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if matches:
        return f", did you mean '{matches[0]}'?"
    return f"; available: {', '.join(known)}" if 0 < len(known) <= _LISTED else ""


def check_keys(where: str, given: Iterable[Any], known: Sequence[str]) -> None:
    """Check that all keys are known.

    Raises:
        InputError: a key is not.
    """
    for key in given:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{closest_match(str(key), known)}")
