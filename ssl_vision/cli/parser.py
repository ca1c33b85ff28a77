"""Argument parser with one-line error messages, and descriptions of options and of classes."""

import inspect
import json
import re
import types
import typing
from argparse import SUPPRESS, Action
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jsonargparse
from jsonargparse import DefaultHelpFormatter, Namespace

from ssl_vision.cli.known_options import ClassDescription, Option, classes_of, first_sentence
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError
from ssl_vision.runs.config import above_home

_LABELS = (
    "Does not validate", "Subtypes:", "Error:", "Errors:", "Given value", "Expected a <class 'NoneType'>",
    "Expected a path but", "Problem with given class_path",
)  # fmt: skip
"""Beginnings of lines of jsonargparse's messages that state no problem themselves."""

_BOUNDS = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}

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
        elif match := re.match(r"Not of type \w+: (?:(\S+) )?does not conform to restriction (.*)", text):
            range_ = re.sub(r"v([<>]=?)", lambda bound: f"{_BOUNDS[bound[1]]} ", match[2])
            text = f"must be {range_}, got {match[1] or (given and given[1])}"
        elif match := re.match(r"Option '([^']+)' is not accepted", text):
            options = [each.name for cls in classes_of(".".join(keys)).values() for each in cls.options]
            text = f"no option '{match[1]}'{closest_match(match[1], options)}"
        return ": ".join(filter(None, [".".join(keys), text]))
    return " ".join(message.split())


def expanded(value: Any) -> Any:
    """`above_home` of an option, which may contain classes."""
    if isinstance(value, Namespace):
        return Namespace(**{name: expanded(item) for name, item in vars(value).items()})  # type: ignore[no-untyped-call]
    return [expanded(item) for item in value] if isinstance(value, list) else above_home(value)


def actions(parser: jsonargparse.ArgumentParser) -> list[Action]:
    """Return the options of a parser, which argparse has no public list of."""
    return parser._actions


def describe_class(cls: type) -> ClassDescription:
    """Return the description of a class."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "class", fail_untyped=False)
    paragraph = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]
    return ClassDescription(cls.__name__, first_sentence(_plain(paragraph)), tuple(options(parser, "class.")))


def options(parser: jsonargparse.ArgumentParser, group: str = "") -> Iterator[Option]:
    """Iterate over the options of a parser whose names begin with ``group``, which is left out."""
    for action in actions(parser):
        hint = vars(action).get("_typehint")
        if hint is not None and action.default != SUPPRESS:
            default = None if action.required else _written(action.default)
            name = action.dest.removeprefix(group)
            yield Option(name, default, _values(hint), _plain(action.help or ""))


def _written(value: Any) -> str:
    """Write a default as on the command line; objects are written as the names of their classes."""
    name = value.__name__ if isinstance(value, type) else value
    return name if isinstance(name, str) else json.dumps(value, default=lambda each: type(each).__name__)


def _values(hint: Any) -> str:
    """Write a type as the values that it stands for; "class" where an object is expected."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        name = hint.__name__ if isinstance(hint, type) else str(hint)
        return {"NoneType": "null", "Module": "class", "Ellipsis": "..."}.get(name, name)
    if origin is Callable:
        return "class"
    if origin is typing.Literal:
        return ", ".join(map(str, parts))
    texts = list(map(_values, parts))
    if origin in (typing.Union, types.UnionType):
        return "class" if "class" in texts else " | ".join(texts)
    return f"{origin.__name__}[{', '.join(texts)}]"


def _plain(text: str) -> str:
    """Remove line breaks and the marks of code."""
    return " ".join(text.split()).replace("`", "")
