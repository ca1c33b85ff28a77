"""The commands ``fit`` and ``validate``; help is printed without importing torch."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ssl_vision.cli.fit_help import answer
from ssl_vision.progress import Progress


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Run ``fit`` or ``validate``, the first of ``args``, or print help about its options.

    Returns:
        Arguments of the report of a run that was trained, on the first process.
    """
    command, *options = args
    if command == "fit" or any(".help" in option for option in options):
        text = answer(options)
        if text is not None:
            print(text)
            return None
    with Progress("loading", lines=False):
        fit = import_module("ssl_vision.cli.fit")
    if {"-h", "--help"} & set(options):
        options = ["--help"]  # without the word all
    page: dict[str, Any] | None = fit.run([command, *options])
    return page
