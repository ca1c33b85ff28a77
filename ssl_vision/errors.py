"""Exceptions for wrong input and for interruptions; all other exceptions are faults of the program."""

import math
import operator
from collections.abc import Collection
from pathlib import Path


class InputError(ValueError):
    """Error for a wrong key, value, path or file, with a message of one line that says what to do.

    The command line prints the message and ends with exit code 2; no traceback is shown.
    """


def check(
    name: str,
    value: float | None,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Check that a number is finite and in a range; None, an option that is not given, is not checked.

    Args:
        name: name of the argument or option, for the message.
        value: the number.
        above: lower bound, which is not in the range.
        at_least: lower bound, which is in the range.
        below: upper bound, which is not in the range.
        at_most: upper bound, which is in the range.

    Raises:
        InputError: the number is outside the range; the message states its name, the range and its value.

    Example:
        >>> check("temperature", 0.1, above=0)
        >>> check("momentum", 1.0, at_least=0, below=1)
        Traceback (most recent call last):
            ...
        ssl_vision.errors.InputError: momentum must be at least 0 and below 1, got 1.0
    """
    if value is None:
        return
    bounds = (
        ("above", above, operator.gt),
        ("at least", at_least, operator.ge),
        ("below", below, operator.lt),
        ("at most", at_most, operator.le),
    )
    given = [(words, bound, holds) for words, bound, holds in bounds if bound is not None]
    finite = -math.inf < value < math.inf
    if not finite or not all(holds(value, bound) for _, bound, holds in given):
        range_ = [f"{words} {bound}" for words, bound, _ in given] + ["finite"] * (not finite)
        raise InputError(f"{name} must be {' and '.join(range_)}, got {value}")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Check that a value is one of several.

    Raises:
        InputError: it is not; the message states its name, the choices and the value.
    """
    if value not in choices:
        known = ", ".join(map(repr, choices))
        raise InputError(f"{name} must be {'one of ' * (len(choices) > 1)}{known}, got {value!r}")


class Interrupted(BaseException):
    """A run was ended by a signal after its state was saved; the exit code is 128 + the signal's number.

    Args:
        signal: number of the signal.
    """

    run: Path | None = None
    """Run directory, with which ``fit`` continues."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal
