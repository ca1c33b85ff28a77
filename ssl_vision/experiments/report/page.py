"""The page: one self-contained HTML file that makes no network requests."""

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from ssl_vision._version import __version__
from ssl_vision.errors import InputError
from ssl_vision.experiments.report import markup


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Args:
        key: its anchor.
        title: its heading.
        lead: one sentence on what to look for.
        html: its content.
        style: CSS for its content.
        script: JavaScript for its content, which runs after page.js.
        missing: why there is no content.
    """

    key: str
    title: str
    lead: str = ""
    html: Markup = field(default_factory=Markup)
    style: str = ""
    script: str = ""
    missing: str = ""


class Missing(Exception):
    """The data of a section is not available; the message says why."""


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
    style, script = ((templates / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    script += "".join(section.script for section in sections)
    plotly, digest = _plotly()
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src '{_digest(script)}' '{digest}'; base-uri 'none'; form-action 'none'"
    )
    return markup.render(
        "page.html", title=title, summary=summary, sections=sections, policy=policy, version=__version__,
        style=Markup(style + "".join(section.style for section in sections)),
        script=Markup(script), plotly=Markup(plotly),
    )  # fmt: skip


@cache
def _plotly() -> tuple[str, str]:
    """Plotly's script, compressed with gzip and encoded in base64, and the digest of the script."""
    try:
        script = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, OSError) as error:
        raise InputError("the charts of the page require plotly: pip install plotly") from error
    packed = gzip.compress(script.encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode(), _digest(script)


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
