"""Campaign of invalid and hostile inputs: no command may crash, hang or change files elsewhere.

    python tests/reliability/hostile.py                         all cases, some minutes on one core
    python tests/reliability/hostile.py --category sizes        one category

A case consists of a command line, a change to a directory of valid files, and limits. Cases are products: every
numeric option of every command times invalid values, every file that a command reads times kinds of damage. To add a
category, write a generator of cases and decorate it with `category`.

Each case runs in a copy of the directory, in a child process that is forked after the imports and drops the
privileges of root. It passes if the command ends in time with exit code 0, or with exit code 2 and one line on stderr,
stays within its memory limit, and changes nothing outside ``runs/``, ``out/`` and ``home/``. A command with exit code
2 may not leave a new run directory either. The script runs on Linux only, prints the counts by category, and exits
with 1 if a case fails.
"""

import argparse
import contextlib
import ctypes
import errno
import fcntl
import importlib
import inspect
import io
import itertools
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import pytorch_lightning as pl
import torch
import yaml
from PIL import Image
from settings import TINY

from ssl_vision.callbacks import RepresentationMetrics
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import Digits, Views
from ssl_vision.main import COMMANDS, main
from ssl_vision.methods import OptimizerRule, SimCLR
from ssl_vision.objectives import MACL

SECONDS = 60
ADDRESS_SPACE = 4 * 2**30
"""Maximum address space of a case in bytes, in addition to that of its parent."""

Make = Callable[[Path], object]


class Case(NamedTuple):
    """A command line, the change to the copy of the template in which it runs, and the permitted outcomes."""

    name: str
    args: list[str]
    """Arguments, in which {here} stands for the directory of the case."""
    make: Make = lambda here: None
    codes: frozenset[int] = frozenset({0, 2})
    around: Callable[[], Any] = contextlib.nullcontext
    """A context in the child process, in which the command runs."""
    seconds: float = SECONDS
    """Limit of processor time; the limit of wall time is SECONDS for every case."""
    megabytes: float = 2000
    """Limit of resident memory, in addition to that of the parent."""


class Outcome(NamedTuple):
    """The result of a case."""

    code: int | None
    error: str
    output: str
    seconds: float
    megabytes: float
    problems: list[str]


CATEGORIES: dict[str, Callable[[Path], Iterator[Case]]] = {}


def category(function: Callable[[Path], Iterator[Case]]) -> Callable[[Path], Iterator[Case]]:
    """Register a generator of cases, which takes the template as its argument."""
    CATEGORIES[function.__name__] = function
    return function


# ---------------------------------------------------------------------------------------------- template

FIT = ["fit", "--runs_dir={here}/runs", "--name=run", *TINY, "--trainer.max_epochs=1"]
FIT += ["--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--trainer.max_steps=2"]
SAME = ["--model.objective=MACL", "--model.objective.alpha=3", *TINY]

SWEEP = {
    "program": "ssl-vision",
    "method": "grid",
    "metric": {"name": "val/knn_top1", "goal": "maximize"},
    "parameters": {"seed_everything": {"values": [0, 1]}},
}
PROTOCOL = {"layers": ["backbone"], "measurements": [{"knn": {"k": 5, "temperature": 0.1}}]}
PAPER = {
    "title": "a title", "source": "a source",
    "metrics": {"knn": {"metric": "knn_top1", "protocol": "macl"}},
    "options": {"config": "base.yaml", "trainer.max_epochs": "1"},
    "rows": {"InfoNCE": {"model.objective": "InfoNCE"}},
    "tables": {"1": {"title": "t", "columns": {"g": {"axis": "data.batch_size", "at": ["64"]}},
                     "values": {"InfoNCE": {"knn": ["70.0"]}}}},
}  # fmt: skip
BASE = {"data": {"class_path": "Digits"}, "model": {"class_path": "SimCLR"}}


def template(folder: Path) -> None:
    """Write two evaluated runs, an exported backbone, images, and a file of each kind that users write."""
    runs = ["--report=false", "--trainer.enable_progress_bar=false", f"--runs_dir={folder}/runs"]
    _run_command(["fit", *SAME, *runs, "--name=a"])
    _run_command(["evaluate", f"{folder}/runs/a", "--protocol=check", "--baselines=false", "--report=false"])
    shutil.copytree(folder / "runs" / "a", folder / "runs" / "b")
    config = folder / "runs" / "b" / "config.yaml"
    config.write_text(config.read_text().replace("alpha: 3", "alpha: 5"))
    (folder / "runs" / "a" / "wandb").mkdir()
    (folder / "runs" / "a" / "wandb" / "mirror.json").write_text(
        '{"id": "0123abcd", "project": "ssl_vision"}'
    )
    _run_command(["export", f"{folder}/runs/a", f"--output={folder}/b.safetensors"])
    state = torch.load(folder / "runs/a/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    torch.save({k.removeprefix("backbone."): v for k, v in state.items()}, folder / "w.pth")
    for label, number in itertools.product("ab", range(3)):
        (folder / "images" / label).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (40 * number, 0, 0)).save(folder / "images" / label / f"{number}.png")
    for name, content in {"sweep": SWEEP, "protocol": PROTOCOL, "paper": PAPER, "base": BASE}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    for name in ("out", "home", "elsewhere"):
        (folder / name).mkdir()
    (folder / "elsewhere" / "file").write_text("not to be changed")


