"""Tests of the notebooks: script and notebook agree, outputs are current, and used names exist."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest
from scripts import import_script

from ssl_vision.main import COMMANDS

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
LARGEST = 300_000
"""Bytes of a notebook with its outputs."""

for_each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def test_notebooks_are_numbered_and_listed():
    assert [path.name[:3] for path in SOURCES] == [f"{number:02}_" for number in range(1, len(SOURCES) + 1)]
    assert [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))] == [p.stem for p in SOURCES]
    page = (ROOT / "notebooks" / "README.md").read_text()
    assert re.findall(r"\((\w+\.ipynb)\)", page) == [f"{path.stem}.ipynb" for path in SOURCES]


@for_each_notebook
def test_script_and_notebook_have_same_cells(source):
    jupytext = pytest.importorskip("jupytext")
    expected, stored = jupytext.read(source), jupytext.read(source.with_suffix(".ipynb"))
    assert [(cell.cell_type, cell.source) for cell in stored.cells] == [
        (cell.cell_type, cell.source) for cell in expected.cells
    ]
    for notebook in (expected, stored):
        assert notebook.metadata.kernelspec.name == "python3"


def digest(notebook):
    """Digest of a notebook's code, as stored by ``notebooks/execute.py``."""
    for library in ("jupytext", "nbclient"):
        pytest.importorskip(library)
    return import_script(ROOT / "notebooks" / "execute.py").digest(notebook)


@for_each_notebook
def test_outputs_match_current_code(source):
    jupytext = pytest.importorskip("jupytext")
    stored = jupytext.read(source.with_suffix(".ipynb"))
    assert digest(stored) == stored.metadata.code_digest, f"run python notebooks/execute.py {source.stem}"
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        shows = "plt.show()" in cell.source and "def " not in cell.source
        assert shows <= any("image/png" in output.get("data", {}) for output in cell.outputs)
    assert any(cell.outputs for cell in code)


@for_each_notebook
def test_outputs_are_small_without_errors_paths_or_times(source):
    text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    cells = json.loads(text)["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not any(output.get("name") == "stderr" for output in outputs)
    for output in outputs:
        output.get("data", {}).pop("image/png", None)
    words = json.dumps(outputs)
    assert not re.search(r"/(tmp|home|root|work|Users|usr)/|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", words)
    assert not any("execution" in cell["metadata"] for cell in cells)


@for_each_notebook
def test_first_cell_and_at_least_half_of_cells_are_markdown(source):
    cells = re.findall(r"^# %%(.*)$", source.read_text(), flags=re.MULTILINE)
    assert cells[0] == " [markdown]"
    assert sum(kind == " [markdown]" for kind in cells) >= len(cells) / 2


def package_imports(tree):
    """Yield (module, name) of every import from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "ssl_vision":
            yield from ((node.module, alias.name) for alias in node.names)


def commands(tree):
    """Yield the commands passed to ``main``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="main"), args=[ast.List(elts=[ast.Constant(value=command), *_])]):
                yield command


@for_each_notebook
def test_imports_commands_and_files_of_notebook_exist(source):
    text = source.read_text()
    tree = ast.parse(text)
    for module, name in package_imports(tree):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    mentioned = re.findall(r"ssl-vision (\w+)", text)
    assert {*commands(tree), *mentioned} <= set(COMMANDS)
    for file in re.findall(r"(?:configs|docs)/[\w/]+\.(?:yaml|md)", text):
        assert (ROOT / file).is_file(), file
