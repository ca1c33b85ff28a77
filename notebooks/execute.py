"""Make the notebooks from their sources, run them, and store their outputs.

    python notebooks/execute.py                         all
    python notebooks/execute.py 01_first_run            some

Standard error and execution times are not stored. A digest of the code that produced the outputs is stored,
by which a test recognises outdated ones. Changes of text alone need no run:

    jupytext --to ipynb --update notebooks/01_first_run.py
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def digest(notebook: Any) -> str:
    """Return a hash of the code of a notebook."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:16]


def execute(source: Path) -> None:
    """Run a notebook, and write it with its outputs."""
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=None, record_timing=False, coalesce_streams=True).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    kernel = notebook.metadata.kernelspec
    notebook.metadata = {
        "kernelspec": kernel, "jupytext": {"formats": "ipynb,py:percent"}, "code_digest": digest(notebook),
    }  # fmt: skip
    nbformat.validate(notebook)
    nbformat.write(notebook, source.with_suffix(".ipynb"))


if __name__ == "__main__":
    os.environ["SSL_VISION_QUIET"] = "1"
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("[0-9]*.py")):
        execute(FOLDER / f"{name}.py")
