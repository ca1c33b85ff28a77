"""Mutation test: make 200 small changes of the package, one at a time, and count those that the tests notice.

    python tests/mutants.py --output mutants.json               200 changes, 40 in each of five packages
    python tests/mutants.py --count 20 --tests ../other/tests   20 changes, with the tests of another clone

The sample depends only on the source of the package, so two test suites can be compared on the
same changes. Each package's tests run once with coverage, which records the tests that execute each line.
A change then runs only the tests that execute its line, the fastest first, until one fails. Its process is
forked after the imports of torch and Lightning. If no test executes the line itself (processes that tests
start are not recorded), the tests that execute any line of the file run; if all pass, the change counts as
"not covered". Requires Linux, and coverage from the extra ``dev``.
"""

import argparse
import ast
import collections
import compileall
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest
import torch

ROOT = Path(__file__).parents[1]
FOLDERS = ("objectives", "metrics", "methods", "runs", "evaluation")
LIMIT = 60.0
"""Seconds beyond three times the recorded duration of its tests after which a change counts as killed."""

_EXCHANGED = [
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot),
    (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div),
]  # fmt: skip
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    **dict(_EXCHANGED),
    **{new: old for old, new in _EXCHANGED},
    **dict.fromkeys((ast.FloorDiv, ast.Mod, ast.Pow), ast.Mult),
}
SKIPPED = {
    "print",
    "warn",
    "warning",
    "info",
    "debug",
    "rank_zero_info",
    "rank_zero_warn",
    "cast",
    "describe",
}
"""Functions whose calls are left alone: messages, descriptions and types."""
IMPORTS = ("pytorch_lightning", "torchmetrics", "torchvision", "sklearn.linear_model", "timm", "lightly.loss")
"""Modules that are imported once for all tests."""


