"""The command line: a table of commands, each a function in its own room, imported when it is called."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from ssl_vision import __version__
from ssl_vision.errors import InputError


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
    "export": Command("ssl_vision.export.export:run", False, "a backbone for other libraries"),
}


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
            "ssl-vision COMMAND --help lists a command's options.",
        ]
    )


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code: 0 done, 2 wrong input, 130 interrupted."""
    args = list(sys.argv[1:] if args is None else args)
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
    except InputError as error:
        if os.environ.get("SSL_VISION_DEBUG"):
            raise
        print(f"ssl-vision {name}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
