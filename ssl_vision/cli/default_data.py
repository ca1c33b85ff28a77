"""The data of a ``fit`` that names none."""

import os
from collections.abc import Sequence
from pathlib import Path

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_yaml


def with_data(args: Sequence[str]) -> list[str]:
    """The digits before all else, where neither an option nor a config file names the data.

    They cannot be the parser's default: the parser would hand the default's views to whatever class comes.
    """
    command, *rest = args
    early = ""
    for i, arg in enumerate(rest):
        name, _, value = arg.partition("=")
        if name.startswith("--data."):
            early = early or name
        elif name == "--data" or _names_data(name, value or "".join(rest[i + 1 : i + 2])):
            if early:
                raise InputError(
                    f"{early} stands before the data's class: give the class first, then its options"
                )
            return list(args)
    return [command, "--data=Digits", *rest]


def _names_data(option: str, value: str) -> bool:
    """Whether an option is a config file with a data section."""
    if option not in ("-c", "--config") or not os.path.isfile(value):
        return False
    content = read_yaml(Path(value))
    return isinstance(content, dict) and "data" in content
