"""Argument parser with one-line error messages that name the option and suggest a correction."""

import inspect
import os
import re
from argparse import Action
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse
import yaml
from jsonargparse import ActionSubCommands, DefaultHelpFormatter, Namespace, get_loader, set_loader

from ssl_vision.cli.choices import classes_of, option_names
from ssl_vision.cli.inspection import describe_import
from ssl_vision.cli.suggestions import closest_match, closest_option
from ssl_vision.descriptions import read_catalogue
from ssl_vision.errors import InputError
from ssl_vision.runs.reading import check_yaml, read_yaml

_NOISE = re.compile(
    r"^(Does not validate|Subtypes:|Errors?:?$|Given value|Expected a <class 'NoneType'>|Expected a path but)"
)
_FACTORY = re.compile(r"^Type collections\.abc\.Callable\[.*\] expects a function or a callable class: ")
_load_value = get_loader("yaml")


def _load_bounded(text: str) -> Any:
    """Parse the value of an option, unless it is too large or nested too deeply."""
    check_yaml(text, where="the value")
    return _load_value(text)


set_loader("yaml", _load_bounded, exceptions=(yaml.YAMLError, InputError))


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
        raise InputError(one_line(message, options=list(_destinations(self)))) from ex

    def parse_path(self, *args: Any, **kwargs: Any) -> Namespace:
        """Read a config file.

        Raises:
            InputError: the file cannot be read as YAML, is not a table of keys and values, or has a plain
                value where a section is expected.
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


def _destinations(parser: jsonargparse.ArgumentParser) -> Iterator[str]:
    """Iterate over the names of a parser's options and those of its subcommands."""
    for action in parser._actions:
        yield action.dest
        for command in action.choices.values() if isinstance(action, ActionSubCommands) else ():
            yield from _destinations(command)


def one_line(message: str, *, options: Sequence[str] = ()) -> str:
    """Shorten a jsonargparse error message to one line.

    The parser reports a tree of all union members and classes that it tried. The result contains the path of
    keys, the innermost error and, for an unknown name, the closest valid one.
    """
    lines = [_FACTORY.sub("", line.strip().removeprefix("- ").strip()) for line in message.splitlines()]
    keys: list[str] = []
    owner, problem, value = "", "", ""
    for line in lines:
        if match := re.match(r'Parser key "([^"]+)":?\s*(.*)', line):
            keys += [] if problem else [match[1]]
            line = match[2]
        if match := re.match(r"Problem with given class_path '([^']+)':?\s*(.*)", line):
            owner, line = match[1], match[2]
        if match := re.match(r"Given value: (.*)", line):
            value = value or match[1]
        elif line and not _NOISE.match(line) and not problem:
            problem, of_class = _split_class(line)
            owner = of_class or owner
    if not problem:
        return " ".join(line for line in lines if line)
    path = ".".join(keys)
    if match := re.match(r"Option '([^']+)' is not accepted", problem):
        return f"{path}: {_unknown_option(match[1], owner, options, path)}"
    unknown = r"(?:[Uu]nrecognized arguments: --|Subcommand '\w+' does not accept option ')([^=\s']+)"
    if match := re.match(unknown, problem):
        name = ".".join([*keys, match[1]])
        group = name.rpartition(".")[0]
        if not owner and not (group and any(option.startswith(f"{group}.") for option in options)):
            nested = option_names() if "model" in options else ()
            if suggestion := closest_option(name, [*options, *nested]):
                return f"there is no option --{name}, did you mean --{suggestion}?"
        return f"{name}: {_unknown_option(match[1], owner, options, '.'.join(keys))}"
    if match := re.match(r"Expected a dot import path string: (\S+)", problem):
        listed = "; ssl-vision list objectives lists them" if keys[-1:] == ["objective"] else ""
        hint = _class_hint(value, path) or closest_match(match[1], list(classes_of(path))) or listed
        problem = f"no class named {match[1]}{hint}"
    elif problem.startswith("Import path"):
        problem += _class_hint(value, path)
    if (match := re.match(r"[Tt]he following arguments are required: (.*)", problem)) and "model" in options:
        return f"required: {', '.join(f'--{path}.{name}' for name in match[1].split(', '))}"
    if problem.startswith("Expected a ") and "Got value" not in problem and value:
        problem += f". Got value: {value}"
    problem = re.sub(r"Expected a <class '(\w+)'>\. Got value:", r"expected \1, got", problem)
    problem = re.sub(r"Expected a typing\.Literal\[(.*)\]\. Got value:", r"expected one of \1, got", problem)
    return f"{path}: {problem}" if path else problem


def _class_hint(name: str, option: str) -> str:
    """Return how to name a data set that is not a data module, or an encoder that is a model of timm."""
    if option.rpartition(".")[2] == "encoder":
        import timm

        model = name.removeprefix("timm/")
        return f"; use --{option} Timm --{option}.name {model}" if timm.is_model(model) else ""
    if option != "data":
        return ""
    module, _, last = name.rpartition(".")
    if last in read_catalogue()["torchvision"] and module in ("", "torchvision", "torchvision.datasets"):
        return f"; use --data Torchvision --data.name {last}"
    if os.path.isdir(name):
        return f"; for a folder of images, use --data ImageFolder --data.root {name}"
    return f"; for a map-style data set, use --data Dataset --data.dataset {name}" if module else ""


def _split_class(problem: str) -> tuple[str, str]:
    """Split an error about an option of a class into the error and the class."""
    match = re.match(r"(.*?)\.? Got value: (?:Namespace|\{).*class_path'?[=:] ?'([^']+)'", problem)
    return (match[1], match[2]) if match else (problem, "")


def _unknown_option(name: str, owner: str, options: Sequence[str], prefix: str) -> str:
    key = ".".join(filter(None, (prefix, name)))
    group, _, last = name.rpartition(".")
    of_group = [option for option in options if option.rpartition(".")[0] == key.rpartition(".")[0]]
    if not owner and group != "trainer":
        return f"there is no such option{closest_match(key, of_group or options)}"
    valid = _options(owner, group) or [option.rpartition(".")[2] for option in of_group]
    suggestion = closest_match(last, valid)
    if not owner:
        owner, group = "Trainer", ""
    nested = closest_option(key, option_names()) if "model" in options else ""
    if nested and nested.rpartition(".")[0] != key.rpartition(".")[0]:  # not of another class in this place
        suggestion = f", did you mean --{nested}?"
    if others := _classes_with(name, prefix):
        suggestion = others
    if owner.endswith(".Timm") and not suggestion.startswith(", did you mean"):
        suggestion = f"; options of the timm model are given as --{prefix}.dict_kwargs.{name}"
    owner = owner.rsplit(".", 1)[-1] + (f"'s {group}" if group else "")
    return f"{owner} has no option '{last}'{suggestion}"


def _classes_with(option: str, key: str) -> str:
    """Return the end of an error message about an option that only other classes of a key have."""
    classes = classes_of(key).items()
    names = [name for name, each in classes if option in (candidate.name for candidate in each.options)]
    return f"; first choose a class with this option: --{key} {' or '.join(names)}" if names else ""


def _options(owner: str, group: str) -> list[str]:
    """Return the option names of a class, or of one of its dataclass options."""
    cls = describe_import(owner)
    prefix = f"{group}." if group else ""
    names = [option.name for option in cls.options] if cls else []
    below = [name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix)]
    return list(dict.fromkeys(below))
