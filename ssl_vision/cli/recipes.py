"""Config files of a command: recipes, which come with the package, by name, and the settings in all files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError
from ssl_vision.runs.files import read_yaml

CONFIGS = Path(__file__).parent.parent / "configs"
"""Folder of the recipes of ``fit``, ``sweep`` and ``reproduce``."""

FLAGS = ("help", "h", "print_config")
"""Options without a value; help is also asked for the options of a class."""


def recipes(folder: Path) -> dict[str, Path]:
    """Return the files of a folder of recipes by name: the path in the folder, without the suffix."""
    return {str(file.relative_to(folder).with_suffix("")): file for file in sorted(folder.rglob("*.yaml"))}


def find_recipe(name: str, folder: Path, where: str) -> Path:
    """Return the file at a path or, if there is none, the recipe of that name.

    Args:
        name: path of a file, or name of a recipe, to which the folder and the suffix may be added.
        folder: folder of the recipes.
        where: option or kind of the file, for the error message.

    Raises:
        InputError: there is neither a file nor a recipe.

    Example:
        >>> find_recipe("configs/sweep/temperature_digits.yaml", CONFIGS / "sweep", "sweep").stem
        'temperature_digits'
    """
    if Path(name).is_file():
        return Path(name)
    known = recipes(folder)
    short = name.removeprefix(f"{CONFIGS.name}/").removeprefix(f"{folder.name}/").removesuffix(".yaml")
    if short not in known:
        raise InputError(f"{where} {name}: no such file or recipe{closest_match(short, list(known))}")
    return known[short]


def with_recipes(options: Sequence[str]) -> list[str]:
    """Replace the names of recipes in ``--config`` by the paths of their files.

    Raises:
        InputError: a name is neither that of a file nor that of a recipe.
    """
    replaced: list[str] = []
    for previous, option in zip(("", *options), options, strict=False):
        name, equals, value = option.partition("=")
        if equals and name in ("--config", "-c"):
            option = f"{name}={find_recipe(value, CONFIGS, name)}"
        elif previous in ("--config", "-c"):
            option = str(find_recipe(option, CONFIGS, previous))
        replaced.append(option)
    return replaced


def settings(options: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a command and its config files, in order, by the names of their options.

    The value of a class is its name or import path; its arguments follow.

    Raises:
        InputError: an option has no value, or a config file cannot be read.
    """
    words = list(options)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("-"):
            continue
        name = name.lstrip("-").removesuffix("+")
        if not equals and name.rpartition(".")[2] not in FLAGS:
            missing = not words or words[0].startswith("--")
            if missing and ("." in name or name in ("config", "c")):
                raise InputError(f"--{name} requires a value")
            value = "" if missing else words.pop(0)  # it may be a flag of another command
        yield _plain(name), value
        if name not in ("config", "c"):
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
            yield _plain(name), value
            continue
        if "class_path" in value:
            yield _plain(name), value["class_path"]
        rest = {part: each for part, each in value.items() if part not in ("class_path", "dict_kwargs")}
        yield from _flattened(rest, f"{name}.")


def _plain(name: str) -> str:
    """Return the name of an option without the keys that separate a class from its arguments."""
    return ".".join(part for part in name.split(".") if part not in ("class_path", "init_args"))
