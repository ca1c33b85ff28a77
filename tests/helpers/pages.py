"""Parser of the HTML reports."""

import json
import re
from html.parser import HTMLParser
from typing import Any


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
