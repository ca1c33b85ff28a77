"""Optional libraries, and functions that some systems do not have."""

import importlib
import importlib.util
import os
from typing import Any

from ssl_vision.errors import InputError


def installed(name: str) -> bool:
    """Return True if a library can be imported."""
    return importlib.util.find_spec(name) is not None


def available_cores() -> int:
    """Return the number of cores that this process may use, or of all where the system does not state it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def needed(name: str, *, extra: str) -> Any:
    """Import and return a library.

    Raises:
        InputError: it is not installed; the message names the extra that contains it.
    """
    if not installed(name):
        raise InputError(f"{name} is not installed: pip install 'ssl_vision[{extra}]'")
    return importlib.import_module(name)
