"""Imports by name: a command's module, and classes in commands, config files and the current directory."""

import argparse
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ssl_vision.errors import InputError
from ssl_vision.progress import Progress
from ssl_vision.runs.files import read_yaml

ALLOW_CLASS = "--allow_class"
_FILES = (".yaml", ".yml", ".json")
_CLASS_OPTIONS = ("allow_class", "data", "encoder", "model", "objectives", "trainer")
"""Options that take a class, or have options that do."""


def load(module: str) -> ModuleType:
    """Import the module of a command, and show a line meanwhile.

    Warnings take one line from then on. The first import of torch is done without garbage collection, and
    later collections leave out all objects that exist then. They last as long as the process, and searching
    them again and again would take about a fifth of the CPU time until training starts.
    """
    with Progress("loading", lines=False):
        first = "torch" not in sys.modules and gc.isenabled()
        if first:
            gc.disable()
        try:
            return import_module(module)
        finally:
            if first:
                gc.freeze()
                gc.enable()
            # Lightning has set a form of its own
            warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"


def dotted(text: str) -> bool:
    """Return True if a string may be the import path of a class: ``module.Class``."""
    return "." in text and all(part.isidentifier() for part in text.split("."))


def dotted_names(value: Any, *, keys: bool = False) -> Iterator[str]:
    """Iterate over the strings in a config that may be import paths, including those in nested YAML strings.

    Args:
        value: a tree of dicts, lists and plain values.
        keys: include the keys of dicts, which name kinds of measurements in a protocol file.
    """
    if isinstance(value, dict):
        value = [*value.values(), *(value if keys else ())]
    if isinstance(value, str) and dotted(value.strip()):
        yield value.strip()
    elif isinstance(value, str):
        inner = yaml_texts(value)
        yield from () if isinstance(inner, str) else dotted_names(inner, keys=keys)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from dotted_names(each, keys=keys)


def names_in_command(args: Sequence[str]) -> Iterator[str]:
    """Iterate over the strings in a command, and in its config files, that may be import paths.

    Only values of options that take a class are considered, and no names of existing files, such as
    ``last.ckpt``.
    """
    for previous, arg in zip(("", *args), args, strict=False):
        name, equals, value = arg.partition("=")
        name, value = (name, value) if equals and name.startswith("-") else (previous, arg)
        path = Path(value)
        if name in ("--config", "-c") or path.suffix in _FILES:
            names = dotted_names(_content(path), keys=name in ("--protocol", "--evaluate"))
        elif name.removeprefix("--").partition(".")[0] in _CLASS_OPTIONS:
            names = dotted_names(value)
        else:
            continue
        yield from (text for text in names if not os.path.exists(text))


@contextmanager
def local_modules(args: Sequence[str]) -> Iterator[None]:
    """Make modules of the current directory importable if the command names a class of one of them.

    The directory is searched last, so that its modules do not shadow installed ones.
    """
    added = [str(Path.cwd())] if any(map(_is_local, names_in_command(args))) else []
    sys.path += added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)


def _is_local(name: str) -> bool:
    """Return True if the module of a class is in the current directory and not installed."""
    *parts, _ = name.split(".")
    modules = [Path(*parts[:count]) for count in range(1, len(parts) + 1)]
    files = [file for module in modules for file in (module.with_suffix(".py"), module / "__init__.py")]
    return any(file.is_file() for file in files) and PathFinder.find_spec(parts[0]) is None


def _content(file: Path) -> Any:
    try:
        return read_yaml(file, words=True)
    except InputError:  # reported by the command itself
        return None


def yaml_texts(text: str) -> Any:
    """Parse YAML with all scalars as strings; return None if the text is not YAML."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError):
        return None


def add_allow_class(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--allow_class`` to a command that builds objects from a checkpoint."""
    text = "Allow the run to name a class outside ssl_vision, given as module.Class; may be repeated."
    parser.add_argument(ALLOW_CLASS, action="append", type=str, default=[], help=text)


def allowed_classes(args: Sequence[str]) -> list[str]:
    """Return the values of ``--allow_class`` in unparsed arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(ALLOW_CLASS, action="append", nargs="?", default=[])  # the command requires the value
    return list(filter(None, parser.parse_known_args(list(args))[0].allow_class))


def class_paths(config: Any) -> Iterator[str]:
    """Iterate over the class paths in a config, at any depth."""
    if isinstance(config, Mapping):
        if isinstance(config.get("class_path"), str):
            yield config["class_path"]
        config = list(config.values())
    for value in config if isinstance(config, (list, tuple)) else ():
        yield from class_paths(value)


def refusal(name: str, where: object) -> InputError:
    """Return the error about a class that is not allowed, in the file ``where``."""
    return InputError(
        f"{where}: names the class {name}, which is not part of ssl_vision; "
        f"if you trust its code, add {ALLOW_CLASS} {name}; in Python, give allow_class=['{name}']"
    )