def _run_command(args: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as error:
        if main(args):
            raise RuntimeError(error.getvalue())


# ---------------------------------------------------------------------------------------------- execution


def run_case(case: Case, template: Path, here: Path) -> Outcome:
    """Run a case in a child process and list its problems."""
    shutil.copytree(template, here, symlinks=True)
    problems: list[str] = []
    case.make(here)
    before, runs_before = snapshot(here), _run_names(here)
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(case, here)
    parent_megabytes = _resident()
    status, usage = _wait(pid)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    megabytes = max(0, usage.ru_maxrss / 1024 - parent_megabytes)
    error = (here.parent / "stderr").read_text(errors="replace")
    output = (here.parent / "stdout").read_text(errors="replace")
    if code is None:
        problems.append(f"hangs: {time.monotonic() - begin:.0f} s")
    elif code not in case.codes:
        problems.append(f"exit code {code}")
    problems += [
        word
        for word in ("Traceback", "(--debug shows where)", "Exception ignored", "Logging error")
        if word in error
    ]
    lines = lines_of(error)
    if code == 2 and len(lines) > 1:
        problems.append(f"{len(lines)} lines")
    if code == 2 and lines and not lines[-1].startswith("ssl-vision "):
        problems.append("another last line")
    if code == 2 and any(len(line) > 1200 for line in lines):
        problems.append("a line that is too long")
    if seconds > case.seconds:
        problems.append(f"{seconds:.1f} s")
    if megabytes > case.megabytes:
        problems.append(f"{megabytes:.0f} MB")
    after = snapshot(here)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    writable = ("runs", "out", "home")
    if outside := sorted(name for name in changed if name.split(os.sep)[0] not in writable):
        problems.append(f"changed {outside[:3]}")
    if code == 2 and (new_runs := _run_names(here) - runs_before):
        problems.append(f"left {sorted(new_runs)}")
    return Outcome(code, error, output, seconds, megabytes, problems)


def lines_of(error: str) -> list[str]:
    """Return the lines of stderr without blank lines, Python's warnings and progress notes."""
    lines = [line for line in error.splitlines() if line.strip()]
    return [line for line in lines if not NOTES.search(line)]


NOTES = re.compile(
    r"^\S+:\d+: \w*Warning: |^warning: |^  \S*warn\w*\(|: skipped: |is left out: |^`Trainer\(|"
    r"^backbone (and|from) |^continuing from |^no checkpoint in |^Loaded model weights |not readable \(\w+\), made again$|"
    r"^features not kept: "
)


def _child(case: Case, here: Path) -> None:
    """Run the command in place of this process; never returns."""
    code = 70
    try:
        os.setsid()
        for number, name in ((1, "stdout"), (2, "stderr")):
            descriptor = os.open(here.parent / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, number)
            os.close(descriptor)
        _open_streams("utf-8")
        os.chdir(here / "out")
        os.environ |= {"HOME": str(here / "home"), "USER": "nobody", "MPLCONFIGDIR": str(here / "home")}
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE, size + ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _give_up_privileges()
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)  # as the interpreter does when it starts
        with case.around():
            code = main([arg.replace("{here}", str(here)) for arg in case.args])
            for stream in (sys.stdout, sys.stderr):  # as the interpreter does when it exits
                if stream is not None:
                    stream.flush()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc(file=open(here.parent / "stderr", "a"))
        code = 71
    finally:
        os._exit(code)


def _open_streams(encoding: str) -> None:
    """Open stdout and stderr as the interpreter does when it starts."""
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False, buffering=1)


