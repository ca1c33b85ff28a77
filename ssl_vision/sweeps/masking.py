"""A program that copies its input to its output without the values of some environment variables.

A trial's output passes through it on the way to the log if the sweep's command contains such values. It is
a process of its own, so that a trial can write until its end even if the worker that started it is killed.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping

_SHORTEST = 4
"""Values with fewer characters are not masked: they would be found in ordinary words."""


def masks(names: Iterable[str], environment: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """What is to be replaced by what, the longest first: each line of a value, plain and escaped.

    Args:
        names: environment variables that are set.
        environment: their values.
    """
    forms = {
        form: f"${{envvar:{name}}}"
        for name in names
        for line in environment[name].splitlines()
        for form in (line, repr(line)[1:-1], json.dumps(line)[1:-1])
        if len(line) >= _SHORTEST
    }
    return [(os.fsencode(form), forms[form].encode()) for form in sorted(forms, key=len, reverse=True)]


def masked(line: bytes, replacements: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A line of output without the values."""
    for value, macro in replacements:
        line = line.replace(value, macro)
    return line


if __name__ == "__main__":
    replacements = masks(sys.argv[1:], os.environ)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(masked(line, replacements))
        sys.stdout.buffer.flush()