class Mutant(NamedTuple):
    """The replacement of one expression or statement of a file."""

    file: str
    line: int
    column: int
    end: tuple[int, int]
    old: str
    new: str

    def source(self, text: str) -> str:
        lines = text.encode().splitlines(keepends=True)
        first, last = self.line - 1, self.end[0] - 1
        head, tail = lines[first][: self.column], lines[last][self.end[1] :]
        return b"".join([*lines[:first], head, self.new.encode(), tail, *lines[last + 1 :]]).decode()


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the changes of a node: what is replaced, and its new source."""

    def edited(**fields: Any) -> str:
        return ast.unparse(type(node)(**{**dict(ast.iter_fields(node)), **fields}))  # type: ignore[arg-type]

    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OPERATORS:
            yield node, f"({edited(ops=[OPERATORS[type(operator)]()])})"
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in OPERATORS:
            yield node, f"({edited(op=OPERATORS[type(operator)]())})"
        case ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            yield node, edited(op=OPERATORS[type(operator)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool()):
            yield node, str(not node.value)
        case ast.Constant(value=int() | float()):
            yield node, str(node.value + 1)
        case ast.Return(value=ast.Call() | ast.BinOp() | ast.Name() | ast.Subscript() as value):
            yield node, "return None"
            yield node, f"return -({ast.unparse(value)})"
        case ast.Call(keywords=[_, *_]):
            for index in range(len(node.keywords)):
                yield node, edited(keywords=node.keywords[:index] + node.keywords[index + 1 :])
        case ast.Expr(value=ast.Call()):
            yield node, "pass"
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module without messages, annotations, decorators and calls of ``SKIPPED``."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in SKIPPED:
        return
    if isinstance(node, ast.Expr) and not any(True for _ in parts(node.value)):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "type_params"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from parts(child)


def sample(folder: str, count: int) -> list[Mutant]:
    """Draw changes of a package; they depend on its source only."""
    found: dict[Mutant, None] = {}
    for path in sorted((ROOT / "ssl_vision" / folder).rglob("*.py")):
        text = path.read_text()
        for node in parts(ast.parse(text)):
            for part, new in changes(node):
                old = ast.get_source_segment(text, part) or ""
                end = (part.end_lineno, part.end_col_offset)  # type: ignore[attr-defined]
                start = (part.lineno, part.col_offset)  # type: ignore[attr-defined]
                found[Mutant(str(path.relative_to(ROOT)), *start, end, old, new)] = None
    return random.Random(folder).sample(list(found), min(count, len(found)))


class Recorder:
    """A plugin of pytest that records the seconds and lines of each test, and lines of shared fixtures."""

    maxfail = 0

    def __init__(self, folder: str) -> None:
        self.coverage = coverage.Coverage(data_file=None, source=[f"ssl_vision/{folder}"], config_file=False)
        self.coverage.start()
        self.context = ""
        self.seconds: collections.Counter[str] = collections.Counter()
        self.failed: set[str] = set()
        self.contexts: dict[str, set[str]] = {}

    def enter(self, context: str) -> None:
        self.context = context
        self.coverage.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.contexts[item.nodeid] = {item.nodeid, *(f"fixture {name}" for name in item.fixturenames)}
        self.enter(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        outer = self.context
        if fixturedef.scope != "function":
            self.enter(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.enter(outer)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def result(self) -> dict[str, Any]:
        """Return the seconds of passed tests and, for each file, the tests that execute each line."""
        self.coverage.stop()
        data = self.coverage.get_data()
        users = collections.defaultdict(set)
        for test in self.contexts.keys() - self.failed:
            for context in self.contexts[test]:
                users[context].add(test)
        lines = {
            str(Path(file).relative_to(Path.cwd())): {
                line: sorted({test for context in contexts for test in users[context]})
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        return {
            "seconds": {test: self.seconds[test] for test in self.contexts.keys() - self.failed},
            "lines": lines,
        }


class Fastest:
    """A plugin of pytest that runs the given tests in their order; its result is the first that fails."""

    maxfail = 1

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: index for index, test in enumerate(tests)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = (item for item in items if item.nodeid in self.order)
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    pytest_collectreport = pytest_runtest_logreport

    def result(self) -> str:
        return self.failed


def run_tests(paths: Iterable[str], plugin: Callable[[], Any], limit: float) -> Any:
    """Run tests in a forked process, and return the plugin's result."""
    file = Path(f"{os.getpid()}.json")
    file.write_text('"import or collection"')
    child = os.fork()
    if child == 0:
        os.setsid()  # a group with the processes that tests start
        output = os.open(file.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        tree = os.environ["PYTHONPATH"] = str(Path.cwd())
        sys.path[0] = tree
        observer = plugin()
        flags = ["-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
        code = pytest.main([*paths, *flags, f"--maxfail={observer.maxfail}"], [observer])
        if code in (0, 1):  # otherwise, the import or the collection failed
            file.write_text(json.dumps(observer.result()))
        os._exit(0)
    end = time.monotonic() + limit
    late = False
    while os.waitpid(child, os.WNOHANG) == (0, 0) and not late:
        time.sleep(0.02)
        late = time.monotonic() > end
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return "time limit" if late else json.loads(file.read_text())


def record(folder: str) -> dict[str, Any]:
    """Run a folder's tests, and return their seconds and the tests of each line."""
    return run_tests([f"tests/{folder}"], lambda: Recorder(folder), 3600)


def enter_copy(source: Path, tests: Path, directory: Path) -> None:
    """Copy a repository with the given tests into a new directory, and make that the working directory."""
    tree = Path(tempfile.mkdtemp(dir=directory))
    for name in ("ssl_vision", "configs", "benchmarks", "docs"):
        shutil.copytree(source / name, tree / name)
    shutil.copytree(tests, tree / "tests")
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    os.chdir(tree)


def row(mutant: Mutant, recorded: dict[str, Any]) -> dict[str, Any]:
    """Run a mutant's tests, and return its change, whether it was killed and by which test."""
    start = time.monotonic()
    seconds, lines = recorded["seconds"], recorded["lines"].get(mutant.file, {})
    executed = [str(line) for line in range(mutant.line, mutant.end[0] + 1) if str(line) in lines]
    tests = {test for line in executed for test in lines[line]}
    tests = tests or {
        test for line in lines for test in lines[line]
    }  # of a line executed at import, for example
    fastest = sorted(tests, key=lambda test: (seconds[test], test))
    path = Path(mutant.file)
    text = path.read_text()
    path.write_text(mutant.source(text))
    sys.dont_write_bytecode = True
    limit = LIMIT + 3 * sum(seconds[test] for test in fastest)
    paths = dict.fromkeys(test.partition("::")[0] for test in fastest)
    killer = fastest and run_tests(paths, lambda: Fastest(fastest), limit)
    path.write_text(text)
    return {
        "state": "killed" if killer else "survived" if executed else "not covered",
        "change": f"{mutant.file}:{mutant.line}: {mutant.old} → {mutant.new}",
        "tests": len(fastest),
        "killer": killer or None,
        "seconds": round(time.monotonic() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="number of changes, the same in each package")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="directory of the tests")
    parser.add_argument("--output", type=Path, help="JSON file for the result of each change")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    args = parser.parse_args()
    for module in IMPORTS:
        importlib.import_module(module)
    torch.set_num_threads(1)
    mutants = {folder: sample(folder, args.count // len(FOLDERS)) for folder in FOLDERS}
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        enter_copy(ROOT, args.tests.resolve(), directory)
        compileall.compile_dir("ssl_vision", quiet=2)
        with ProcessPoolExecutor(args.jobs, context) as pool:
            recorded = dict(zip(FOLDERS, pool.map(record, FOLDERS), strict=True))
        arguments = (Path.cwd(), Path("tests").resolve(), directory)
        with ProcessPoolExecutor(args.jobs, context, enter_copy, arguments) as pool:
            jobs = {name: [pool.submit(row, m, recorded[name]) for m in mutants[name]] for name in FOLDERS}
            rows = {name: [job.result() for job in jobs[name]] for name in FOLDERS}
        os.chdir(ROOT)
    counts = {folder: collections.Counter(row["state"] for row in rows[folder]) for folder in FOLDERS}
    counts["all"] = collections.Counter(row["state"] for folder in FOLDERS for row in rows[folder])
    for folder in FOLDERS:
        for result in rows[folder]:
            if result["state"] != "killed":
                print(f"{result['state']}: {result['change']}")
    print(f"{'':12}{'killed':>8}{'survived':>10}{'not covered':>13}{'share killed':>14}")
    for folder, count in counts.items():
        share = count["killed"] / max(1, count.total())
        print(f"{folder:12}{count['killed']:8}{count['survived']:10}{count['not covered']:13}{share:14.1%}")
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
