"""The command ``fit`` until torch is imported: help, and the check of its options."""

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssl_vision.cli.import_paths import dotted, load, local_modules, yaml_texts
from ssl_vision.cli.known_options import ClassDescription, classes_of, option_names
from ssl_vision.cli.recipes import CONFIGS, FLAGS, recipes, settings, with_recipes
from ssl_vision.cli.suggestions import closest_match, closest_option
from ssl_vision.descriptions import read_catalogue
from ssl_vision.errors import InputError

_OTHERS = ("config", "c", *FLAGS)
"""Options of every command of Lightning's parser."""


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Run ``fit``, or print help about its options.

    Returns:
        Arguments of the report of a run that was trained, on the first process.
    """
    options = list(args)
    if options and not options[0].startswith("-"):
        options = [*_options_of_run(options[0]), *options[1:]]
    asked = bool({"-h", "--help"} & set(options))
    if asked or not options or any(".help" in option for option in options):
        from ssl_vision.cli.fit_help import requested_help

        text = requested_help(with_recipes(options))
        if text is not None:
            print(text)
            return None
    options = ["--help"] if asked else checked(options)
    fit = load("ssl_vision.cli.fit")
    with local_modules(options):  # also those that the config of a run directory names
        outcome = fit.executed(options)
    if outcome.message:
        print(outcome.message)
    page: dict[str, Any] | None = outcome.page
    return page


def _options_of_run(run: str) -> list[str]:
    """Return the options with which a run continues.

    Raises:
        InputError: it is not a run directory.
    """
    folder = Path(os.path.normpath(run))
    if not folder.name or folder.name == "..":
        folder = Path(os.path.abspath(run))
    config = folder / "config.yaml"
    if not config.is_file():
        recipe = f"; for the recipe, use --config {run}" if run in recipes(CONFIGS) else ""
        raise InputError(f"{run}: no run directory (no config.yaml){recipe or '; options start with --'}")
    return [f"--config={config}", f"--runs_dir={folder.parent}", f"--name={folder.name}", "--ckpt_path=last"]


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
    for name, value in settings(options):
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
    for name, value in settings(options):
        if name.partition(".")[0] in ("data", "encoder"):
            _check(name, value, chosen)


def _check(name: str, value: Any, chosen: dict[str, ClassDescription | None]) -> None:
    """Check a setting, and note the class that it chooses.

    Args:
        name: name of the option.
        value: its value.
        chosen: chosen class by option; None for one that is not part of this package.
    """
    parts = name.split(".")
    if "dict_kwargs" in parts or parts[-1] in FLAGS:
        return
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
        known = package in sys.modules or find_spec(package)  # __main__ has no spec
        if not known and not any(map(os.path.exists, (package, f"{package}.py"))):
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
    parent, _, last = option.rpartition(".")
    kinds = {each.values for cls in classes_of(parent).values() for each in cls.options if each.name == last}
    number = any(kind.startswith("float") for kind in kinds)
    problem = f"expected float or a class, got {name}" if number else f"no class named {name}"
    raise InputError(f"--{option}: {problem}{hint}")


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
