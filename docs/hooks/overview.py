"""Tables at the top of the pages in ``api/``: each name of the page and the first line of its docstring."""

import re
from pathlib import Path

import griffe
from mkdocs.structure.pages import Page

PACKAGE = griffe.load("ssl_vision", search_paths=[Path(__file__).parents[2]])


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Insert the table before the first section; its rows are the sections and their ``:::`` lines."""
    if not page.file.src_path.startswith("api/"):
        return markdown
    top, *sections = re.split(r"^## ", markdown, flags=re.MULTILINE)
    rows = ["| name | description |", "|---|---|"]
    for section in sections:
        rows.append(f"| **{section.splitlines()[0]}** | |")
        for name in re.findall(r"^::: (.+)", section, flags=re.MULTILINE):
            rows.append(f"| [`{name.rpartition('.')[2]}`][{name}] | {summary(name)} |")
    return "## ".join([top + "\n".join(rows) + "\n\n", *sections])


def summary(name: str) -> str:
    """Return the first paragraph of an object's docstring on one line."""
    docstring = PACKAGE[name.removeprefix("ssl_vision.")].docstring
    return " ".join(docstring.value.split("\n\n")[0].split()).replace("|", r"\|")
