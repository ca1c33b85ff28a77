"""HTML from Jinja templates, in which every value that is not Markup is escaped."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#888888")
"""Distinguishable with colour blindness, on white and on black (Okabe & Ito 2008, with grey for black)."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Distinguish lines whose colours repeat."""

_ENVIRONMENT = Environment(
    loader=PackageLoader("ssl_vision.report"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


class Macros(Protocol):
    """The macros of templates/macros.html, which documents them."""

    def __getattr__(self, name: str) -> Callable[..., Markup]:
        """A macro."""


macros = cast(Macros, _ENVIRONMENT.get_template("macros.html").module)


def render(template: str, **values: Any) -> Markup:
    """Render a file in templates/ with these values."""
    return Markup(_ENVIRONMENT.get_template(template).render(values))


def number(value: float, digits: int = 5) -> float | None:
    """Round a value to significant digits for JSON; None if it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers(values: Sequence[float], digits: int = 5) -> list[float | None]:
    """Round each value as `number` does."""
    return [number(value, digits) for value in values]
