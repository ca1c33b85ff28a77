"""Checks of constructor arguments, with one error message for each kind of error."""

import math
from collections.abc import Collection


def check_positive(name: str, value: float) -> None:
    """Check that a number is positive and finite.

    Raises:
        ValueError: it is not; the message states its name and value.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive, got {value}")


def check_not_negative(name: str, value: float) -> None:
    """Check that a number is finite and 0 or more.

    Raises:
        ValueError: it is not; the message states its name and value.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must not be negative or infinite, got {value}")


def check_angle(degrees: float) -> None:
    """Check that an additive angle is between 0 and 90 degrees.

    Raises:
        ValueError: it is not; the message states its value.
    """
    if not 0 <= degrees <= 90:
        raise ValueError(f"angle must be in [0, 90] degrees, got {degrees}")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Check that a string is one of several.

    Raises:
        ValueError: it is not; the message states its name, the choices and its value.
    """
    if value not in choices:
        *first, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(first)} or {last}, got {value!r}")
