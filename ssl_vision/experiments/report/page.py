"""The page: one self-contained HTML file that makes no network requests.

Its parts are rendered by Jinja templates, in which every value that is not Markup is escaped.
"""

import base64
import gzip
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ssl_vision._version import __version__
from ssl_vision.errors import InputError

COLOURS = tuple(f"var(--c{place})" for place in range(10))
"""Colours of classes and lines, as CSS variables of page.css, which has values for light and dark pages.

HTML uses them as they are. In Plotly traces and layouts, page.js looks up all variables.
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


def render_template(template: str, **values: Any) -> Markup:
    """Render a file in templates/ with these values."""
    return Markup(_ENVIRONMENT.get_template(template).render(values))


def number(value: float, digits: int = 5) -> float | None:
    """Round a value to significant digits for JSON; None if it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers(values: Sequence[float], digits: int = 5) -> list[float | None]:
    """Round each value as `number` does."""
    return [number(value, digits) for value in values]


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Args:
        key: its anchor.
        title: its heading.
        lead: one sentence on what to look for.
        html: its content.
        missing: why there is no content.
    """

    key: str
    title: str
    lead: str = ""
    html: Markup = field(default_factory=Markup)
    missing: str = ""


class Missing(Exception):
    """The data of a section is not available; the message says why."""


def make_section(key: str, title: str, make: Callable[[], tuple[str, Markup]]) -> Section:
    """Make a section from its lead and content, or from the reason why they are missing."""
    try:
        return Section(key, title, *make())
    except (Missing, InputError) as error:
        return Section(key, title, missing=str(error).replace(f"{Path.home()}{os.sep}", f"~{os.sep}"))


def render(title: str, summary: Markup, sections: Sequence[Section]) -> str:
    """Render the whole page.

    Its content security policy forbids all requests, and all scripts except its own two, which it identifies
    by their hashes.

    Args:
        title: title of the page, as text.
        summary: first paragraph and the key numbers.
        sections: sections in their order on the page.

    Raises:
        InputError: Plotly is not installed.
    """
    templates = files("ssl_vision.experiments.report") / "templates"
    style, page, explorer = (
        (templates / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "explorer.js")
    )
    plotly, digest = _plotly()
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src '{_digest(page + explorer)}' '{digest}'; base-uri 'none'; form-action 'none'"
    )
    return render_template(
        "page.html", title=title, summary=summary, sections=sections, policy=policy, version=__version__,
        style=Markup(style), script=Markup(page + explorer), plotly=Markup(plotly),
    )  # fmt: skip


@cache
def _plotly() -> tuple[str, str]:
    """Plotly's script, compressed with gzip and encoded in base64, and the digest of the script."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    packed = gzip.compress(script.encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode(), _digest(script)


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
