"""HTML from Jinja templates, in which every value that is not Markup is escaped."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

COLOURS = tuple(f"var(--c{place})" for place in range(10))
"""Colours of classes and lines, as CSS variables of page.css, which has values for light and dark pages.

HTML uses them as they are. In Plotly traces, page.js looks up those in ``line.color`` and ``marker.color``.
"""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Distinguish lines whose colours repeat."""

_ENVIRONMENT = Environment(
    loader=PackageLoader("ssl_vision.experiments.report"), autoescape=True, undefined=StrictUndefined,
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
