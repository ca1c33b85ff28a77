"""Help of ``fit``: the most common options, and the options of one class, without importing torch."""

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from ssl_vision.cli.import_paths import dotted
from ssl_vision.cli.known_options import (
    ClassDescription,
    Option,
    capitalized,
    classes_of,
    first_sentence,
    options_of_fit,
)
from ssl_vision.cli.recipes import settings
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import read_catalogue
from ssl_vision.errors import InputError
from ssl_vision.runs.files import read_yaml

START = """\
ssl-vision fit pretrains an encoder. Give at least one option:

  ssl-vision fit --config configs/pretrain/digits.yaml     a first run, on handwritten digits
  ssl-vision fit --data CIFAR10 --data.download true       CIFAR-10, with SimCLR and InfoNCE
  ssl-vision fit --data ImageFolder --data.root my_images  your own images, in any folders

Change one thing with an option, such as --model.objective MACL or --trainer.max_epochs 100.
ssl-vision fit --help lists the options; ssl-vision list objectives lists the objectives."""

_SHORT_HELP = Path(__file__).parent / "short_help.yaml"

_COLUMN = 40
_WIDEST = 110


def requested_help(args: Sequence[str]) -> str | None:
    """Return the help that arguments of ``fit`` ask for, or None if they ask for none.

    ``--help all`` and the help of classes outside this package are left to the parser.

    Raises:
        InputError: help is requested for a class that does not exist.
    """
    if not args:
        return START
    if {"-h", "--help"} & set(args):
        words = [word for option, word in pairwise(args) if option in ("-h", "--help") and word[:1] != "-"]
        if words and words[0] != "all":
            group = words[0] if classes_of(words[0]) else "data"
            raise InputError(f"--help {words[0]}: give --help, --help all, or --{group}.help")
        return None if words else short_help(args)
    return class_help(args)


def class_help(args: Sequence[str]) -> str | None:
    """Return the help of the class or the group of options that ``--OPTION.help`` asks for, or None.

    Raises:
        InputError: the class does not exist, or a config file cannot be read.
    """
    for arg, following in pairwise([*args, "-"]):
        if match := re.fullmatch(r"--([\w.]+)\.help(?:=(.*))?", arg):
            option, name = match[1], match[2]
            if name is None and not following.startswith("-"):
                name = following
            given = _option_values(args)
            if classes_of(option):
                return "\n".join(_help_of(option, name or given.get(option))) or None
            group = (each for each in options_of_fit(given).values() if each.name.startswith(f"{option}."))
            return "\n".join(_table(map(_with_values, group))) or None
    return None


def short_help(args: Sequence[str] = ()) -> str:
    """Return the most common options in groups, each with its default and one sentence.

    The arguments and the errors are those of `common_options`.
    """
    source = "the values of this command" if set(args) - {"-h", "--help"} else "the defaults"
    lines = [f"usage: ssl-vision fit [--config FILE] [--OPTION VALUE ...] (with {source})"]
    for group, options in common_options(args).items():
        lines += ["", f"{group}:", *_table(options)]
    lines += [
        "",
        "A class comes before its options: --data CIFAR10 --data.root DIR. Options of a",
        "class: --data.help CIFAR10, --model.objective.help MACL. All: --help all.",
    ]
    return "\n".join(lines)


def common_options(args: Sequence[str] = ()) -> dict[str, list[Option]]:
    """Return the options of the short help by group, and those that a class requires.

    Args:
        args: arguments of ``fit``. They and their config files choose the classes whose options are listed,
            and replace defaults.

    Raises:
        InputError: a config file cannot be read.
    """
    given = _option_values(args)
    options = {"config": Option("config", "null", "", "")} | options_of_fit(given)
    groups = {}
    for group, texts in read_yaml(_SHORT_HELP).items():
        required = [
            each.name
            for each in options.values()
            if each.name.rpartition(".")[0] in texts and (each.default is None or each.name == "data.root")
        ]
        known = [options[name] for name in dict.fromkeys([*texts, *required]) if name in options]
        groups[group] = [
            each._replace(
                default=given.get(each.name) or each.default,
                text=_short_text(each, texts.get(each.name)),
            )
            for each in known
        ]
    return groups


def _option_values(args: Sequence[str]) -> dict[str, str]:
    """Return the values of the options in arguments and in the config files that they name.

    Raises:
        InputError: a file cannot be read.
    """
    texts = {}
    for name, value in settings(args):
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        texts[name] = text.rpartition(".")[2] if classes_of(name) else text
    return texts


def _short_text(option: Option, text: str | None) -> str:
    """Return a text, or the first sentence about an option, cut at its first semicolon or citation."""
    if text is not None:
        return text.format(classes=", ".join(classes_of(option.name)))
    text = re.split(r"; | \((?=[A-Z]\w+ (?:et al|and))", first_sentence(option.text))[0]
    return text if text.endswith((".", ":")) else f"{text}."


def _help_of(option: str, name: str | None) -> Iterator[str]:
    """Yield the help of a class, or of the default class after a list of all classes."""
    classes = classes_of(option)
    if name is None:
        width = max(map(len, classes))
        yield from (f"--{option} takes one of these classes, or one of yours:", "")
        yield from (f"  {each:<{width}}  {classes[each].sentence}" for each in classes)
        if default := read_catalogue()["defaults"].get(option):
            yield from ("", *_help_of_class(option, classes[default], " (the default)"))
    elif name in classes:
        yield from _help_of_class(option, classes[name])
    elif not dotted(name):
        raise InputError(f"{option}: no class named {name}{closest_match(name, list(classes))}")


def _help_of_class(option: str, owner: ClassDescription, note: str = "") -> Iterator[str]:
    yield from textwrap.wrap(f"{owner.name}{note}: {owner.sentence}", _width())
    if owner.options:
        yield ""
    for each in owner.options:
        name = f"{option}.{each.name}"
        default = read_catalogue()["defaults"].get(name, each.default)
        yield from _table([_with_values(each._replace(name=name, default=default))])


def _with_values(option: Option) -> Option:
    """Add the values of an option to its description."""
    text = capitalized(option.text)
    return option._replace(text=f"{text} [{option.values}]" if option.values else text)


def _table(options: Iterable[Option]) -> Iterator[str]:
    """Yield the lines of a table of options: name and default on the left, text on the right."""
    for option in options:
        left = f"  --{option.name} {'(required)' if option.default is None else option.default}"
        wrapped = textwrap.wrap(option.text, _width() - _COLUMN) or [""]
        if len(left) >= _COLUMN:
            yield left
            left = ""
        for line in wrapped:
            yield f"{left:<{_COLUMN}}{line}".rstrip()
            left = ""


def _width() -> int:
    return max(80, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
