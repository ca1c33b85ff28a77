"""Argument parser with one-line error messages that name the option and suggest a correction."""

import inspect
import re
from argparse import Action
from typing import Any, NoReturn

import jsonargparse
from jsonargparse import DefaultHelpFormatter

from ssl_vision.cli.choices import classes_of
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError

_LABELS = (
    "Does not validate", "Subtypes:", "Error:", "Errors:", "Given value", "Expected a <class 'NoneType'>",
    "Expected a path but", "Problem with given class_path",
)  # fmt: skip
"""Beginnings of lines of jsonargparse's messages that state no problem themselves."""

_FACTORY = re.compile(r"^Type collections\.abc\.Callable\[.*\] expects a function or a callable class: ")


class _HelpFormatter(DefaultHelpFormatter):
    """Help without the lists of all imported modules, and without "required" for optional positions."""

    def _get_help_string(self, action: Action) -> str:
        text = super()._get_help_string(action)
        if action.nargs == "*":
            text = text.replace("(required, ", "(")
        return re.sub(r", known subclasses: [^)]*\b(torch\.nn|pytorch_lightning)\.[^)]*", "", text)


class ArgumentParser(jsonargparse.ArgumentParser):
    """A jsonargparse parser that raises a one-line ``InputError`` instead of printing its usage and exiting.

    Option names cannot be abbreviated. A description may be a docstring, whose sections are not shown.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        docstring = inspect.cleandoc(kwargs.get("description") or "")
        kwargs["description"] = (
            re.split(r"\n\n(?:Args|Raises|Returns):\n", docstring)[0].replace("``", "") or None
        )
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": _HelpFormatter, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise an ``InputError``."""
        if not self.exit_on_error:  # of a nested parser: the message becomes part of the outer one
            super().error(message, ex)
        match = re.match(r"[Uu]nrecognized arguments: --([^=\s]+)", message)
        if match:
            names = list(self.get_defaults(skip_validation=True).keys())
            message = f"unknown option --{match[1]}{closest_match(match[1], names)}"
        raise InputError(one_line(message)) from ex


def one_line(message: str) -> str:
    """Return the innermost problem of a jsonargparse message, after the path of its option.

    The parser reports a tree of all union members and classes that it tried.
    """
    keys: list[str] = []
    given = re.search(r"Given value: (.*)", message)
    for line in message.splitlines():
        text = _FACTORY.sub("", line.strip(" -"))
        if match := re.match(r'Parser key "([^"]+)":?\s*(.*)', text):
            keys.append(match[1])
            text = match[2]
        if not text or text.startswith(_LABELS):
            continue
        text = re.sub(r"\.? Got value: (Namespace|\{).*", "", text)
        if match := re.match(
            r"Expected a (?:<class '(\w+)'>|typing\.Literal\[(.*)\])(?:\. Got value: (.*))?", text
        ):
            value = match[3] or (given and given[1])
            text = f"expected {match[1] or f'one of {match[2]}'}, got {value}"
        elif match := re.match(r"Option '([^']+)' is not accepted", text):
            options = [each.name for cls in classes_of(".".join(keys)).values() for each in cls.options]
            text = f"no option '{match[1]}'{closest_match(match[1], options)}"
        return ": ".join(filter(None, [".".join(keys), text]))
    return " ".join(message.split())
