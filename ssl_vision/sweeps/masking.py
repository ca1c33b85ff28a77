"""Program that copies its input to its output and masks the values of some environment variables.

The output of a trial passes through it to the log if the command of the sweep contains such values. It is a
separate process, so that a trial can write until it ends even if its worker is killed.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping

_SHORTEST = 4
"""Minimum length of masked values; shorter values would be found in ordinary words."""


def masks(names: Iterable[str], environment: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return pairs of text and replacement for each line of a value, plain and escaped, longest first.

    Args:
        names: names of environment variables that are set.
        environment: values of the variables.
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
    """Replace the values in a line of output."""
    for value, macro in replacements:
        line = line.replace(value, macro)
    return line


if __name__ == "__main__":
    replacements = masks(sys.argv[1:], os.environ)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(masked(line, replacements))
        sys.stdout.buffer.flush()
