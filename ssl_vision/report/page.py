"""The page: one HTML file that asks nothing of the network."""

import base64
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ssl_vision._version import __version__
from ssl_vision.errors import InputError
from ssl_vision.report.markup import text


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        key: its anchor.
        title: its heading.
        lead: one sentence on what to look for.
        html: its content.
        style: CSS that belongs to it.
    """

    key: str
    title: str
    lead: str
    html: str
    style: str = ""

    def render(self) -> str:
        """Its HTML."""
        lead = f'<p class="lead">{text(self.lead)}</p>' if self.lead else ""
        return (
            f'<section id="{self.key}" aria-labelledby="{self.key}-title">'
            f'<h2 id="{self.key}-title">{text(self.title)}</h2>{lead}{self.html}</section>'
        )


class Missing(Exception):
    """What a section would show is not there; the message says what and why."""


def missing(key: str, title: str, why: str) -> Section:
    """A section that says what is missing and why."""
    return Section(key, title, "", f'<p class="missing">Not here: {text(why)}.</p>')


def render(title: str, summary: str, sections: Sequence[Section]) -> str:
    """The HTML of a page.

    It forbids itself, by its content security policy, every request and every script but its own two, which
    it names by their hashes.

    Args:
        title: plain text.
        summary: HTML of the first paragraph and what stands beside it.
        sections: in order.

    Raises:
        InputError: Plotly is not installed.
    """
    style, script = _part("page.css"), _part("page.js")
    style += "".join(section.style for section in sections)
    packed, digest = _plotly()
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src '{_digest(script)}' '{digest}'; base-uri 'none'; form-action 'none'"
    )
    contents = "".join(f'<li><a href="#{section.key}">{text(section.title)}</a></li>' for section in sections)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{text(title)}</title><style>{style}</style></head><body>",
            '<a class="skip" href="#main">To the content</a>',
            f'<header><h1>{text(title)}</h1><button type="button" id="theme">Dark</button></header>',
            f'<div class="columns"><nav aria-label="Contents"><ol>{contents}</ol></nav><main id="main">',
            '<noscript><p class="missing">The charts need JavaScript.</p></noscript>',
            f'<div class="summary">{summary}</div>',
            *(section.render() for section in sections),
            f"<footer><p>Written by ssl_vision {text(__version__)}. One file; it loads nothing.</p></footer>",
            "</main></div>",
            f'<script type="text/plain" id="plotly">{packed}</script>',
            f"<script>{script}</script></body></html>",
        ]
    )


def _part(name: str) -> str:
    return (files("ssl_vision.report") / name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """Plotly's script, gzipped and in base64, and its digest."""
    try:
        script = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, OSError) as error:
        raise InputError("the page's charts need plotly: pip install plotly") from error
    packed = gzip.compress(script.encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode(), _digest(script)


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
