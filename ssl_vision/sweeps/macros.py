"""Expansion of W&B's macros in the command of a sweep file."""

import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.cli.suggestions import closest_match
from ssl_vision.errors import InputError

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_ENVIRONMENT = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
_WHOLE = re.compile(r"\$\{(.*)\}")


def check_command(where: str, command: Any, program: Any) -> None:
    """Check that a command can be expanded.

    Raises:
        InputError: it is not a list, or contains an unknown macro or ``${program}`` without a program.
    """
    if not isinstance(command, list) or not command:
        raise InputError(f"{where}: expected a list of words and macros, got {command!r}")
    for word in command:
        macro = _WHOLE.fullmatch(str(word))
        if macro and not _ENVIRONMENT.search(str(word)) and macro[1] not in MACROS:
            raise InputError(f"{where}: unknown macro '{word}'{closest_match(macro[1], MACROS)}")
        if macro and macro[1] == "program" and not isinstance(program, str):
            raise InputError(f"{where}: uses ${{program}}, but the file has no program")


def expanded(
    command: Sequence[Any],
    parameters: Mapping[str, Any],
    *,
    program: str | None,
    json_file: Path,
    as_text: Callable[[Any], str] = str,
) -> list[str]:
    """Return the command line of a trial.

    It equals that of ``wandb agent``, except for ``${interpreter}``, which is the Python of this process.

    Args:
        command: words and macros.
        parameters: names and values in the order of the command line.
        program: value of ``${program}``.
        json_file: value of ``${args_json_file}``.
        as_text: function that writes a value.

    Raises:
        InputError: an environment variable is not set.
    """
    macros = _macros(parameters, str(program), str(json_file), as_text)
    line: list[str] = []
    for word in map(str, command):
        text = _ENVIRONMENT.sub(_variable, word)
        macro = _WHOLE.fullmatch(text)
        line += macros[macro[1]] if macro and macro[1] in macros else [text]
    return line


def runs_fit(command: Sequence[Any], program: str | None) -> bool:
    """Return True if the command of a sweep file is ``ssl-vision fit``."""
    return is_fit([str(program if word == "${program}" else word) for word in command])


def is_fit(line: Sequence[str]) -> bool:
    """Return True if a command line starts ``ssl-vision fit`` in any way."""
    words = [Path(word).name for word in line]
    return any(
        word in ("ssl_vision", "ssl-vision") and after == "fit" for word, after in itertools.pairwise(words)
    )


def _variable(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        raise InputError(f"the sweep's command needs ${match[1]}, which is not set in the environment")
    return os.environ[match[1]]


def yaml_text(value: Any) -> str:
    """Write a value as YAML: as ``str`` does, but null instead of None, also in lists and tables."""
    return json.dumps(value) if value is None or isinstance(value, (list, dict)) else str(value)


def _macros(
    parameters: Mapping[str, Any], program: str, json_file: str, as_text: Callable[[Any], str] = str
) -> dict[str, list[str]]:
    """Return the words that replace each macro."""
    words = [f"{name}={as_text(value)}" for name, value in parameters.items()]
    return {
        "env": ["/usr/bin/env"],
        "interpreter": [sys.executable],
        "program": [program],
        "args": [f"--{word}" for word in words],
        "args_no_equals": [
            part for name, value in parameters.items() for part in (f"--{name}", as_text(value))
        ],
        "args_no_hyphens": words,
        "args_no_boolean_flags": [
            f"--{name}" if value is True else f"--{name}={as_text(value)}"
            for name, value in parameters.items()
            if value is not False
        ],
        "args_json": [json.dumps(dict(parameters))],
        "args_json_file": [json_file],
        "args_append_hydra": [f"+{word}" for word in words],
        "args_override_hydra": [f"++{word}" for word in words],
    }


MACROS = tuple(_macros({}, "", ""))
