"""Checks of the options of ``fit`` before torch is imported: their names, and the classes that they name."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssl_vision.cli.choices import ClassDescription, classes_of, option_names
from ssl_vision.cli.import_paths import allowed_classes, class_paths, dotted, refusal, yaml_texts
from ssl_vision.cli.recipes import with_recipes
from ssl_vision.cli.suggestions import closest_match, closest_option
from ssl_vision.descriptions import read_catalogue
from ssl_vision.errors import InputError
from ssl_vision.runs.reading import read_yaml
from ssl_vision.runs.registry import Run

_FLAGS = ("help", "h", "print_config")
_OTHERS = ("ckpt_path", "config", "c", "seed_everything", *_FLAGS)
"""Options of every command of Lightning's parser."""


def checked(options: Sequence[str]) -> list[str]:
    """Check options of ``fit``, and return them with the paths of recipes and a default for ``--data``.

    The default cannot be one of the parser, which would pass its views to any other class of data. A class
    that is not part of this package is left to the parser, together with its options.

    Raises:
        InputError: an option has an unknown name or no value, or names an unknown class or file.
    """
    options = with_recipes(options)
    chosen = {key: _default(key) for key in ("data", "model", "model.encoder", "model.objective")}
    data_option = ""
    names_data = False
    for name, value in settings_in(options):
        if name == "data":
            if data_option:
                raise InputError(
                    f"--{data_option} must come after the data class, given by --data or a config file"
                )
            names_data = True
        elif name.startswith("data.") and not names_data:
            data_option = data_option or name
        _check(name, value, chosen)
    return options if names_data else [f"--data={read_catalogue()['defaults']['data']}", *options]


def check_classes(options: Sequence[str]) -> None:
    """Check the classes of ``--data`` and ``--encoder`` and their options, for other commands than ``fit``.

    Raises:
        InputError: see `checked`.
    """
    chosen: dict[str, ClassDescription | None] = {}
    for name, value in settings_in(options):
        if name.partition(".")[0] in ("data", "encoder"):
            _check(name, value, chosen)


def check_run(command: str, args: Sequence[str]) -> None:
    """Check the run or checkpoint that ``evaluate``, ``export`` or ``report`` begins with.

    Raises:
        InputError: it does not exist, or its model has a class that is not allowed.
    """
    allow_class = allowed_classes(args)
    if not args or args[0].startswith(("-", "~")) or "://" in args[0]:
        return
    path = Path(args[0])
    if not path.exists():
        raise InputError(f"{path}: no such {'directory' if command == 'report' else 'checkpoint'}")
    run = Run(path)
    if command != "report" and not allow_class and run.folder.config_file.is_file():
        for name in class_paths(run.config.get("model")):
            if not name.startswith("ssl_vision."):
                raise refusal(name, run.folder.config_file)


