"""The settings of a config, by the names of their options."""

from collections.abc import Iterator, Mapping
from typing import Any


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
