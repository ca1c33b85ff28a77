"""Default data of ``fit``."""

import os
from collections.abc import Sequence
from pathlib import Path

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_yaml

DEFAULT_DATA = "Digits"


def with_data(args: Sequence[str]) -> list[str]:
    """Insert ``--data=Digits`` if neither an option nor a config file names the data.

    It cannot be a default of the parser, which would pass the views of the default to any other data class.

    Raises:
        InputError: an option of the data precedes its class.
    """
    command, *rest = args
    first_option = ""
    for i, arg in enumerate(rest):
        name, _, value = arg.partition("=")
        if name.startswith("--data."):
            first_option = first_option or name
        elif name == "--data" or _names_data(name, value or "".join(rest[i + 1 : i + 2])):
            if first_option:
                raise InputError(
                    f"{first_option} must come after the data class, given by --data or a config file"
                )
            return list(args)
    return [command, f"--data={DEFAULT_DATA}", *rest]


def _names_data(option: str, value: str) -> bool:
    """Return True if an option is a config file with a data section."""
    if option not in ("-c", "--config") or not os.path.isfile(value):
        return False
    content = read_yaml(Path(value))
    return isinstance(content, dict) and "data" in content
