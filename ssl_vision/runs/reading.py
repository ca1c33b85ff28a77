"""Bounded readers for text, YAML and JSON files that anyone may have written."""

import json
import stat
from pathlib import Path
from typing import Any

import yaml

from ssl_vision.errors import InputError

_LARGEST = 4 * 2**20
"""Bytes of a file; the largest that this package writes, evaluation.json, has a few hundred thousand."""

_LONGEST_YAML = 2**20
"""Characters of a YAML text, so that reading one takes a fraction of a second."""

_MOST_VALUES = 10_000
"""Values in a YAML file, with every alias expanded; a config.yaml has about 100."""

_DEEPEST = 50
"""Nested collections in a YAML file; a config.yaml has about 8."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BaseLoader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def check_file(path: Path, *, largest: int) -> None:
    """Checks that a path is a regular file of at most so many bytes, before it is opened.

    Raises:
        InputError: it is not a regular file, or is too large.
        OSError: it cannot be looked at.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a file")
    if status.st_size > largest:
        raise InputError(f"{path} is larger than {largest // 2**20} MiB")


def read_text(path: Path) -> str:
    """Reads a text file.

    Raises:
        InputError: the file cannot be read, is not a regular file, is too large, or is not UTF-8 text.
    """
    try:
        check_file(path, largest=_LARGEST)
        return path.read_text(encoding="utf-8")
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text file") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_yaml(path: Path, *, words: bool = False) -> Any:
    """Reads a YAML file; see `parse_yaml`.

    Raises:
        InputError: the file cannot be read, or `parse_yaml` refuses its text.
    """
    return parse_yaml(read_text(path), where=str(path), words=words)


def parse_yaml(text: str, *, where: str, words: bool = False) -> Any:
    """Builds plain values from YAML text, after checking how many there are and how deep they nest.

    Args:
        text: the YAML.
        where: the file that holds it, for messages.
        words: leave every scalar as the text that stands in the file.

    Raises:
        InputError: the text is not YAML, holds a null byte, contains itself, has more than 10,000 values with
            every alias expanded, or nests collections more than 50 deep.
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
    """Counts values and depth from the parser's events, before anything is built from them.

    Raises:
        InputError: the text is too long, holds a null byte or itself, or has too many or too deep values.
        yaml.YAMLError: the text is not YAML.
    """
    if len(text) > _LONGEST_YAML:
        raise InputError(f"{where}: longer than {_LONGEST_YAML // 2**20} MiB")
    known: dict[str, tuple[int, int]] = {}  # values and height of what has an anchor
    unfinished: list[tuple[str | None, int, int]] = []  # anchor, values before it, height so far
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
                known[anchor] = (values - before, height)
        elif isinstance(event, yaml.AliasEvent):
            own = any(anchor == each for each, _, _ in unfinished)
            count, height = (_MOST_VALUES, 0) if own else known.get(str(anchor), (1, 0))
            values += count
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if "\0" in event.value:
                raise InputError(f"{where}: {event.value[:40]!r} holds a null byte")
            if anchor:
                known[anchor] = (1, 0)
        else:
            continue
        if values >= _MOST_VALUES:
            raise InputError(f"{where}: holds itself, or more than {_MOST_VALUES} values")
        if len(unfinished) + height > _DEEPEST:
            raise InputError(f"{where}: nested more than {_DEEPEST} deep")
        if unfinished:
            anchor, before, tallest = unfinished[-1]
            unfinished[-1] = (anchor, before, max(tallest, height))


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        InputError: the file cannot be read, is too large, is not JSON, or nests too deep.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON file") from error
