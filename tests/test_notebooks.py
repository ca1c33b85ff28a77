"""The notebooks' two forms agree, have no outputs, and name what exists. ``make notebooks`` runs them."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from ssl_vision.main import COMMANDS

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))

each = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def test_they_are_numbered_and_listed():
    assert [path.name[:3] for path in SOURCES] == [f"{number:02}_" for number in range(1, len(SOURCES) + 1)]
    assert [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))] == [p.stem for p in SOURCES]
    page = (ROOT / "notebooks" / "README.md").read_text()
    assert re.findall(r"\((\w+\.ipynb)\)", page) == [f"{path.stem}.ipynb" for path in SOURCES]


@each
def test_both_forms_have_the_same_cells_and_no_output(source):
    jupytext = pytest.importorskip("jupytext")
    expected, found = jupytext.read(source), jupytext.read(source.with_suffix(".ipynb"))
    assert [(cell.cell_type, cell.source) for cell in found.cells] == [
        (cell.cell_type, cell.source) for cell in expected.cells
    ]
    for notebook in (expected, found):
        assert notebook.metadata.kernelspec.name == "python3"
    for cell in found.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@each
def test_every_cell_of_code_is_introduced_in_words(source):
    cells = re.findall(r"^# %%(.*)$", source.read_text(), flags=re.MULTILINE)
    assert cells[0] == " [markdown]"
    assert sum(kind == " [markdown]" for kind in cells) >= len(cells) / 2


def named(tree):
    """(module, name) of all that is imported from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "ssl_vision":
            yield from ((node.module, alias.name) for alias in node.names)


def commands(tree):
    """First words of what is given to ``run``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run":
            (command,) = node.args
            first = command.values[0] if isinstance(command, ast.JoinedStr) else command
            assert isinstance(first, ast.Constant)
            yield str(first.value).split()[0]


@each
def test_what_is_imported_run_or_pointed_to_exists(source):
    text = source.read_text()
    tree = ast.parse(text)
    for module, name in named(tree):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    said = re.findall(r"ssl-vision (\w+)", text)
    assert {*commands(tree), *said} <= set(COMMANDS)
    for file in re.findall(r"(?:configs|docs)/[\w/]+\.(?:yaml|md)", text):
        assert (ROOT / file).is_file(), file
