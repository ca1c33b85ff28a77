"""Which data an evaluation used: the run's own, and what distinguishes others in its rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_vision.data import HuggingFace, ImageData, ImageFolder, Torchvision
from ssl_vision.runs.evaluation_file import own_data
from ssl_vision.runs.folder import below_home, significant


def same_data(own: Mapping[str, Any], data: ImageData) -> bool:
    """Whether the data are of the run's data set; images of one's own are told apart by their folders."""
    name = own_data({"data": own})["data"]
    options = own.get("init_args") or {}
    if isinstance(data, (HuggingFace, Torchvision)):
        return type(data).__name__ == name and data.title in (options.get("name"), options.get("path"))
    if not isinstance(data, ImageFolder):
        return type(data).__name__ == name
    return type(data).__name__ == name and _at(options, data) and options.get("test", "test") == data.test


def _at(options: Mapping[str, Any], data: ImageData) -> bool:
    """Whether the data lie in the root of some options."""
    return "root" in options and data.root.resolve() == Path(options["root"]).expanduser().resolve()


_NO_SETTINGS = {
    "class_path", "root", "test", "batch_size", "eval_batch_size", "seed", "val", "val_folder",
    "val_share", "views.compile",
}  # fmt: skip
"""Options of data that rows name elsewhere, or that do not change what evaluation sees."""


def data_place(
    own: Mapping[str, Any], stored: Mapping[str, Any], given: Mapping[str, Any], data: ImageData
) -> dict[str, str]:
    """Root, folder and settings, as far as they apply, of the data of an evaluation.

    Args:
        own: the data of the run's config.
        stored: the same with every option that has a default, or another class where the run's is not built.
        given: the data as options say now.
        data: what they made.
    """
    place: dict[str, str] = {}
    mine = own.get("init_args") or {}
    if "root" in given["init_args"]:
        place["root"] = str(mine["root"]) if _at(mine, data) else below_home(str(data.root.resolve()))
    if isinstance(data, ImageFolder):
        place["folder"] = data.test if data.eval_split == "test" else data.val_folder
    before, now = (significant({"data": each}) for each in (stored, given))
    names = {key: key.removeprefix("data.").removeprefix("init_args.") for key in now}
    changed = [key for key in now if before.get(key) != now[key] and names[key] not in _NO_SETTINGS]
    if changed:
        place["settings"] = ", ".join(f"{names[key]} {now[key]}" for key in sorted(changed))
    return place
