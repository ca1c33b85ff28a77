"""The command line: the table of commands, whose modules are imported when they are called."""

import io
import itertools
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

from ssl_vision._version import __version__
from ssl_vision.errors import InputError, Interrupted
from ssl_vision.progress import quiet, silenced


class Command(NamedTuple):
    """A command of ``ssl-vision``.

    Commands that modify a run may return the arguments of ``ssl_vision.experiments.report.report.write``,
    with which the report of the run is then written and its path printed.

    Args:
        module: module whose function ``run`` is the command, imported when the command is called.
        help: what the command does.
        group: heading under which the help lists it; "" for one that only ``ssl-vision help --all`` lists.
    """

    module: str
    help: str
    group: str = ""


_EXPERIMENTS = "ssl_vision.experiments"

COMMANDS = {
    "fit": Command("ssl_vision.cli.fit_command", "pretrain an encoder", "one run"),
    "evaluate": Command(
        "ssl_vision.evaluation.command", "evaluate a checkpoint under named protocols", "one run"
    ),
    "runs": Command(f"{_EXPERIMENTS}.compare.runs_table", "list runs", "many runs"),
    "sweep": Command(f"{_EXPERIMENTS}.sweeps.sweep", "run the trials of a sweep file", "many runs"),
    "compare": Command(
        f"{_EXPERIMENTS}.compare.compare", "compare runs with equal seeds, with statistics", "many runs"
    ),
    "choose": Command(f"{_EXPERIMENTS}.compare.choose", "choose a run without labels", "many runs"),
    "reproduce": Command(
        f"{_EXPERIMENTS}.reproduce.reproduce", "reproduce the tables of papers", "many runs"
    ),
    "report": Command(
        f"{_EXPERIMENTS}.report.report", "write an HTML report of one or several runs", "outputs"
    ),
    "export": Command("ssl_vision.export.export", "export an encoder for other libraries", "outputs"),
    "embed": Command(
        "ssl_vision.export.embed", "write the features of a folder of images to a file", "outputs"
    ),
    "list": Command(
        "ssl_vision.cli.listing", "list objectives, encoders, methods, recipes and more", "information"
    ),
    "doctor": Command("ssl_vision.cli.doctor", "check packages, hardware and data sets", "information"),
    "data": Command("ssl_vision.cli.data_folder", "check images, or compute their statistics", "information"),
    "maps": Command(f"{_EXPERIMENTS}.report.maps", "draw maps of objectives, as in the papers"),
}
"""Commands by name. The first page of the help lists those that have a group."""

_USAGE = """\
usage: ssl-vision COMMAND [OPTIONS]

Contrastive self-supervised pretraining of vision encoders.
{commands}

ssl-vision COMMAND --help lists the options of a command, and ssl-vision help --all lists all
commands. With any command, --quiet prints only results and errors, and --debug prints the
traceback of an error."""

_REPORT = f"{_EXPERIMENTS}.report.report"


def usage(*, every: bool = False) -> str:
    """Return the text of ``ssl-vision --help``, or of ``ssl-vision help --all``."""
    width = max(map(len, COMMANDS))
    lines: list[str] = []
    for group, commands in itertools.groupby(COMMANDS.items(), key=lambda item: item[1].group):
        if group or every:
            lines += ["", f"{group or 'further commands'}:"]
            lines += [f"  {name:<{width}}  {command.help}" for name, command in commands]
    return _USAGE.format(commands="\n".join(lines))


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The exit code is 0 for success, 1 for a failure, 2 for wrong input, and 128 + n if ended by signal n.

    An error is printed to stderr as one line. ``--debug``, anywhere in the command, or ``SSL_VISION_DEBUG``
    also prints the traceback. ``--quiet``, anywhere in the command, or ``SSL_VISION_QUIET`` prints only
    results and errors. If the reader of stdout is gone, the command ends with the exit code of SIGPIPE.
    Characters that a stream cannot encode are printed as escape sequences.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _execute(args)
        print(end="", flush=True)
    except BrokenPipeError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())  # otherwise, Python prints an error when it ends
        return 128 + signal.SIGPIPE
    return code


def _execute(args: Sequence[str] | None) -> int:
    args = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in args or bool(os.environ.get("SSL_VISION_DEBUG"))
    is_quiet = "--quiet" in args or quiet()
    args = [arg for arg in args if arg not in ("--debug", "--quiet")]
    name, *rest = args or ["help"]
    if name in ("-h", "--help", "help"):
        print(usage(every="--all" in rest))
        return 0
    if name == "--version":
        print(f"ssl-vision {__version__}")
        return 0
    from ssl_vision.cli.import_paths import load, local_modules
    from ssl_vision.cli.suggestions import closest_match

    try:
        if name not in COMMANDS:
            raise InputError(f"unknown command '{name}'{closest_match(name, list(COMMANDS))}")
        with silenced() if is_quiet else nullcontext(), local_modules(rest):
            command = load(COMMANDS[name].module)
            page = command.run(rest)
            report = None if page is None else load(_REPORT).write(**page)
            if report is not None and not quiet():
                print(f"report: {report}")
    except KeyboardInterrupt:
        continuation = "; the same command with --ckpt_path last continues" if name == "fit" else ""
        print(f"ssl-vision {name}: interrupted{continuation}", file=sys.stderr)
        return 130
    except Interrupted as error:
        again = "--ckpt_path last" if error.run is None else f"ssl-vision fit {shlex.quote(str(error.run))}"
        print(f"ssl-vision {name}: saved; continue with {again}", file=sys.stderr)
        return 128 + error.signal
    except BrokenPipeError:
        raise
    except Exception as error:
        code, message = _explained(error)
        if debug:
            traceback.print_exc()
        elif isinstance(error, InputError) and int(os.environ.get("LOCAL_RANK", 0)):
            return code  # only the first process of a machine prints the error
        print(f"ssl-vision {name}: {message}", file=sys.stderr)
        return code
    return 0


def _explained(error: Exception) -> tuple[int, str]:
    """Return the exit code of an error, and a line about it."""
    if isinstance(error, (InputError, FloatingPointError)):  # the latter: the loss of many steps in a row
        return 2 if isinstance(error, InputError) else 1, " ".join(str(error).splitlines())
    if isinstance(error, OSError) and error.errno is not None:  # raised by the operating system
        place = "the output" if error.filename is None else error.filename
        return 1 if error.filename is None else 2, f"{place}: {error.strerror}"
    name, lines = type(error).__name__, str(error).strip().splitlines() or [""]
    if "MemoryError" in name:  # also that of torch
        return 1, f"out of memory: reduce the batch size, or set --model.chunk_size ({lines[0]})"
    # a worker of a DataLoader reports its traceback
    line = lines[-1] if " in DataLoader worker process " in lines[0] else lines[0]
    return 1, f"{name}: {line} (--debug shows where)"


if __name__ == "__main__":
    sys.exit(main())
