"""The command line: a table of commands, each a function in its own room, imported when it is called."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from ssl_vision import __version__
from ssl_vision.errors import InputError, Interrupted


class Command(NamedTuple):
    """Where a command lives and what it does."""

    function: str
    passes_name: bool
    help: str


COMMANDS = {
    "fit": Command("ssl_vision.runs.fit:run", True, "pretrain a backbone"),
    "validate": Command("ssl_vision.runs.fit:run", True, "measure a checkpoint as training does each epoch"),
    "evaluate": Command(
        "ssl_vision.evaluation.evaluate:run", False, "kNN, linear probe and metrics as a table"
    ),
    "embed": Command("ssl_vision.export.embed:run", False, "features of a folder's images as a file"),
    "maps": Command("ssl_vision.maps.maps:run", False, "the papers' pictures of objectives"),
    "export": Command("ssl_vision.export.export:run", False, "a backbone for other libraries"),
}

_LONGEST = 1000


def usage() -> str:
    """What ``ssl-vision --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ssl-vision COMMAND [OPTIONS]",
            "",
            "Contrastive self-supervised pretraining of vision backbones.",
            "",
            "commands:",
            *lines,
            "",
            "ssl-vision COMMAND --help lists a command's options; --debug shows where an error arose.",
        ]
    )


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code: 0 done, 1 a fault, 2 wrong input, 128 + n ended by signal n.

    What went wrong is one line on stderr; ``--debug`` anywhere, or ``SSL_VISION_DEBUG``, shows a traceback.
    """
    args = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in args or bool(os.environ.get("SSL_VISION_DEBUG"))
    args = [arg for arg in args if arg != "--debug"]
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    if args[0] == "--version":
        print(f"ssl-vision {__version__}")
        return 0
    name, rest = args[0], args[1:]
    try:
        if name not in COMMANDS:
            raise InputError(f"no command '{name}'; there are {', '.join(COMMANDS)}")
        command = COMMANDS[name]
        module, function = command.function.split(":")
        getattr(importlib.import_module(module), function)([name, *rest] if command.passes_name else rest)
    except KeyboardInterrupt:
        print(f"ssl-vision {name}: interrupted; fit continues with --ckpt_path last", file=sys.stderr)
        return 130
    except Interrupted as error:
        print(f"ssl-vision {name}: saved; continue with --ckpt_path last", file=sys.stderr)
        return 128 + error.signal
    except InputError as error:
        if int(os.environ.get("LOCAL_RANK", 0)) and not debug:
            return 2  # one process of a machine says it for all
        return _complain(f"ssl-vision {name}: {_shortened(str(error))}", 2, debug=debug)
    except Exception as error:
        first = next(filter(str.strip, str(error).splitlines()), "")
        what = f"{type(error).__name__}: {_shortened(first)}"
        return _complain(f"ssl-vision {name}: fault: {what} (--debug shows where)", 1, debug=debug)
    return 0


def _complain(line: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(line, file=sys.stderr)
    return code


def _shortened(message: str) -> str:
    """On one line that can be read."""
    line = " ".join(message.splitlines())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


if __name__ == "__main__":
    sys.exit(main())
