"""Configs of runs: names of settings, differences between configs, and names of runs."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_ROOT = "data.init_args.root"

DATA_OF_ROOT = ("ImageFolder", "Shards")
"""Data sets that are whatever their root contains. The root of others is only the place where they are."""

_LISTED = 6
"""Number of differences that a message names."""

# Settings that do not change the result, so that a continued run may change them. See `significant` for two
# exceptions: the root of `DATA_OF_ROOT`, and the length of a run with one of the `_SCHEDULES`.
_FREE = (
    "gradients",
    "metrics.extended",
    "name",
    "runs_dir",
    "save_every_n_epochs",
    "save_every_n_steps",
    "wandb",
    "wandb_artifacts",
    "wandb_media",
    "data.init_args.cache",
    "data.init_args.cache_dir",
    "data.init_args.changed",
    "data.init_args.download",
    "data.init_args.resident",
    "data.init_args.workers",
    _ROOT,
    "trainer.default_root_dir",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.logger",
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.max_time",
)

_SCHEDULES = ("model.init_args.optimizer.schedule", "model.init_args.momentum_schedule")
"""Settings of schedules that depend on the length of the run, unless they are constant."""


def class_name(spec: Any, default: str = "default") -> str:
    """Return the name of the class in a section of a config, or ``default`` without a section."""
    return last_part(spec["class_path"]) if isinstance(spec, Mapping) else default


def last_part(path: Any) -> str:
    """Return the name of a class from its import path."""
    return str(path).rpartition(".")[2]


def named_settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting with its dotted name on the command line.

    A class is a setting whose value is its name; its arguments follow.

    Args:
        config: contents of a config file, or one of its sections.
        prefix: start of the names.

    Examples:
        >>> method = {"class_path": "mine.Method", "init_args": {"optimizer": {"lr": 0.1}}}
        >>> list(named_settings({"model": method, "name": "first"}))
        [('model', 'Method'), ('model.optimizer.lr', 0.1), ('name', 'first')]
    """
    for key, value in config.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            yield name, value
            continue
        if "class_path" in value:
            yield name, class_name(value)
            others = {key: option for key, option in value.items() if key not in ("class_path", "init_args")}
            value = {**(value.get("init_args") or {}), **others}
        yield from named_settings(value, f"{name}.")


def below_home(value: Any) -> Any:
    """Replace the home directory in all strings by ``~``, for privacy and because it differs elsewhere."""
    home = str(Path.home())

    def shortened(text: str) -> str:
        return f"~{text[len(home) :]}" if f"{text}{os.sep}".startswith(f"{home}{os.sep}") else text

    return _with_texts(value, shortened)


def above_home(value: Any) -> Any:
    """Replace ``~`` at the beginning of all strings by the home directory; the inverse of `below_home`."""

    def expanded(text: str) -> str:
        return os.path.expanduser(text) if text == "~" or text.startswith(f"~{os.sep}") else text

    return _with_texts(value, expanded)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def as_yaml(config: Mapping[str, Any]) -> str:
    """Return the text of a config file."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], *, moved: bool = False) -> list[str]:
    """List the settings that differ and change the result, each as ``key: before there, now here``.

    Args:
        before: config of a run.
        now: another config.
        moved: ignore the root of data, because the images are compared separately.
    """
    old, new = significant(before), significant(now)
    for settings in (old, new) if moved else ():
        settings.pop(_ROOT, None)
    missing = object()
    return [
        f"{key}: {old.get(key, 'nothing')} there, {new.get(key, 'nothing')} here"
        for key in sorted(old | new)
        if old.get(key, missing) != new.get(key, missing)
    ]


def listed(changed: Sequence[str]) -> str:
    """Join the first `differences`, and count the others."""
    more = len(changed) - _LISTED
    return "; ".join(changed[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def derived_name(config: Mapping[str, Any]) -> str:
    """Return the default name of a run: data, objective, seed, and a hash of its `significant` settings."""
    return _named(config, f"s{config.get('seed_everything', 0)}", significant(config))


def derived_group(config: Mapping[str, Any]) -> str:
    """Return a name shared by all runs that differ only in their seed."""
    settings = significant(config)
    settings.pop("seed_everything", None)
    return _named(config, "seeds", settings)


def _named(config: Mapping[str, Any], middle: str, settings: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:6]
    data = class_name(config.get("data"))
    objective = class_name((config.get("model") or {}).get("init_args", {}).get("objective"))
    return f"{data}-{objective}-{middle}-{digest}".lower()


def significant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change the result, by their dotted keys, without those that are null."""
    flat = dict(_flat(config))
    free = set(_FREE)
    if last_part(flat.get("data.class_path")) in DATA_OF_ROOT:
        free.discard(_ROOT)
    if any(flat.get(schedule, "constant") != "constant" for schedule in _SCHEDULES):
        free -= {"trainer.max_epochs", "trainer.max_steps"}
    return {
        key: value
        for key, value in flat.items()
        if value is not None and not any(key == name or key.startswith(name + ".") for name in free)
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(item) if isinstance(item, tuple) else item
