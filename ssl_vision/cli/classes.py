"""Which classes are built from the config in a checkpoint or a run directory.

To import a module is to run its code, so names are checked before anything is imported.
"""

import argparse
import copy
import inspect
import os
import pydoc
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jsonargparse
import pytorch_lightning as pl
import yaml
from jsonargparse import Namespace
from torch import nn

# Importing the classes makes their short names known to the parser.
import ssl_vision.data
import ssl_vision.encoders
import ssl_vision.methods
import ssl_vision.objectives  # noqa: F401
from ssl_vision.cli.import_paths import dotted, dotted_names, yaml_texts
from ssl_vision.cli.parser import one_line
from ssl_vision.encoders import Timm
from ssl_vision.errors import InputError

_OPTION = "--allow_class"
_PACKAGES = ("ssl_vision.data", "ssl_vision.encoders", "ssl_vision.methods", "ssl_vision.objectives")
_FOLDERS = ("cache_dir", "root", "test", "train")
"""Options of this package's data whose values may look like import paths: ``data.v1``."""


def add_allow_class(parser: jsonargparse.ArgumentParser) -> None:
    """Adds the option ``--allow_class`` to a command that builds what a checkpoint describes."""
    parser.add_argument(
        _OPTION,
        action="append",
        type=str,
        default=[],
        help="Allow the run to name a class outside ssl_vision, given as module.Class; may be repeated.",
    )


def allowed_classes(args: Sequence[str]) -> list[str]:
    """The values of ``--allow_class`` in a command that is yet to be parsed.

    Raises:
        InputError: a value that is no import path.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(_OPTION, action="append", default=[])
    try:
        allowed: list[str] = parser.parse_known_args(list(args))[0].allow_class
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    for name in allowed:
        if not dotted(name):
            raise InputError(f"{_OPTION} {name}: expected module.Class")
    return allowed


def class_paths(config: Any) -> Iterator[str]:
    """The classes that a config names, at any depth."""
    if isinstance(config, Mapping):
        if isinstance(config.get("class_path"), str):
            yield config["class_path"]
        config = list(config.values())
    for value in config if isinstance(config, (list, tuple)) else ():
        yield from class_paths(value)


def resolved(
    kind: type[Any], key: str, config: Mapping[str, Any], *, where: object, allowed: Collection[str]
) -> dict[str, Any]:
    """A section of a stored config with every class by its full name and every option with a value.

    Args:
        kind: base class of what the section describes.
        key: name of the section.
        config: the stored config.
        where: file that holds it, for messages.
        allowed: classes outside this package that it may name.

    Raises:
        InputError: the section names another class, or describes no object.
    """
    parser, parsed = _parsed(kind, key, config, where, allowed)
    found: dict[str, Any] = yaml.safe_load(parser.dump(parsed, skip_unset=False, skip_validation=True))
    section: dict[str, Any] = found[key]
    return section


def built(kind: Any, key: str, config: Mapping[str, Any], *, where: object, allowed: Collection[str]) -> Any:
    """The object that a section of a stored config describes; where its ``seed`` is null, it has the run's.

    Encoders of timm are built without timm's weights, so nothing is downloaded.

    Args:
        kind: base class of the object.
        key: name of the section.
        config: the stored config.
        where: file that holds it, for messages.
        allowed: classes outside this package that it may name.

    Raises:
        InputError: the section names another class, or describes no object.
    """
    parser, parsed = _parsed(kind, key, config, where, allowed)
    try:
        options = parsed[key].init_args
        if "seed" in options and options.seed is None:
            options.seed = config["seed_everything"]
        _disable_downloads(parsed[key])
        return parser.instantiate(parsed)[key]
    except Exception as error:  # of any class that the config names
        raise InputError(f"{where}: the run's config describes no {key}: {one_line(str(error))}") from error


def _parsed(
    kind: Any, key: str, config: Mapping[str, Any], where: object, allowed: Collection[str]
) -> tuple[jsonargparse.ArgumentParser, Namespace]:
    section = copy.deepcopy(config[key])
    _check_names(_without_folders(section), where, allowed)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    # To add_subclass_arguments a text may be the path of another config file; to this it may not.
    parser.add_argument(f"--{key}", type=kind, required=True)
    try:
        parsed: Namespace = parser.parse_object({key: section})
    except Exception as error:  # of any class that the config names
        raise InputError(f"{where}: the run's config describes no {key}: {one_line(str(error))}") from error
    for name in class_paths(parsed.as_dict()):  # short names are full ones now, and their modules imported
        if not _registered(name) and not any(_same(name, other) for other in allowed):
            raise _refusal(name, where)
    return parser, parsed


def _disable_downloads(section: Any) -> None:
    """Set ``pretrained`` of timm's encoders to false, in place and at any depth."""
    if not isinstance(section, Namespace):
        return
    if isinstance(section.get("class_path"), str) and pydoc.locate(section.class_path) is Timm:
        section.init_args.pretrained = False
    for value in vars(section).values():
        _disable_downloads(value)


def _check_names(section: Any, where: object, allowed: Collection[str]) -> None:
    """Checks all that the parser may import, and that it reads no other file."""
    for name in dotted_names(section):
        if name not in allowed and not _registered(name):
            raise _refusal(name, where)
    for text in _texts(section, allowed):
        if os.path.exists(os.path.expanduser(text)) and not os.path.isdir(os.path.expanduser(text)):
            raise InputError(f"{where}: names the file {text} in the place of an option's value")


def _texts(section: Any, allowed: Collection[str]) -> Iterator[str]:
    """Values in a section, but for the options of allowed classes, which may be names of files."""
    if isinstance(section, str):
        yield section
        inner = yaml_texts(section)
        if isinstance(inner, (dict, list)):
            yield from _texts(inner, allowed)
    elif isinstance(section, list):
        for value in section:
            yield from _texts(value, allowed)
    elif isinstance(section, dict):
        trusted = section.get("class_path") in allowed
        for key, value in section.items():
            options = value if trusted and key == "init_args" and isinstance(value, dict) else None
            inner = [each for each in options.values() if isinstance(each, dict)] if options else [value]
            for each in inner:
                yield from _texts(each, allowed)


def _without_folders(section: Any) -> Any:
    """A section of this package's data without the names of folders."""
    if not isinstance(section, dict) or not _registered(str(section.get("class_path"))):
        return section
    options = section.get("init_args")
    if not isinstance(options, dict):
        return section
    return section | {"init_args": {key: value for key, value in options.items() if key not in _FOLDERS}}


def _registered(name: str) -> bool:
    """True for the public models, data modules and parts of objectives of this package."""
    module, _, last = name.rpartition(".")
    if not any(f"{module}.".startswith(f"{package}.") for package in _PACKAGES) or last.startswith("_"):
        return False
    found = getattr(sys.modules.get(module), last, None)
    if not inspect.isclass(found) or not issubclass(found, (nn.Module, pl.LightningDataModule)):
        return False
    return any(f"{found.__module__}.".startswith(f"{package}.") for package in _PACKAGES)


def _same(name: str, other: str) -> bool:
    """True if two names are of one class, such as that of its module and that of its package."""
    found = pydoc.locate(name)
    return name == other or (found is not None and found is pydoc.locate(other))


def _refusal(name: str, where: object) -> InputError:
    return InputError(
        f"{where}: names the class {name}, which is not part of ssl_vision: "
        f"if you trust its code, add {_OPTION} {name}"
    )
