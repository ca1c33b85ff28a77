"""Descriptions of imported classes: their options, as the command line accepts them, and their docstrings."""

import argparse
import inspect
import json
import pydoc
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jsonargparse

from ssl_vision.cli.choices import ClassDescription, Option, first_sentence


def describe_import(path: str) -> ClassDescription | None:
    """Import a class such as ``my_losses.Sharp`` and return its description, or None."""
    try:
        cls = pydoc.locate(path)
    except pydoc.ErrorDuringImport:
        return None
    return describe_class(cls) if inspect.isclass(cls) else None


def describe_class(cls: type) -> ClassDescription:
    """Return the description of a class."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "class", fail_untyped=False)
    paragraph = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]
    return ClassDescription(cls.__name__, first_sentence(_plain(paragraph)), tuple(options(parser, "class.")))


def options(parser: jsonargparse.ArgumentParser, group: str = "") -> Iterator[Option]:
    """Iterate over the options of a parser whose names begin with ``group``, which is left out."""
    for action in parser._actions:
        hint = vars(action).get("_typehint")
        if hint is not None and action.default != argparse.SUPPRESS:
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
