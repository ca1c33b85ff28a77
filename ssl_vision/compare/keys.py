"""Keys by which runs are listed and compared: settings of config.yaml and metrics of metrics.csv."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError
from ssl_vision.runs.csv_files import names
from ssl_vision.runs.registry import SHORT, Run


def is_metric(key: str) -> bool:
    """Whether a key is a metric's name, such as ``val/rankme``, and no setting's."""
    return "/" in key


def check_known(key: str, runs: Sequence[Run], *, others: Sequence[str] = ()) -> None:
    """Complains about a key that none of the runs has.

    Args:
        key: of a setting or a metric.
        runs: with a config that can be read.
        others: what else could have been meant.

    Raises:
        InputError: so it is; the message names the key that was probably meant.
    """
    if is_metric(key):
        file = "metrics.csv"
        known = dict.fromkeys(name for run in runs for name in names(run.folder.metrics_file))
        near = [name for name in known if is_metric(name)]
        found = key in known
    else:
        file = "config.yaml"
        near = [*others, *SHORT, *dict.fromkeys(name for run in runs for name in _keys(run.config))]
        found = key == "name" or key in SHORT or any(run.whole_key(key) for run in runs)
    if not found:
        raise InputError(f"no run has '{key}' in its {file}{closest_match(key, near)}")


def shortened(key: str) -> str:
    """A dotted key of config.yaml as one would write it: without ``init_args`` and ``class_path``."""
    return ".".join(part for part in key.split(".") if part not in ("init_args", "class_path"))


def shown(value: Any) -> str:
    """A setting in a sentence, as config.yaml has it."""
    return "null" if value is None else str(value)


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            if "class_path" in value:
                yield prefix + key
                value = value.get("init_args") or {}
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key
