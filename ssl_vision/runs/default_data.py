"""The data of a ``fit`` that names none."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from ssl_vision.errors import InputError


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
    if option not in ("-c", "--config") or not Path(value).is_file():
        return False
    try:
        content = yaml.safe_load(Path(value).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{value} is no text file") from error
    except yaml.YAMLError:
        return False  # the parser will say what is wrong with it
    return isinstance(content, dict) and "data" in content
