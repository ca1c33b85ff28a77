"""Optional libraries, which only some commands require."""

import importlib
import importlib.util
from typing import Any

from ssl_vision.errors import InputError


def installed(name: str) -> bool:
    """Return True if a library can be imported."""
    return importlib.util.find_spec(name) is not None


def needed(name: str, *, extra: str) -> Any:
    """Import and return a library.

    Raises:
        InputError: it is not installed; the message names the extra that contains it.
    """
    if not installed(name):
        raise InputError(f"{name} is not installed: pip install 'ssl_vision[{extra}]'")
    return importlib.import_module(name)