def _wait(pid: int) -> tuple[int | None, Any]:
    """Return status and usage of a child; the status is None if it had to be killed."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            _kill(pid)
            return status, usage
        time.sleep(0.002)
    _kill(pid)
    return None, os.wait4(pid, 0)[2]


def _kill(pid: int) -> None:
    """Kill all processes in the group of a case."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _give_up_privileges() -> None:
    """Drop CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER, so that permissions apply to root, too."""
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    for number in range(3):
        sets[number] &= ~0b1110
    if libc.capset(header, sets):
        raise OSError("capset")


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, size and modification time of every file below a directory, without following links."""
    states = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            size = status.st_size if name in files else 0
            changed = status.st_mtime_ns if name in files else 0
            states[os.path.relpath(path, folder)] = (status.st_mode, size, changed)
    return states


def _run_names(here: Path) -> set[str]:
    return set(os.listdir(here / "runs")) if (here / "runs").is_dir() else set()


# ---------------------------------------------------------------------------------------------- options

LONG = "x" * 5000
SAME_AS_OTHERS = ("inf", "", LONG)
"""Those of the numbers below that the parser rejects in the same way for every option."""
NUMBERS = ["0", "-1", ".nan", "inf", ".inf", "1e30", "", LONG]


def numeric(owner: Callable[..., Any], prefix: str, *, but: Iterable[str] = ()) -> list[str]:
    """Return options for the parameters of a class that are annotated as numbers or durations."""
    options = []
    for base in getattr(owner, "__mro__", [owner]):
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            if re.search(r"\b(int|float|timedelta)\b", str(parameter.annotation)) and name not in but:
                options.append(f"--{prefix}{name}")
    return list(dict.fromkeys(options))


@category
def fit_options(template: Path) -> Iterator[Case]:
    """Every numeric option of fit, with invalid values."""
    options = numeric(pl.Trainer, "trainer.", but=("devices", "num_nodes"))
    options += numeric(SimCLR, "model.") + numeric(Digits, "data.") + numeric(Views, "data.views.")
    options += numeric(OptimizerRule, "model.optimizer.") + numeric(MACL, "model.objective.")
    options += numeric(RepresentationMetrics, "metrics.")
    options += ["--patience", "--save_every_n_steps", "--seed_everything", "--trainer.max_time"]
    for option, value in itertools.product(dict.fromkeys(options), NUMBERS):
        if value in SAME_AS_OTHERS and not option.startswith("--trainer"):
            continue
        more = ["--model.objective=MACL"] if option.startswith("--model.objective") else []
        yield Case(f"{option}={value[:9]}", [*FIT, *more, f"{option}={value}"])
    for option, value in (
        ("trainer.val_check_interval", "99"), ("trainer.val_check_interval", "1.5"),
        ("trainer.max_time", "x"), ("trainer.max_time", "00:00:00:-1"), ("trainer.devices", "0"),
        ("trainer.devices", "-1"), ("trainer.devices", "99999"), ("trainer.devices", "x"),
        ("trainer.num_nodes", "0"), ("trainer.num_nodes", "-1"), ("trainer.precision", "7"),
        ("trainer.strategy", "x"), ("trainer.accelerator", "tpu"), ("trainer.accelerator", "cuda"),
        ("trainer.profiler", "x"), ("trainer.plugins", "x"), ("trainer.callbacks", "x"),
        ("trainer.logger", "x"), ("trainer.detect_anomaly", "x"), ("trainer.default_root_dir", "/dev/null"),
        ("trainer.gradient_clip_algorithm", "x"), ("wandb", "x"),
        ("initial_checkpoint", "/dev/null"), ("initial_checkpoint", ""), ("initial_checkpoint", LONG),
        ("ckpt_path", "/dev/null"), ("ckpt_path", ""), ("ckpt_path", LONG), ("config", "/dev/null"),
        ("config", ""), ("config", LONG), ("data.views.mean", "[1]"), ("data.views.scale", "[2,1]"),
        ("data", ""), ("model", ""), ("model.objective", ""), ("data.root", LONG), ("model.seed", "-1"),
    ):  # fmt: skip
        yield Case(f"--{option}={value[:9]}", [*FIT, f"--{option}={value}"])


def parsed_options(command: str, args: list[str]) -> list[str]:
    """Return the names of the options of a command other than fit."""
    option_names: list[str] = []

    class OptionsCaptured(Exception):
        pass

    def capture(parser: ArgumentParser, *_: Any, **__: Any) -> None:
        for action in parser._actions:
            if action.option_strings and action.nargs != 0:
                option_names.append(next(name for name in action.option_strings if name.startswith("--")))
        raise OptionsCaptured

    with mock.patch.object(ArgumentParser, "parse_args", capture), contextlib.suppress(OptionsCaptured):
        importlib.import_module(COMMANDS[command].module).run(args)
    return [option for option in option_names if option not in ("--print_config", "--config")]


GOOD = {
    "evaluate": ["evaluate", "{here}/runs/a", "--report=false", "--baselines=false"],
    "runs": ["runs", "{here}/runs"],
    "sweep": ["sweep", "{here}/sweep.yaml", "--dry_run", "--runs_dir={here}/runs"],
    "compare": ["compare", "{here}/runs", "--by=model.objective.alpha", "--protocol=check"],
    "reproduce": ["reproduce", "{here}/paper.yaml", "--dry_run", "--runs_dir={here}/runs"],
    "report": ["report", "{here}/runs/a", "--embed=false", "--output={here}/out/r.html"],
    "maps": [
        "maps",
        "--grid=2",
        "--batches=2",
        "--negatives=3",
        "--output={here}/out/m.svg",
        "--objectives",
        "InfoNCE",
    ],
    "export": ["export", "{here}/runs/a", "--output={here}/out/b.safetensors"],
    "embed": ["embed", "{here}/images", "--weights={here}/b.safetensors", "--output={here}/out/f.npz"],
    "doctor": ["doctor"],
}
"""A good command line of each command but fit."""


@category
def options(template: Path) -> Iterator[Case]:
    """Every option that takes a value, of every command except fit."""
    for command, args in GOOD.items():
        template_args = [arg.replace("{here}", str(template)) for arg in args[1:]]
        for option, value in itertools.product(parsed_options(command, template_args), NUMBERS):
            codes = frozenset({0, 1, 2}) if command == "doctor" else frozenset({0, 2})
            yield Case(f"{command} {option}={value[:9]}", [*args, f"{option}={value}"], codes=codes)
    for command, args in GOOD.items():
        first = args[1:2] if args[1:] and not args[1].startswith("-") else []
        for value in (
            "",
            "/dev/null",
            LONG,
            "{here}/nothing",
            "{here}/elsewhere",
            "\n",
            "-",
            "--",
            "/dev/full",
        ):
            if first:
                yield Case(f"{command} {value[:9]!r}", [command, value, *args[2:]])
        if command != "maps":  # maps without options draws for a minute
            yield Case(f"{command} alone", [command], codes=frozenset({0, 1, 2}))


@category
def places(template: Path) -> Iterator[Case]:
    """Paths that cannot be a run directory."""
    for value in ("x" * 300, "x" * 5000, "..", ".", "a/b", "/", "~", "ü" * 150):
        yield Case(f"fit --name={value[:9]}", [*FIT, f"--name={value}"])
        yield Case(f"sweep --name={value[:9]}", [*GOOD["sweep"], f"--name={value}"])

    def dangling(here: Path) -> None:
        (here / "runs" / "run").symlink_to(here / "absent")

    def loop(here: Path) -> None:
        (here / "runs" / "run").symlink_to("run")

    def file(here: Path) -> None:
        (here / "runs" / "run").write_text("a file")

    def pipe(here: Path) -> None:
        os.mkfifo(here / "runs" / "run")

    def closed(here: Path) -> None:
        (here / "runs" / "run").mkdir(mode=0)

    def read_only(here: Path) -> None:
        (here / "runs").chmod(0o555)

    for make in (dangling, loop, file, pipe, closed, read_only):
        for more in ([], ["--ckpt_path=last"], ["--overwrite=true"]):
            yield Case(f"fit {make.__name__} {more}", [*FIT, *more], make)
    for value in (
        "/dev/null",
        "/proc",
        "/dev/full",
        "{here}/elsewhere/file",
        "{here}/nothing/at/all",
        LONG,
        "",
    ):
        for command in ("fit", "sweep", "reproduce"):
            args = FIT if command == "fit" else GOOD[command]
            # a missing directory is created, so it must be below runs/
            place = value.replace("{here}/nothing", "{here}/runs/x")
            yield Case(f"{command} --runs_dir={value[:20]}", [*args, f"--runs_dir={place}"])


# ---------------------------------------------------------------------------------------------- damage


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes() if path.is_file() else b""
        _remove(path)
        path.write_bytes(change(content))

    return damage


def _flip_bits(content: bytes, count: int = 8) -> bytes:
    rng, flipped = random.Random(len(content)), bytearray(content)
    for _ in range(count if content else 0):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _replaced_by(place: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        _remove(path)
        place(path)

    return damage


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "absent": _remove,
    "empty": _rewritten(lambda content: b""),
    "half": _rewritten(lambda content: content[: len(content) // 2]),
    "bits": _rewritten(_flip_bits),
    "binary": _rewritten(lambda content: random.Random(0).randbytes(5000)),
    "nulls": _rewritten(lambda content: bytes(len(content))),
    "not UTF-8": _rewritten(lambda content: content[:60] + b"\xff\xfe" + content[60:]),
    "a directory": _replaced_by(Path.mkdir),
    "a dangling link": _replaced_by(lambda path: path.symlink_to("nowhere")),
    "a link to itself": _replaced_by(lambda path: path.symlink_to(path.name)),
    "unreadable": lambda path: (path.parent.mkdir(exist_ok=True), path.touch(), path.chmod(0)),
}
TEXTS: dict[str, Callable[[Path], Any]] = {
    "deep": _rewritten(lambda content: b"[" * 100_000),
    "deep pairs": _rewritten(lambda content: b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "deep, indented": _rewritten(lambda content: "".join(f"{' ' * n}a:\n" for n in range(1500)).encode()),
    "a list": _rewritten(lambda content: b"[1, 2]"),
    "a word": _rewritten(lambda content: b"word"),
    "a number": _rewritten(lambda content: b"3"),
    "null": _rewritten(lambda content: b"null"),
    "a table": _rewritten(lambda content: b'{"a": {"b": 1}}'),
    "rows of words": _rewritten(lambda content: b'[{"a": "b"}, {"value": "x"}]'),
    "other keys": _rewritten(lambda content: b"model: 3\ndata: [1]\ntrainer: x\nseed_everything: {a: 1}\n"),
    "code": _rewritten(lambda content: b"a: !!python/object/apply:os.system [x]\n"),
    "numbers for keys": _rewritten(lambda content: b"1: 2\nnull: 3\n? [a]\n: b\n"),
    "a date": _rewritten(lambda content: b"seed_everything: 2020-13-45\nmodel: 2020-01-01\n"),
    "a large number": _rewritten(lambda content: b"a: " + b"9" * 5000 + b"\n"),
}
TABLES: dict[str, Callable[[Path], Any]] = {
    "a header": _rewritten(lambda content: content.split(b"\n")[0] + b"\n"),
    "no line": _rewritten(lambda content: content.replace(b"\n", b"")),
    "words": _rewritten(lambda content: b"step,epoch,train/loss\nx,y,z\n"),
    "nan": _rewritten(
        lambda content: b"step,epoch,train/loss,val/knn_top1\nnan,nan,nan,nan\n1,nan,inf,nan\n"
    ),
    "inf": _rewritten(
        lambda content: b"step,epoch,train/loss,val/knn_top1\ninf,inf,-inf,inf\n1,inf,inf,inf\n"
    ),
    "large": _rewritten(lambda content: b"step,epoch,train/loss\n1,1e300,1e300\n" + b"9" * 400 + b",1,1\n"),
    "negative": _rewritten(lambda content: b"step,epoch,train/loss,val/knn_top1\n-3,-7,1,1\n"),
    "a long line": _rewritten(lambda content: b"step,epoch," + b"x" * 500_000 + b"\n1,1,1\n"),
    "quotes": _rewritten(lambda content: b'step,"epoch\n",a\n1,1,1\n'),
    "twice a name": _rewritten(lambda content: b"step,step,epoch,epoch\n1,2,3,4\n"),
    "no step": _rewritten(lambda content: b"a,b\n1,2\n"),
}
OVER_RUNS = {
    "runs": GOOD["runs"],
    "compare": [*GOOD["compare"], "--metric=val/knn_top1"],
    "compare rows": GOOD["compare"],
    "report": GOOD["report"],
    "report of both": ["report", "{here}/runs", "--output={here}/out/r.html"],
}
CONTINUED = ["fit", *SAME, "--runs_dir={here}/runs", "--name=a", "--ckpt_path=last"]
AGAIN = {
    "fit": CONTINUED,
    "fit, further": [*CONTINUED, "--trainer.max_epochs=3"],
    "fit anew": ["fit", *SAME, "--runs_dir={here}/runs", "--name=a"],
    "evaluate": [*GOOD["evaluate"], "--protocol=check"],
    "export": GOOD["export"],
    "embed": ["embed", "{here}/images", "--weights={here}/runs/a", "--output={here}/out/f.npz"],
}


def damaged(
    files: Iterable[str],
    damages: dict[str, Callable[[Path], Any]],
    commands: dict[str, list[str]],
    **more: Any,
) -> Iterator[Case]:
    """Yield a case for every combination of file, damage and command."""
    for file, (kind, damage), (name, args) in itertools.product(files, damages.items(), commands.items()):

        def make(here: Path, file: str = file, damage: Callable[[Path], Any] = damage) -> None:
            damage(here / file)

        yield Case(f"{name}: {Path(file).name} {kind}", args, make, **more)


@category
def configs(template: Path) -> Iterator[Case]:
    """Damage to the config.yaml of a run."""
    yield from damaged(
        ["runs/a/config.yaml"], DAMAGES | TEXTS, OVER_RUNS | {"fit": CONTINUED, "fit anew": AGAIN["fit anew"]}
    )
    yield from damaged(["runs/a/config.yaml"], TEXTS, {k: AGAIN[k] for k in ("evaluate", "export")})


@category
def logs(template: Path) -> Iterator[Case]:
    """Damage to the metrics.csv, times.csv and weights.csv of a run."""
    yield from damaged(["runs/a/metrics.csv"], DAMAGES | TABLES, OVER_RUNS | {"fit": AGAIN["fit, further"]})
    readers = {k: OVER_RUNS[k] for k in ("runs", "report")} | {"fit": AGAIN["fit, further"]}
    yield from damaged(["runs/a/times.csv", "runs/a/weights.csv"], DAMAGES | TABLES, readers)


@category
def results(template: Path) -> Iterator[Case]:
    """Damage to evaluation.json and mirror.json."""
    readers = {k: OVER_RUNS[k] for k in ("compare rows", "report")} | {"export": AGAIN["export"]}
    yield from damaged(["runs/a/evaluation.json"], DAMAGES | TEXTS, readers)
    wandb = {
        "fit": [
            "fit",
            *SAME,
            "--runs_dir={here}/runs",
            "--name=new",
            "--wandb=offline",
            "--trainer.max_epochs=1",
        ]
    }
    around = {
        "around": lambda: mock.patch.dict(os.environ, {"WANDB_RUN_ID": "other", "WANDB_MODE": "disabled"})
    }
    yield from damaged(["runs/a/wandb/mirror.json"], DAMAGES | TEXTS, wandb, **around)


@category
def locks(template: Path) -> Iterator[Case]:
    """Locks that cannot be read or taken."""
    readers = {k: OVER_RUNS[k] for k in ("runs", "compare", "report of both")} | {
        "fit": AGAIN["fit, further"]
    }
    damages = {
        k: DAMAGES[k] for k in ("a directory", "a dangling link", "a link to itself", "unreadable", "binary")
    }
    yield from damaged(["runs/a/.lock"], damages, readers)

    def flock_error(number: int) -> Callable[[], Any]:
        def failing_flock(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        return lambda: mock.patch.object(fcntl, "flock", failing_flock)

    for number in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EIO):
        for name, args in (readers | {"fit anew": FIT}).items():
            yield Case(f"{name}: flock {errno.errorcode[number]}", args, around=flock_error(number))


@category
def checkpoints(template: Path) -> Iterator[Case]:
    """Damage to last.ckpt, alone and together with previous-last.ckpt."""
    yield from damaged(["runs/a/checkpoints/last.ckpt"], DAMAGES, AGAIN)

    def damage_both(damage: Callable[[Path], Any]) -> Callable[[Path], Any]:
        return lambda path: (damage(path), damage(path.with_name("previous-last.ckpt")))

    yield from damaged(
        ["runs/a/checkpoints/last.ckpt"],
        {f"and previous {kind}": damage_both(damage) for kind, damage in DAMAGES.items()},
        {k: AGAIN[k] for k in ("fit", "fit anew")},
    )


def changed_config(key: str, value: Any) -> Make:
    """Change the value of a dotted key in the config of a checkpoint and in config.yaml."""

    def make(here: Path) -> None:
        file = here / "runs/a/checkpoints/last.ckpt"
        content = torch.load(file, weights_only=True)
        config = yaml.safe_load(content["ssl_vision"]["config"])
        node, *rest = config, *key.split(".")
        for part in rest[:-1]:
            node = node[part]
        node[rest[-1]] = value
        content["ssl_vision"]["config"] = yaml.safe_dump(config)
        torch.save(content, file)
        (here / "runs/a/config.yaml").write_text(yaml.safe_dump(config))

    return make


READ = {k: AGAIN[k] for k in ("evaluate", "export", "embed")}


# ---------------------------------------------------------------------------------------------- sizes

HUGE = {
    "model.init_args.width": [10**5, 10**8, 10**18, 10**30],
    "model.init_args.hidden_dim": [10**7, 10**9, 10**18, 10**30],
    "model.init_args.output_dim": [10**7, 10**9, 10**18, 10**30],
    "model.init_args.depth": [10**6, 10**30],
    "model.init_args.chunk_size": [10**30],
    "data.init_args.views.size": [10**5, 10**6, 10**9, 10**30],
    "data.init_args.batch_size": [10**9, 10**30],
    "data.init_args.eval_batch_size": [10**30],
    "metrics.k": [10**30],
}


@category
def sizes(template: Path) -> Iterator[Case]:
    """Absurd sizes on the command line, in a config file and in a checkpoint."""
    limits: dict[str, Any] = {"seconds": 2, "megabytes": 100}
    for key, values in HUGE.items():
        for value in values:
            option = f"--{key.replace('init_args.', '')}={value}"
            expected_codes = (
                frozenset({2})
                if key.endswith(("width", "_dim", "depth", "views.size"))
                else frozenset({0, 2})
            )
            own_limits = limits if expected_codes == frozenset({2}) else {}
            yield Case(f"fit {option}", [*FIT, option], codes=expected_codes, **own_limits)

            def write_config(here: Path, key: str = key, value: int = value) -> None:
                config: Any = {"data": {"class_path": "Digits"}, "model": {"class_path": "SimCLR"}}
                node = config
                for part in key.split(".")[:-1]:
                    node = node.setdefault(part, {})
                node[key.rpartition(".")[2]] = value
                if "views" in key:
                    config["data"]["init_args"]["views"] = {"size": value}
                (here / "c.yaml").write_text(yaml.safe_dump(config))

            other_args = [arg for arg in FIT if not re.search(rf"[.-]{key.rpartition('.')[2]}=", arg)]
            yield Case(
                f"fit c.yaml {option}",
                [other_args[0], "--config={here}/c.yaml", *other_args[1:]],
                write_config,
                expected_codes,
                **own_limits,
            )
            for name in READ:
                may_run = key.startswith(
                    ("metrics", "data.init_args.batch", "model.init_args.chunk", "data.init_args.eval")
                )
                yield Case(
                    f"{name}: {key} {value}", READ[name], changed_config(key, value), seconds=8 if may_run else 2,
                    megabytes=500 if may_run else 100,
                )  # fmt: skip
    for value in ("100000000", "1" + "0" * 30):
        for command, option in (("maps", "--grid"), ("maps", "--batches"), ("maps", "--negatives"),
                                ("embed", "--batch_size"), ("evaluate", "--k"), ("reproduce", "--seeds"),
                                ("sweep", "--trials"), ("evaluate", "--probe.epochs")):  # fmt: skip
            yield Case(f"{command} {option}={value}", [*GOOD[command], f"{option}={value}"], seconds=20)
    folder = ["--data=ImageFolder", "--data.root={here}/images", "--data.batch_size=4"]
    for value in (10**5, 10**6, 10**30):
        yield Case(
            f"fit image_size={value}", [FIT[0], *folder, *FIT[1:], f"--data.image_size={value}"],
            codes=frozenset({2}), **limits,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------- files of users


@category
def written_files(template: Path) -> Iterator[Case]:
    """Files that users write or receive: configs, sweeps, protocols, papers and weights."""
    damages = DAMAGES | TEXTS
    sweep = [*GOOD["sweep"]]
    yield from damaged(["sweep.yaml"], damages, {"sweep": sweep}, seconds=3)
    yield from damaged(
        ["protocol.yaml"],
        damages,
        {"evaluate": [*GOOD["evaluate"], "--protocol={here}/protocol.yaml"]},
        seconds=8,
    )
    yield from damaged(["paper.yaml"], damages, {"reproduce": GOOD["reproduce"]}, seconds=3)
    yield from damaged(
        ["base.yaml"],
        damages,
        {"reproduce": GOOD["reproduce"], "fit": ["fit", "--config={here}/base.yaml", *FIT[1:]]},
    )
    yield from damaged(["w.pth"], DAMAGES, {"fit": [*FIT, "--initial_checkpoint={here}/w.pth"]})
    yield from damaged(["b.safetensors"], DAMAGES, {"embed": GOOD["embed"]})
    yield from damaged(["images/a/0.png"], DAMAGES, {"embed": [*GOOD["embed"], "--strict=true"]})
    for text in ("{class_path: InfoNCE, init_args: {temperature: 1e-300}}", "[" * 5000, "", "null",
                 "{class_path: os.system}", "{class_path: [1]}", "{init_args: {}}", "no.Such", "InfoNCE.temperature",
                 "{class_path: InfoNCE, init_args: 3}", "MACL,InfoNCE", "\0"):  # fmt: skip
        yield Case(f"maps --objectives {text[:30]!r}", [*GOOD["maps"][:-1], text], seconds=10)


# ---------------------------------------------------------------------------------------------- streams


@contextlib.contextmanager
def broken_pipe() -> Iterator[None]:
    """Redirect stdout to a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    os.close(write)
    _open_streams("utf-8")
    yield


