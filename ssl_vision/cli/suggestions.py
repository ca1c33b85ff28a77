"""Suggestions for unknown names and options."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from ssl_vision.errors import InputError

_LISTED = 20

_ALIASES = {
    "arch": "model.encoder",
    "backbone": "model.encoder",
    "crop_size": "data.views.size",
    "dataset": "data",
    "epochs": "trainer.max_epochs",
    "gpus": "trainer.devices",
    "image_size": "data.views.size",
    "learning_rate": "model.optimizer.lr",
    "loss": "model.objective",
    "method": "model",
    "optimizer": "model.optimizer.name",
    "resume": "ckpt_path",
    "scheduler": "model.optimizer.schedule",
    "seed": "seed_everything",
    "tau": "model.objective.temperature",
    "temperature": "model.objective.temperature",
    "wd": "model.optimizer.weight_decay",
}
"""Options by the names that other programs have for them."""


def closest_match(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message about an unknown name: the closest known name, or all if few."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if matches:
        return f", did you mean '{matches[0]}'?"
    return f"; available: {', '.join(known)}" if 0 < len(known) <= _LISTED else ""


def closest_option(name: str, known: Sequence[str]) -> str:
    """Return the option that is probably meant by a name, or "".

    These are tried in turn: a known alias, a nested option whose last part is the name, and one whose last
    part is spelt alike. Options that share the name's prefix come first: ``model.lr`` is one of the model.

    Args:
        name: name that is not an option, such as "lr" or "model.lr".
        known: dotted names of the options.

    Example:
        >>> closest_option("lr", ["data.batch_size", "model.optimizer.lr"])
        'model.optimizer.lr'
        >>> closest_option("data.bathc_size", ["data.batch_size", "model.optimizer.lr"])
        'data.batch_size'
    """
    group, _, last = name.replace("-", "_").rpartition(".")
    below = [each for each in known if not group or each.startswith(f"{group}.")]
    if (alias := _ALIASES.get(last, "")) in below:
        return alias
    ends: dict[str, str] = {}
    for each in sorted(below, key=lambda option: option.count(".")):
        ends.setdefault(each.rpartition(".")[2], each)
    similar = difflib.get_close_matches(last, ends, n=1, cutoff=0.8)
    if similar:
        return ends[similar[0]]
    return closest_option(last, known) if group else ""


def check_keys(where: str, given: Iterable[Any], known: Sequence[str]) -> None:
    """Check that all keys are known.

    Raises:
        InputError: a key is not.
    """
    for key in given:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{closest_match(str(key), known)}")
