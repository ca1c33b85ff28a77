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
    """How to fix or improve it; empty if nothing has to be done."""
