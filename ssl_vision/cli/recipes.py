"""Recipes, the config files that come with the package, by name."""

from collections.abc import Sequence
from pathlib import Path

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError

CONFIGS = Path(__file__).parent.parent / "configs"
"""Folder of the recipes of ``fit``, ``sweep`` and ``reproduce``."""


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
