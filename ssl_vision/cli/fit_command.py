"""The commands ``fit`` and ``validate``; help is printed without importing torch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_vision.cli.early_check import checked
from ssl_vision.cli.fit_help import requested_help
from ssl_vision.cli.import_paths import local_modules
from ssl_vision.cli.recipes import with_recipes
from ssl_vision.errors import InputError
from ssl_vision.loading import load
from ssl_vision.quiet import one_line_warnings


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Run ``fit`` or ``validate``, the first of ``args``, or print help about its options.

    Returns:
        Arguments of the report of a run that was trained, on the first process.
    """
    command, *given = args
    options = _replaced_run(given)
    if command == "fit" or any(".help" in option for option in options):
        text = requested_help(with_recipes(options))
        if text is not None:
            print(text)
            return None
    options = ["--help"] if {"-h", "--help"} & set(options) else checked(options)
    fit = load("ssl_vision.cli.fit")
    one_line_warnings()
    with local_modules(options):  # also those that the config of a run directory names
        outcome = fit.executed([command, *options])
    if outcome.message:
        print(outcome.message)
    page: dict[str, Any] | None = outcome.page
    return page


def _replaced_run(options: Sequence[str]) -> list[str]:
    """Replace a run directory before the options by the options with which the run continues.

    Raises:
        InputError: the first argument is neither an option nor a run directory.
    """
    if not options or options[0].startswith("-"):
        return list(options)
    run, *others = options
    folder = Path(os.path.normpath(run))
    if not folder.name or folder.name == "..":
        folder = Path(os.path.abspath(run))
    config = folder / "config.yaml"
    if not config.is_file():
        raise InputError(f"{run}: no run directory (no config.yaml); options start with --")
    place = [f"--runs_dir={folder.parent}", f"--name={folder.name}"]
    return [f"--config={config}", *place, "--ckpt_path=last", *others]
