"""Test of the way from the words of a command to a row, as CONTRIBUTING.md lists it."""

import ast
import re
import shutil
import sys
from pathlib import Path

from ssl_vision.main import main

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ssl_vision"


def listed_calls():
    """Return the rows of the table: function, its file, and the function or file that calls it."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## From `ssl-vision evaluate RUN`")[2]
    return re.findall(r"^\| `(.+?)` \| `(.+?)` \| (?:`(.+?)` )?\|$", section.partition("\n## ")[0], re.M)


def name_of(frame):
    return frame.f_code.co_qualname.partition(".<locals>")[0]


def traced_calls(function):
    """Return the calls between functions of the package while a function runs, as pairs (caller, callee)."""
    calls = []

    files = {str(path): str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}

    def trace(frame, event, _):
        if event == "call" and (file := files.get(frame.f_code.co_filename)):
            back = frame.f_back
            while back and back.f_code.co_filename not in files:
                back = back.f_back
            caller = (files[back.f_code.co_filename], name_of(back)) if back else ()
            calls.append((caller, (file, name_of(frame))))

    sys.setprofile(trace)
    try:
        assert function() == 0
    finally:
        sys.setprofile(None)
    return calls


def test_listed_calls_are_made_in_this_order(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "short.yaml").write_text("measurements: [knn: {k: 5}]")
    args = ["evaluate", str(run), f"--protocol={tmp_path}/short.yaml", "--report=false", "--baselines=false"]
    calls = iter(traced_calls(lambda: main(args)))
    listed = listed_calls()
    assert len(listed) <= 20
    for function, file, caller in listed:
        callers = (by for by, callee in calls if callee == (file, function))
        assert any(not caller or caller in by for by in callers), f"{caller} does not call {function} here"


def test_functions_of_evaluation_are_short():
    for file in (PACKAGE / "evaluation").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                statements = sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
                assert statements <= 40, f"{file.name}: {node.name} has {statements} statements"
