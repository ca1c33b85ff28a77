"""The data of an evaluation: the run's own data, and the fields that distinguish other data in rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_vision.data import HuggingFace, ImageData, ImageFolder, Shards, Torchvision
from ssl_vision.runs.folder import below_home, significant
from ssl_vision.runs.settings import class_name


def same_data(own: Mapping[str, Any], data: ImageData) -> bool:
    """Return True if the data are of the run's data set; image folders are compared by their paths."""
    if type(data).__name__ != class_name(own):
        return False
    options = own.get("init_args") or {}
    if isinstance(data, (HuggingFace, Torchvision)):
        return data.title in (options.get("name"), options.get("path"))
    if isinstance(data, ImageFolder):
        return _has_root(options, data) and options.get("test", "test") == below_home(data.test)
    return not isinstance(data, Shards) or _has_root(options, data)


def _has_root(options: Mapping[str, Any], data: ImageData) -> bool:
    """Return True if the data have the root of the given options."""
    return "root" in options and data.root.resolve() == Path(options["root"]).expanduser().resolve()


_NO_SETTINGS = {
    "class_path", "root", "test", "batch_size", "eval_batch_size", "seed", "val", "val_folder",
    "val_share", "views.compile", "workers",
}  # fmt: skip
"""Options of data that other fields of a row state or that do not affect the evaluation."""


def data_place(
    own: Mapping[str, Any], stored: Mapping[str, Any], given: Mapping[str, Any], data: ImageData
) -> dict[str, str]:
    """Return root, folder and settings of the data of an evaluation, as far as they apply.

    Args:
        own: data section of the run's config.
        stored: the same section with all defaults, or another class if that of the run cannot be built.
        given: data section with the options of the command.
        data: data module built from ``given``.
    """
    place: dict[str, str] = {}
    mine = own.get("init_args") or {}
    if "root" in given["init_args"]:
        place["root"] = str(mine["root"]) if _has_root(mine, data) else below_home(str(data.root.resolve()))
    if isinstance(data, ImageFolder):
        place["folder"] = below_home(data.test if data.eval_split == "test" else data.val_folder)
    if isinstance(data, Shards):
        place["folder"] = data.patterns[data.eval_split]
    before, now = (significant({"data": each}) for each in (stored, given))
    names = {key: key.removeprefix("data.").removeprefix("init_args.") for key in now}
    changed = [key for key in now if before.get(key) != now[key] and names[key] not in _NO_SETTINGS]
    if changed:
        place["settings"] = ", ".join(f"{names[key]} {below_home(now[key])}" for key in sorted(changed))
    return place
