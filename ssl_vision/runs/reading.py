"""Size-limited readers for untrusted text, YAML and JSON files."""

import json
import stat
from pathlib import Path
from typing import Any

import yaml

from ssl_vision.errors import InputError

_LARGEST = 4 * 2**20
"""Maximum size of a file in bytes; the largest written by this package is evaluation.json, a few 100 kB."""

_LONGEST_YAML = 2**20
"""Maximum length of a YAML text in characters, so that parsing takes a fraction of a second."""

_MOST_VALUES = 10_000
"""Maximum number of values in a YAML file with all aliases expanded; a config.yaml has about 100."""

_DEEPEST = 50
"""Maximum nesting depth of a YAML file; a config.yaml has about 8."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BaseLoader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        InputError: the file cannot be read, is not a regular file, is too large, or is not UTF-8 text.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a regular file")
        if status.st_size > _LARGEST:
            raise InputError(f"{path} is larger than {_LARGEST // 2**20} MiB")
        return path.read_text(encoding="utf-8")
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_yaml(path: Path, *, words: bool = False) -> Any:
    """Read a YAML file; see `parse_yaml`.

    Raises:
        InputError: the file cannot be read, or `parse_yaml` refuses its text.
    """
    return parse_yaml(read_text(path), where=str(path), words=words)


def parse_yaml(text: str, *, where: str, words: bool = False) -> Any:
    """Parse YAML into plain values, after checking their number and nesting depth.

    Args:
        text: YAML text.
        where: name of its file, for error messages.
        words: keep every scalar as a string.

    Raises:
        InputError: the text is not YAML, contains a null byte or itself, has more than 10,000 values with
            all aliases expanded, or is nested more than 50 deep.
    """
    try:
        check_yaml(text, where=where)
        return yaml.load(text, Loader=_BaseLoader if words else _Loader)
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark, last = error.problem_mark, text.count("\n") + 1
        line = f", line {min(mark.line + 1, last)}" if mark else ""
        raise InputError(f"{where}{line}: {error.problem}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{where}: not a YAML file ({type(error).__name__})") from error


def check_yaml(text: str, *, where: str) -> None:
    """Check the number and nesting depth of YAML values from parser events, without building the values.

    Raises:
        InputError: the text is too long, contains a null byte or itself, has too many values, or is nested
            too deeply.
        yaml.YAMLError: the text is not YAML.
    """
    if len(text) > _LONGEST_YAML:
        raise InputError(f"{where}: longer than {_LONGEST_YAML // 2**20} MiB")
    anchored: dict[str, tuple[int, int]] = {}  # number of values and height, by anchor
    unfinished: list[tuple[str | None, int, int]] = []  # anchor, number of values before it, height so far
    values = 0
    for event in yaml.parse(text, Loader=_Loader):
        height = 0
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            unfinished.append((anchor, values, 0))
            values += 1
            if len(unfinished) > _DEEPEST:
                raise InputError(f"{where}: nested more than {_DEEPEST} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before, height = unfinished.pop()
            height += 1
            if anchor:
                anchored[anchor] = (values - before, height)
        elif isinstance(event, yaml.AliasEvent):
            recursive = any(anchor == parent for parent, _, _ in unfinished)
            count, height = (_MOST_VALUES, 0) if recursive else anchored.get(str(anchor), (1, 0))
            values += count
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if "\0" in event.value:
                raise InputError(f"{where}: {event.value[:40]!r} contains a null byte")
            if anchor:
                anchored[anchor] = (1, 0)
        else:
            continue
        if values >= _MOST_VALUES:
            raise InputError(f"{where}: contains itself, or more than {_MOST_VALUES} values")
        if len(unfinished) + height > _DEEPEST:
            raise InputError(f"{where}: nested more than {_DEEPEST} deep")
        if unfinished:
            anchor, before, tallest = unfinished[-1]
            unfinished[-1] = (anchor, before, max(tallest, height))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file cannot be read, is too large, is not JSON, or is nested too deeply.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON file") from error
