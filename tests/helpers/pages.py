"""Parser of the HTML reports."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ssl_vision.experiments.report import page


class Page(HTMLParser):
    """The content of a page: elements, JSON by section and class, text by section, CSS of the views."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, dict[str, list[Any]]] = {}
        self.text: dict[str, str] = {}
        self._section, self._block = "", ""
        self.views = "".join(re.findall(r"\.view\{[^}]*\}", html))
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "section":
            self._section = attributes["id"] or ""
        if tag == "script" and attributes.get("type") == "application/json":
            self._block = attributes["class"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self._section = ""
        self._block = "" if tag == "script" else self._block

    def handle_data(self, data: str) -> None:
        if self._block:
            self.blocks.setdefault(self._section, {}).setdefault(self._block, []).append(json.loads(data))
        else:
            self.text[self._section] = self.text.get(self._section, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements with a tag name."""
        return [attrs for name, attrs in self.elements if name == tag]


def css_variables() -> list[dict[str, str]]:
    """Return the colours of the light and of the dark page by the names of their variables."""
    css = (Path(page.__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", css)
    return [{name: colours[theme] for name, *colours in found} for theme in (0, 1)]
