"""Libraries that only some commands need."""

import importlib
import importlib.util
from typing import Any

from ssl_vision.errors import InputError


def installed(name: str) -> bool:
    """Whether the library can be imported."""
    return importlib.util.find_spec(name) is not None


def needed(name: str, *, extra: str) -> Any:
    """The library.

    Raises:
        InputError: it is not installed; the message names the extra that has it.
    """
    if not installed(name):
        raise InputError(f"{name} is not installed: pip install 'ssl_vision[{extra}]'")
    return importlib.import_module(name)
