"""What a look at one thing found."""

from typing import Literal, NamedTuple


class Check(NamedTuple):
    """One thing that was looked at.

    ``note`` is for what may be wished otherwise, ``broken`` for what has to be otherwise.
    """

    name: str
    found: str
    state: Literal["ok", "note", "broken"] = "ok"
    advice: str = ""
    """What to do; empty where there is nothing."""
