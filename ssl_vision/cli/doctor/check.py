"""Result of one check."""

from typing import Literal, NamedTuple


class Check(NamedTuple):
    """Result of one check.

    The state ``note`` marks possible improvements, ``broken`` problems that must be fixed.
    """

    name: str
    found: str
    state: Literal["ok", "note", "broken"] = "ok"
    advice: str = ""
    """What to do; empty if nothing is to be done."""
