"""Objects built from the config of a checkpoint or a run directory, and the check of its classes.

Importing a module runs its code, so class names are checked before anything is imported.
"""

import copy
import inspect
import os
import pydoc
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jsonargparse
import pytorch_lightning as pl
import yaml
from jsonargparse import Namespace
from torch import nn

# Importing the classes registers their short names with the parser.
import ssl_vision.data
import ssl_vision.encoders
import ssl_vision.methods
import ssl_vision.objectives  # noqa: F401
from ssl_vision.cli.import_paths import class_paths, dotted_names, refusal, yaml_texts
from ssl_vision.cli.parser import expanded, one_line
from ssl_vision.encoders import Timm
from ssl_vision.errors import InputError

_PACKAGES = ("ssl_vision.data.", "ssl_vision.encoders.", "ssl_vision.methods.", "ssl_vision.objectives.")
_PATHS = ("cache_dir", "path", "root", "test", "train", "val_files", "val_folder")
"""Data options whose values are paths, which may look like import paths: ``data.v1``."""


def outside_classes(config: Any) -> list[str]:
    """Return the classes in a config that are not part of this package, and therefore have to be allowed."""
    return [name for name in dict.fromkeys(class_paths(config)) if not _registered(name)]


def resolved(
    kind: type[Any], key: str, config: Mapping[str, Any], *, where: object, allow_class: Collection[str]
) -> dict[str, Any]:
    """Return a section of a stored config with full class paths and all default values.

    Args:
        kind: base class of the section's class.
        key: name of the section.
        config: the stored config.
        where: its file, for error messages.
        allow_class: classes outside this package that the section may name.

    Raises:
        InputError: the section names a class that is not allowed, or is not valid.
    """
    parser, parsed = _parse(kind, key, config, where, allow_class)
    dumped = parser.dump(parsed, skip_unset=False, skip_validation=True)
    section: dict[str, Any] = yaml.safe_load(dumped)[key]
    return section


def built(
    kind: Any, key: str, config: Mapping[str, Any], *, where: object, allow_class: Collection[str]
) -> Any:
    """Build the object described by a section of a stored config.

    If the object has a ``seed`` that is null, the seed of the run is used. timm encoders are built without
    pretrained weights, so that nothing is downloaded. Arguments and errors are those of `resolved`.
    """
    parser, parsed = _parse(kind, key, config, where, allow_class)
    try:
        options = parsed[key].get("init_args")  # None for a class without arguments
        if options and "seed" in options and options.seed is None:
            options.seed = config["seed_everything"]
        parsed[key] = expanded(parsed[key])
        _disable_downloads(parsed[key])
        return parser.instantiate(parsed)[key]
    except Exception as error:  # raised by any class in the config
        raise InputError(f"{where}: the run's config has no valid {key}: {one_line(str(error))}") from error


def _parse(
    kind: Any, key: str, config: Mapping[str, Any], where: object, allow_class: Collection[str]
) -> tuple[jsonargparse.ArgumentParser, Namespace]:
    section = copy.deepcopy(config[key])
    _check_names(_without_paths(section), where, allow_class)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    # Unlike add_subclass_arguments, this does not accept the path of another config file as a value.
    parser.add_argument(f"--{key}", type=kind, required=True)
    try:
        parsed: Namespace = parser.parse_object({key: section})
    except Exception as error:  # raised by any class in the config
        raise InputError(f"{where}: the run's config has no valid {key}: {one_line(str(error))}") from error
    for name in class_paths(parsed.as_dict()):  # short names are resolved and their modules imported by now
        if not _registered(name) and not any(_is_same_class(name, other) for other in allow_class):
            raise refusal(name, where)
    return parser, parsed


def _disable_downloads(section: Any) -> None:
    """Set ``pretrained`` of timm encoders to false, in place and at any depth."""
    if not isinstance(section, Namespace):
        return
    if isinstance(section.get("class_path"), str) and pydoc.locate(section.class_path) is Timm:
        section.init_args.pretrained = False
    for value in vars(section).values():
        _disable_downloads(value)


def _check_names(section: Any, where: object, allow_class: Collection[str]) -> None:
    """Check all names that the parser may import, and that no value is the path of another config file."""
    for name in dotted_names(section):
        if name not in allow_class and not _registered(name):
            raise refusal(name, where)
    for value in _string_values(section, allow_class):
        path = os.path.expanduser(value)
        if os.path.exists(path) and not os.path.isdir(path):
            raise InputError(f"{where}: the value {value} of an option is the path of a file")


def _string_values(section: Any, allow_class: Collection[str]) -> Iterator[str]:
    """Iterate over the strings in a section, except for options of allowed classes, which may be files."""
    if isinstance(section, str):
        yield section
        section = yaml_texts(section)
    if isinstance(section, list):
        section = dict(enumerate(section))
    if isinstance(section, dict):
        trusted = section.get("class_path") in allow_class
        for key, value in section.items():
            if trusted and key == "init_args" and isinstance(value, dict):
                value = [option for option in value.values() if isinstance(option, dict)]
            yield from _string_values(value, allow_class)


def _without_paths(section: Any) -> Any:
    """Remove the paths from the options of a data module of this package."""
    options = section.get("init_args") if isinstance(section, dict) else None
    if not isinstance(options, dict) or not _registered(str(section.get("class_path"))):
        return section
    return section | {"init_args": {key: value for key, value in options.items() if key not in _PATHS}}


def _registered(name: str) -> bool:
    """Return True for the public modules and data modules of this package."""
    module, _, attribute = name.rpartition(".")
    if not f"{module}.".startswith(_PACKAGES) or attribute.startswith("_"):
        return False
    cls = getattr(sys.modules.get(module), attribute, None)
    if not inspect.isclass(cls) or not issubclass(cls, (nn.Module, pl.LightningDataModule)):
        return False
    return f"{cls.__module__}.".startswith(_PACKAGES)


def _is_same_class(name: str, other: str) -> bool:
    """Return True if two names refer to the same class, for example in its module and in its package."""
    cls = pydoc.locate(name)
    return name == other or (cls is not None and cls is pydoc.locate(other))