@contextlib.contextmanager
def ascii_terminal() -> Iterator[None]:
    """Open streams that cannot encode other characters, as PYTHONIOENCODING and LC_ALL=C do."""
    _open_streams("ascii")
    yield


@category
def streams(template: Path) -> Iterator[Case]:
    """A pipe without a reader and streams in ASCII, for valid and invalid commands."""
    commands = GOOD | {
        "fit": FIT,
        "usage": [],
        "version": ["--version"],
        "help": ["runs", "--help"],
        "fit, wrong": [*FIT, "--model.encoder.width=0"],
        "runs, wrong": ["runs", "{here}/ü/図"],
        "no command": ["x"],
    }
    for name, args in commands.items():
        yield Case(f"{name}: stdout broken", args, codes=frozenset({0, 2, 141}), around=broken_pipe)
        yield Case(f"{name}: ASCII", args, around=ascii_terminal)


# ---------------------------------------------------------------------------------------------- permissions


@category
def permissions(template: Path) -> Iterator[Case]:
    """Directories that cannot be read or written, and outputs in invalid places."""

    def read_only(folder: str) -> Make:
        return lambda here: [
            path.chmod(0o555) for path in (here / folder, *(here / folder).rglob("*")) if path.is_dir()
        ]

    def unreadable(folder: str) -> Make:
        return lambda here: (here / folder).chmod(0)

    commands = {
        **OVER_RUNS,
        **AGAIN,
        "sweep": [*GOOD["sweep"]],
        "evaluate, report": ["evaluate", "{here}/runs/a", "--protocol=check"],
    }
    for name, args in commands.items():
        for folder in ("runs", "runs/a", "out"):
            yield Case(f"{name}: {folder} read-only", args, read_only(folder))
        for folder in ("runs", "runs/a", "runs/a/checkpoints"):
            yield Case(f"{name}: {folder} unreadable", args, unreadable(folder))
    outputs = {
        "report": "--output", "maps": "--output", "export": "--output", "embed": "--output", "compare": "--output",
        "evaluate": "--output",
    }  # fmt: skip
    ends = {
        "report": "html",
        "maps": "svg",
        "export": "safetensors",
        "embed": "npz",
        "compare": "json",
        "evaluate": "json",
    }
    for command, option in outputs.items():
        for place in (
            "/dev/null/x",
            "/proc/x",
            "{here}/elsewhere/file/x",
            "{here}/images/..",
            "/dev/full",
            LONG,
        ):
            value = place if place in ("/dev/full", "{here}/images/..") else f"{place}.{ends[command]}"
            yield Case(f"{command} {option}={value[:30]}", [*GOOD[command], f"{option}={value}"])


