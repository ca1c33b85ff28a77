"""Tests that commands do not import heavy libraries before they need them."""

import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest

from ssl_vision.cli.import_paths import load

CODE = """
import sys
from ssl_vision.main import main
for command in {commands}:
    try:
        main(command)
    except SystemExit:
        pass
print([name for name in {names} if name in sys.modules], file=sys.stderr)
"""


def imported(commands, names):
    """Modules among ``names`` that a process has imported after some commands."""
    code = CODE.format(commands=commands, names=names)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ast.literal_eval(result.stderr.splitlines()[-1])


def test_commands_that_only_read_files_do_not_import_torch():
    commands = [
        *[[name, "--help"] for name in ("runs", "choose", "sweep", "compare", "doctor", "reproduce", "list")],
        ["runs", "no/such/folder"],
        ["fit", "--help"],
    ]
    assert imported(commands, ["torch", "pytorch_lightning", "timm", "wandb"]) == []


def test_failing_commands_do_not_import_unused_heavy_libraries():
    no_run = str(Path(__file__).parent)
    commands = [["fit", "--no_such_option=1"], ["export", no_run], ["report", no_run]]
    uses_faiss = "ssl_vision.metrics.neighbours"
    names = ["timm", "lightly.models", "sklearn", "faiss", "plotly", uses_faiss]
    assert imported(commands, names) == [uses_faiss]


@pytest.mark.parametrize("imported_before", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_first_import_of_torch_is_done_without_garbage_collection(
    imported_before, fails, tmp_path, monkeypatch
):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.syspath_prepend(tmp_path)
    if not imported_before:
        monkeypatch.delitem(sys.modules, "torch")
    name = f"module_{imported_before}_{fails}"
    (tmp_path / f"{name}.py").write_text(f"import gc\nenabled = gc.isenabled()\n1 / {int(not fails)}")
    if fails:
        with pytest.raises(ZeroDivisionError):
            load(name)
    else:
        assert load(name).enabled == imported_before
    assert frozen == ([] if imported_before else [False])
    assert gc.isenabled()
