"""One line out of a config parser's page: which key, what is wrong, what was probably meant."""

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse
import yaml
from jsonargparse import ActionSubCommands, Namespace, get_loader, set_loader

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError
from ssl_vision.runs.migration import migrated_config, migrated_key
from ssl_vision.runs.reading import check_yaml, parse_yaml, read_yaml

_NOISE = re.compile(
    r"^(Does not validate|Subtypes:|Errors?:?$|Given value|Expected a <class 'NoneType'>|Expected a path but)"
)
_FACTORY = re.compile(r"^Type collections\.abc\.Callable\[.*\] expects a function or a callable class: ")
_load_value = get_loader("yaml")


def _load_bounded(text: str) -> Any:
    """Reads the value of an option as the parser does, unless it is too large or too deep."""
    check_yaml(text, where="the value")
    return _load_value(text)


set_loader("yaml", _load_bounded, exceptions=(yaml.YAMLError, InputError))


class ArgumentParser(jsonargparse.ArgumentParser):
    """A parser that ends with an ``InputError`` of one line where its parent prints a page and exits.

    It knows options by their whole names only. A description may be a docstring, of which only the text is
    shown.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        described = inspect.cleandoc(kwargs.get("description") or "")
        kwargs["description"] = (
            re.split(r"\n\n(?:Args|Raises|Returns):\n", described)[0].replace("``", "") or None
        )
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises the complaint."""
        if not self.exit_on_error:  # a parser within the parser: its complaint becomes part of the whole
            super().error(message, ex)
        raise InputError(one_line(message, options=list(_destinations(self)))) from ex

    def parse_path(self, *args: Any, **kwargs: Any) -> Namespace:
        """Reads a config file.

        Raises:
            InputError: the file cannot be read as YAML, is not a table of keys and values, or has a value in
                the place of a section.
        """
        path = Path(args[0])
        content = read_yaml(path)
        if not isinstance(content, dict):
            raise InputError(f"{path}: not a table of keys and values")
        for group in {option.partition(".")[0] for option in _destinations(self) if "." in option}:
            if not isinstance(content.get(group, {}), (dict, str)):
                raise InputError(f"{path}: {group}: expected keys and values, got {content[group]}")
        parsed: Namespace = super().parse_path(*args, **kwargs)
        return parsed

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Namespace:
        """Reads the text of a config file, which version 0.1 may have written."""
        given = parse_yaml(content, where=str(args[0] if args else kwargs.get("path", "")))
        if (current := migrated_config(given)) != given:
            content = yaml.safe_dump(current, sort_keys=False)
        parsed: Namespace = super().parse_string(content, *args, **kwargs)
        return parsed


def _destinations(parser: jsonargparse.ArgumentParser) -> Iterator[str]:
    """Names of a parser's options and of its subcommands'."""
    for action in parser._actions:
        yield action.dest
        for command in action.choices.values() if isinstance(action, ActionSubCommands) else ():
            yield from _destinations(command)


def one_line(message: str, *, options: Sequence[str] = ()) -> str:
    """The complaint in a jsonargparse error, as one line.

    The parser reports a tree: each union member it tried, each class it entered. What a person needs is
    the path of keys, the innermost complaint and, for a name that is not accepted, the nearest that is.

    Args:
        message: of the error.
        options: the parser's.
    """
    lines = [_FACTORY.sub("", line.strip().removeprefix("- ").strip()) for line in message.splitlines()]
    keys: list[str] = []
    owner, complaint, given = "", "", ""
    for line in lines:
        if match := re.match(r'Parser key "([^"]+)":?\s*(.*)', line):
            keys += [] if complaint else [match[1]]
            line = match[2]
        if match := re.match(r"Problem with given class_path '([^']+)':?\s*(.*)", line):
            owner, line = match[1], match[2]
        if match := re.match(r"Given value: (.*)", line):
            given = given or match[1]
        elif line and not _NOISE.match(line) and not complaint:
            complaint, of_class = _split_class(line)
            owner = of_class or owner
    if not complaint:
        return " ".join(line for line in lines if line)
    path = ".".join(keys)
    if match := re.match(r"Option '([^']+)' is not accepted", complaint):
        return f"{path}: {_unknown_option(match[1], owner, options, path)}"
    unknown = r"(?:[Uu]nrecognized arguments: --|Subcommand '\w+' does not accept option ')([^=\s']+)"
    if match := re.match(unknown, complaint):
        return f"{'.'.join([*keys, match[1]])}: {_unknown_option(match[1], owner, options, '.'.join(keys))}"
    if match := re.match(r"Expected a dot import path string: (\S+)", complaint):
        complaint = f"no class named {match[1]}{closest_match(match[1], _classes(keys))}"
    if complaint.startswith("Expected a ") and "Got value" not in complaint and given:
        complaint += f". Got value: {given}"
    complaint = re.sub(r"Expected a <class '(\w+)'>\. Got value:", r"expected \1, got", complaint)
    complaint = re.sub(
        r"Expected a typing\.Literal\[(.*)\]\. Got value:", r"expected one of \1, got", complaint
    )
    return f"{path}: {complaint}" if path else complaint


def _split_class(complaint: str) -> tuple[str, str]:
    """Split a complaint about an encoder's option from the options given, and return it with the class."""
    match = re.match(r"(.*?)\.? Got value: (?:Namespace|\{).*class_path'?[=:] ?'([^']+)'", complaint)
    return (match[1], match[2]) if match else (complaint, "")


def _unknown_option(name: str, owner: str, options: Sequence[str], place: str) -> str:
    key = ".".join(filter(None, (place, name)))
    if (current := migrated_key(key)) != key:
        return f"is now --{current}"
    head, _, last = name.rpartition(".")
    known = _options(owner, head)
    if not owner:
        split = [option.rpartition(".") for option in options]
        known = list(dict.fromkeys(own for where, _, own in split if where == head))
        if not known:  # nothing has options of that name
            last, known = name, list(options)
        owner, head = ("Trainer", "") if head == "trainer" else ("", head)
    whose = owner.rsplit(".", 1)[-1] + (f"'s {head}" if head else "") if owner else "there"
    verb = "has no" if owner else "is no"
    return f"{whose} {verb} option '{last if owner else name}'{closest_match(last, known)}"


def _options(owner: str, head: str) -> list[str]:
    """Names that a class, or one of its dataclass options, takes."""
    module, _, name = owner.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
        for part in filter(None, head.split(".")):
            cls = typing.get_type_hints(cls.__init__)[part]
    except (ImportError, AttributeError, ValueError, KeyError, NameError):
        return []
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    known: list[str] = []
    for base in cls.__mro__:
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
        known += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.kind is p.POSITIONAL_OR_KEYWORD]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return list(dict.fromkeys(known))


def _classes(keys: Sequence[str]) -> list[str]:
    """Names of the package's classes that can stand at a key."""
    rooms = {"temperature": "objective", "weight": "objective", "network": "encoder"}
    rooms = {
        key: f"{rooms.get(key, key)}s" for key in ("encoder", "network", "objective", "temperature", "weight")
    }
    rooms["data"] = "data"
    room = importlib.import_module(f"ssl_vision.{rooms.get(keys[-1] if keys else '', 'methods')}")
    return [name for name in getattr(room, "__all__", ()) if inspect.isclass(getattr(room, name))]
