"""The command line: the table of commands, whose modules are imported when they are called."""

import io
import itertools
import os
import shlex
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from ssl_vision._version import __version__
from ssl_vision.cli.import_paths import local_modules
from ssl_vision.errors import InputError, Interrupted
from ssl_vision.loading import load
from ssl_vision.quiet import one_line_warnings, quiet, silenced


class Command(NamedTuple):
    """A command of ``ssl-vision``.

    Commands that modify a run may return the arguments of ``ssl_vision.report.report.write``, which then
    writes the report of the run, whose path is printed.
    """

    function: str
    help: str
    passes_name: bool = False


GROUPS = {
    "one run": {
        "fit": Command("ssl_vision.cli.fit_command:run", "pretrain an encoder", passes_name=True),
        "validate": Command(
            "ssl_vision.cli.fit_command:run", "validate a checkpoint as during training", passes_name=True
        ),
        "evaluate": Command(
            "ssl_vision.evaluation.command:run", "evaluate a checkpoint under named protocols"
        ),
    },
    "many runs": {
        "runs": Command("ssl_vision.compare.runs_table:run", "list runs"),
        "sweep": Command("ssl_vision.sweeps.sweep:run", "run the trials of a sweep file"),
        "compare": Command(
            "ssl_vision.compare.compare:run", "compare runs with equal seeds, with statistics"
        ),
        "choose": Command("ssl_vision.compare.choose:run", "choose a run without labels"),
        "reproduce": Command("ssl_vision.reproduce.reproduce:run", "reproduce the tables of papers"),
    },
    "reports": {
        "report": Command("ssl_vision.report.report:run", "write an HTML report of one or several runs"),
        "maps": Command("ssl_vision.report.maps.maps:run", "draw maps of objectives, as in the papers"),
    },
    "export": {
        "export": Command("ssl_vision.export.export:run", "export an encoder for other libraries"),
        "embed": Command("ssl_vision.export.embed:run", "write the features of a folder of images to a file"),
    },
    "information": {
        "list": Command("ssl_vision.cli.listing:run", "list objectives, encoders, methods, metrics and more"),
        "data": Command(
            "ssl_vision.cli.data_folder:run", "check a folder of images, or compute its statistics"
        ),
        "doctor": Command("ssl_vision.cli.doctor:run", "check packages, hardware and data sets"),
    },
}
"""Commands by group."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

_PAGE = "ssl_vision.report.report:write"
_LONGEST = 1000


def usage() -> str:
    """Return the text of ``ssl-vision --help``."""
    width = max(map(len, COMMANDS))
    lines = []
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<{width}}  {command.help}" for name, command in commands.items()]
    return "\n".join(
        [
            "usage: ssl-vision COMMAND [OPTIONS]",
            "",
            "Contrastive self-supervised pretraining of vision encoders.",
            *lines,
            "",
            "ssl-vision COMMAND --help lists the options of a command. With any command, --quiet prints",
            "only results and errors, and --debug prints the traceback of an error.",
        ]
    )


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
        code = _run(args)
        print(end="", flush=True)
    except BrokenPipeError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())  # otherwise, Python prints an error when it ends
        return 128 + signal.SIGPIPE
    return code


def _run(args: Sequence[str] | None) -> int:
    args = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in args or bool(os.environ.get("SSL_VISION_DEBUG"))
    calm = "--quiet" in args or quiet()
    args = [arg for arg in args if arg not in ("--debug", "--quiet")]
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    if args[0] == "--version":
        print(f"ssl-vision {__version__}")
        return 0
    name, rest = args[0], args[1:]
    try:
        if name not in COMMANDS:
            raise InputError(f"unknown command '{name}'; available: {', '.join(COMMANDS)}")
        with silenced() if calm else nullcontext(), local_modules(rest):
            command = COMMANDS[name]
            function = _function(command.function)
            one_line_warnings()
            run = function([name, *rest] if command.passes_name else rest)
            if run is not None:
                report = _function(_PAGE)(**run)
                if isinstance(report, Path) and not quiet():
                    print(f"report: {report}")
    except KeyboardInterrupt:
        continuation = "; the same command with --ckpt_path last continues" if name == "fit" else ""
        print(f"ssl-vision {name}: interrupted{continuation}", file=sys.stderr)
        return 130
    except Interrupted as error:
        run_again = (
            "--ckpt_path last" if error.run is None else f"ssl-vision fit {shlex.quote(str(error.run))}"
        )
        print(f"ssl-vision {name}: saved; continue with {run_again}", file=sys.stderr)
        return 128 + error.signal
    except InputError as error:
        if int(os.environ.get("LOCAL_RANK", 0)) and not debug:
            return 2  # only the first process of a machine prints the error
        return _print_error(f"ssl-vision {name}: {_shortened(str(error))}", 2, debug=debug)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno is None:  # not raised by the operating system
            return _print_fault(name, error, debug=debug)
        place = "the output" if error.filename is None else error.filename
        message = _shortened(f"{place}: {error.strerror}")
        return _print_error(f"ssl-vision {name}: {message}", 1 if error.filename is None else 2, debug=debug)
    except FloatingPointError as error:  # the loss of many steps in a row
        return _print_error(f"ssl-vision {name}: {_shortened(str(error))}", 1, debug=debug)
    except Exception as error:
        if _out_of_memory(error):
            advice = "out of memory: reduce the batch size or the network, or set --model.chunk_size"
            return _print_error(f"ssl-vision {name}: {advice} ({_first_line(error)})", 1, debug=debug)
        if "DataLoader worker (pid" in str(error):
            advice = (
                "a worker process has ended, probably because it ran out of memory: reduce --data.workers"
            )
            return _print_error(f"ssl-vision {name}: {advice} ({_first_line(error)})", 1, debug=debug)
        return _print_fault(name, error, debug=debug)
    return 0


def _out_of_memory(error: Exception) -> bool:
    """Return True for out-of-memory errors of Python, CUDA and torch, without importing torch."""
    return isinstance(error, MemoryError) or any(
        sign in f"{type(error).__name__}: {error}"
        for sign in ("OutOfMemoryError", "can't allocate memory", "Unable to allocate")
    )


def _first_line(error: Exception) -> str:
    return _shortened(next(filter(str.strip, str(error).splitlines()), type(error).__name__))


def _print_fault(name: str, error: Exception, *, debug: bool) -> int:
    message = f"{type(error).__name__}: {_first_line(error)}"
    if " in DataLoader worker process " in message:  # with the traceback of the worker
        message = _shortened(str(error).strip().splitlines()[-1])
    origin = _user_line(error) or "fault"
    return _print_error(f"ssl-vision {name}: {origin}: {message} (--debug shows where)", 1, debug=debug)


def _user_line(error: Exception) -> str:
    """Return the file and line of the user's code that this package called and that failed, or ""."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    libraries = (package, "<", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    called = itertools.dropwhile(lambda frame: not frame[0].startswith(package), frames)
    user_lines = [f"{file}, line {line}" for file, line in called if not file.startswith(libraries)]
    return user_lines[-1] if user_lines else ""


def _function(place: str) -> Callable[..., Any]:
    """Import and return the function at an import path ``module:function``."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(load(module), name)
    return function


def _print_error(line: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(line, file=sys.stderr)
    return code


def _shortened(message: str) -> str:
    """Join the lines of a message, and shorten it to a readable length."""
    line = " ".join(message.splitlines())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


if __name__ == "__main__":
    sys.exit(main())
