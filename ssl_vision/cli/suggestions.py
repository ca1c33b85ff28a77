"""Unknown names, and the known one that was probably meant."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from ssl_vision.errors import InputError

_LISTED = 20


def closest_match(name: str, known: Sequence[str]) -> str:
    """What to add to a complaint about an unknown name: the nearest known one, else all if they are few."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f", did you mean '{near[0]}'?"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= _LISTED else ""


def check_keys(where: str, given: Iterable[Any], known: Sequence[str]) -> None:
    """Refuses keys that are not known.

    Raises:
        InputError: there is one.
    """
    for key in given:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{closest_match(str(key), known)}")