# ---------------------------------------------------------------------------------------------- campaign


def cases(template: Path, names: Iterable[str] = ()) -> Iterator[tuple[str, Case]]:
    """Yield every case with the name of its category."""
    for name in names or CATEGORIES:
        for case in CATEGORIES[name](template):
            yield name, case


def campaign(folder: Path, names: list[str], *, verbose: bool, pattern: str, every: int) -> bool:
    """Run the cases, print failures and counts, and return True if no case failed."""
    template_folder = folder / "template"
    template_folder.mkdir()
    folder.chmod(0o755)
    template(template_folder)
    counts: dict[str, Counter[str]] = {}
    slowest: list[tuple[float, str]] = []
    selected = [
        (name, case) for name, case in cases(template_folder, names) if re.search(pattern, case.name)
    ][::every]
    for number, (name, case) in enumerate(selected):
        case_folder = folder / f"case{number}"
        case_folder.mkdir()
        outcome = run_case(case, template_folder, case_folder / "here")
        count = counts.setdefault(name, Counter())
        count["cases"] += 1
        count[{0: "done", 2: "refused"}.get(outcome.code, "other")] += 1  # type: ignore[call-overload]
        slowest.append((outcome.seconds, case.name))
        if outcome.problems:
            count["failed"] += 1
        if outcome.problems or verbose:
            lines = lines_of(outcome.error)
            last = (lines[-1] if lines else "").replace(str(case_folder), "")[:300]
            print(
                f"{name}: {case.name}: {outcome.code} {', '.join(outcome.problems)}\n    {last}", flush=True
            )
        _remove_tree(case_folder)
    print("\n| category | cases | done | refused | other | failed |\n|---|---|---|---|---|---|")
    total = Counter[str]()
    for name, count in counts.items():
        total += count
        print(f"| {name} | {' | '.join(str(count[key]) for key in COLUMNS)} |")
    print(f"| all | {' | '.join(str(total[key]) for key in COLUMNS)} |")
    print("\nslowest: " + "; ".join(f"{name} {seconds:.1f} s" for seconds, name in sorted(slowest)[:-6:-1]))
    return not total["failed"]


COLUMNS = ("cases", "done", "refused", "other", "failed")


def _remove_tree(tree: Path) -> None:
    for folder, folders, _ in os.walk(tree):
        for name in folders:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(tree)


def prepare() -> None:
    """Import what commands import when they are called, so that child processes need not."""
    for command in COMMANDS.values():
        importlib.import_module(command.module)
    for name in ("optuna", "plotly", "matplotlib.pyplot", "wandb", "sklearn.datasets", "faiss"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    torch.set_num_threads(1)


def begin() -> int:
    """Run the campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--category", action="append", choices=CATEGORIES, default=[])
    parser.add_argument("--match", default="", help="a regular expression that the case's name holds")
    parser.add_argument("--every", type=int, default=1, help="one case of so many")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        passed = campaign(
            Path(folder), args.category, verbose=args.verbose, pattern=args.match, every=args.every
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(begin())
