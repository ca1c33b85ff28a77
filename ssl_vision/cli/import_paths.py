"""Names of classes in a command and its config files, and imports from the current folder."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import yaml

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_yaml

_FILES = (".yaml", ".yml", ".json")


def dotted(text: str) -> bool:
    """True if a text can be the import path of a class: ``module.Class``."""
    return "." in text and all(part.isidentifier() for part in text.split("."))


def dotted_names(value: Any, *, keys: bool = False) -> Iterator[str]:
    """Texts in a config that can be import paths, those within texts that are YAML themselves included.

    Args:
        value: a tree of dicts, lists and plain values.
        keys: look at the keys of dicts, too, which name kinds of measurements in a protocol file.
    """
    seen: dict[int, Any] = {}
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen[id(value)] = value  # an alias may stand in many places, or in itself
            if isinstance(value, dict):
                left += [*value.values(), *(value if keys else ())]
            else:
                left += value
        elif isinstance(value, str) and dotted(value.strip()):
            yield value.strip()
        elif isinstance(value, str):
            inner = yaml_texts(value)
            left += [inner] if isinstance(inner, (dict, list)) else []


def names_in_command(args: Sequence[str]) -> Iterator[str]:
    """Texts in a user's command, and in the config files that it names, that can be import paths.

    Args:
        args: words of the command.
    """
    for before, arg in zip(("", *args), args, strict=False):
        name, equals, value = arg.partition("=")
        value = value if equals and name.startswith("-") else arg
        path = Path(value)
        is_config = "--config" in (name, before) or "-c" in (name, before) or path.suffix in _FILES
        keys = "--protocol" in (name, before)
        yield from dotted_names(_content(path) if is_config else value, keys=keys)


@contextmanager
def local_modules(args: Sequence[str]) -> Iterator[None]:
    """Makes modules of the current folder importable, if the user's command names a class of one of them.

    The folder is searched last: no module in it takes the place of an installed one.

    Args:
        args: words of the command.
    """
    added = [str(Path.cwd())] if any(map(_is_local, names_in_command(args))) else []
    sys.path += added
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)


def _is_local(name: str) -> bool:
    """True if a module of the current folder has the name, and no installed one."""
    *parts, _ = name.split(".")
    places = [Path(*parts[:count]) for count in range(1, len(parts) + 1)]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return any(file.is_file() for file in files) and PathFinder.find_spec(parts[0]) is None


def _content(file: Path) -> Any:
    try:
        return read_yaml(file, words=True)
    except InputError:  # the command says what is wrong with it
        return None


def yaml_texts(text: str) -> Any:
    """The content of a YAML text, with texts for all values; None where it is no YAML."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