def settings_in(options: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a command and its config files, in order, by the names of their options.

    Raises:
        InputError: an option has no value, or a config file cannot be read.
    """
    words = list(options)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("-"):
            continue
        name = name.lstrip("-").removesuffix("+")
        if not equals and name.rpartition(".")[2] not in _FLAGS:
            missing = not words or words[0].startswith("--")
            if missing and "." in name:
                raise InputError(f"--{name} requires a value")
            value = "" if missing else words.pop(0)  # it may be a flag of another command
        if name not in ("config", "c"):
            yield name, value
            continue
        content = read_yaml(Path(value))
        if not isinstance(content, dict):
            raise InputError(f"{value}: not a table of keys and values")
        for group in ("data", "metrics", "model", "trainer"):
            if not isinstance(content.get(group, {}), (dict, str)):
                raise InputError(f"{value}: {group}: expected keys and values, got {content[group]}")
        yield from _flattened(content)


def _flattened(section: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a section of a config; that of a class is its import path."""
    for key, value in section.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            yield name, value
            continue
        if "class_path" in value:
            yield name, value["class_path"]
        rest = {part: each for part, each in value.items() if part not in ("class_path", "dict_kwargs")}
        yield from _flattened(rest, f"{name}.")


def _check(name: str, value: Any, chosen: dict[str, ClassDescription | None]) -> None:
    """Check a setting, and note the class that it chooses.

    Args:
        name: name of the option.
        value: its value.
        chosen: chosen class by option; None for one that is not part of this package.
    """
    parts = [part for part in name.split(".") if part not in ("class_path", "init_args")]
    if "dict_kwargs" in parts or parts[-1] in _FLAGS:
        return
    name = ".".join(parts)
    if parts[0] not in ("data", "encoder", "model"):
        known = [*option_names(), *_OTHERS, "metrics", "trainer"]
        depth = 2 if parts[0] in ("metrics", "trainer") else len(parts)
        if ".".join(parts[:depth]) not in known:
            raise _unknown(name, "", None, known)
        return
    key = max((each for each in chosen if name.startswith(f"{each}.")), key=len, default="")
    owner = chosen.get(key)
    if owner:
        known = [f"{key}.{each.name}" for each in owner.options]
        if not any(
            name == each or name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in known
        ):
            raise _unknown(name, key, owner, known)
    if classes_of(name):
        chosen[name] = _class(name, value)
        for option in [each for each in chosen if each.startswith(f"{name}.")]:
            chosen[option] = _default(option) if chosen[name] is _default(name) else None


def _default(option: str) -> ClassDescription | None:
    """Return the class that an option names by default, if it is part of this package."""
    return classes_of(option).get(read_catalogue()["defaults"].get(option))


def _class(option: str, value: Any) -> ClassDescription | None:
    """Return the class that a value names; None for other values and for other packages' classes.

    Raises:
        InputError: a class or its package does not exist.
    """
    classes = classes_of(option)
    name = str(value)
    content = yaml_texts(name)
    if isinstance(content, Mapping):
        name = str(content.get("class_path", ""))
    if name in classes:
        return classes[name]
    if dotted(name) and not os.path.isfile(name):
        package = name.partition(".")[0]
        if find_spec(package) is None and not any(map(os.path.exists, (package, f"{package}.py"))):
            raise InputError(f"--{option} {name}: no module named '{package}'")
        return classes.get(name.rpartition(".")[2]) if package == "ssl_vision" else None
    model = name.removeprefix("timm/")
    if not model.isidentifier() or name in ("null", "None", "nan", "inf"):
        return None
    if option == "data" and name in read_catalogue()["torchvision"]:
        hint = f"; use --data Torchvision --data.name {name}"
    elif option == "data" and os.path.isdir(name):
        hint = f"; for a folder of images, use --data ImageFolder --data.root {name}"
    elif option.endswith("encoder") and not difflib.get_close_matches(name, classes, n=1, cutoff=0.7):
        hint = f"; for a model of timm, use --{option} Timm --{option}.name {model}"
    else:
        hint = closest_match(name, list(classes)) or "; ssl-vision list objectives lists them"
    raise InputError(f"--{option}: no class named {name}{hint}")


def _unknown(name: str, key: str, owner: ClassDescription | None, known: Sequence[str]) -> InputError:
    """Return the error about an unknown option.

    Args:
        name: name of the option.
        key: option that chooses the class which lacks it, or "".
        owner: that class.
        known: names of the options that are valid instead.
    """
    last = name.rpartition(".")[2]
    suggestion = closest_option(name, [*known, *(() if key == "encoder" else option_names())])
    others = [
        each.name for each in classes_of(key).values() if last in (option.name for option in each.options)
    ]
    if suggestion and suggestion != name:
        hint = f", did you mean --{suggestion}?"
    elif others:
        hint = f"; first choose a class with this option: --{key} {' or '.join(others)}"
    elif owner and owner.name == "Timm":
        hint = f"; options of the timm model are given as --{key}.dict_kwargs.{last}"
    else:
        hint = closest_match(name, known)
    return InputError(f"unknown option --{name}{f' of {owner.name}' if owner else ''}{hint}")
