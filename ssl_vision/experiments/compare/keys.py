"""Keys by which runs are listed and compared: settings, and metrics of training and evaluation."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError
from ssl_vision.runs.config import named_settings
from ssl_vision.runs.evaluation_file import TEST_PREFIXES
from ssl_vision.runs.files import read_csv
from ssl_vision.runs.registry import SHORT, Run


def is_metric(key: str) -> bool:
    """Return True for the name of a metric, such as ``val/rankme``, and False for a setting."""
    return "/" in key


def check_known(key: str, runs: Sequence[Run], *, others: Sequence[str] = ()) -> None:
    """Check that at least one run has a key.

    Args:
        key: setting or metric.
        runs: runs with readable configs.
        others: further valid keys, for the suggestion in the message.

    Raises:
        InputError: No run has the key; the message suggests the closest valid one.
    """
    if is_metric(key):
        file = "evaluation.json" if key.startswith(TEST_PREFIXES) else "metrics.csv"
        columns = dict.fromkeys(name for run in runs for name in _metrics(run))
        candidates = [name for name in columns if is_metric(name)]
        valid = key in columns
    else:
        file = "config.yaml"
        candidates = [*others, *SHORT, *_settings(runs)]
        valid = key == "name" or key in SHORT or any(run.whole_key(key) for run in runs)
    if not valid:
        raise InputError(f"no run has '{key}' in its {file}{closest_match(key, candidates)}")


def full_key(key: str, runs: Sequence[Run]) -> str:
    """Complete the name of a setting, such as ``temperature`` for ``model.objective.temperature``.

    A key that a config has, a short name and a metric are returned as they are. Any other key is matched
    with the last parts of all settings. If several match, the one that differs between the runs is meant.

    Args:
        key: setting or metric.
        runs: runs with readable configs.

    Raises:
        InputError: Several settings match, and not exactly one of them differs; the message lists them.
    """
    if is_metric(key) or key == "name" or key in SHORT or any(run.whole_key(key) for run in runs):
        return key
    matches = [name for name in _settings(runs) if name.endswith(f".{key}")]
    varying = [name for name in matches if len({str(run.setting(name)) for run in runs}) > 1]
    candidates = varying or matches
    if len(candidates) > 1:
        raise InputError(f"'{key}' is ambiguous: choose one of {', '.join(sorted(candidates))}")
    return candidates[0] if candidates else key


def _settings(runs: Sequence[Run]) -> dict[str, None]:
    return dict.fromkeys(name for run in runs for name, _ in named_settings(run.config))


def _metrics(run: Run) -> Iterator[str]:
    yield from read_csv(run.folder.metrics_file)[0]
    with suppress(InputError):
        yield from run.test_metrics


def key_value(option: str, text: str) -> tuple[str, str]:
    """Split KEY=VALUE.

    Raises:
        InputError: The text has another form; the message names the option.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InputError(f"{option} {text}: expected KEY=VALUE")
    return key, value


def shortened(key: str) -> str:
    """A dotted key of config.yaml without ``init_args`` and ``class_path``."""
    return ".".join(part for part in key.split(".") if part not in ("init_args", "class_path"))


def shown(value: Any) -> str:
    """The value of a setting as in config.yaml."""
    return "null" if value is None else str(value)


def matches(value: Any, text: str) -> bool:
    """Compare a setting with text: numbers by value, everything else as text without regard to case."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return value == float(text)
        except ValueError:
            return False
    return shown(value).lower() == text.lower()


def order(value: Any) -> tuple[bool, Any]:
    """Sort key that puts numbers before text."""
    number = isinstance(value, (int, float))
    return (not number, value if number else str(value))
