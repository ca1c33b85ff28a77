"""The commands ``fit`` and ``validate``; help is printed without importing torch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ssl_vision.cli.early_check import checked
from ssl_vision.cli.fit_help import requested_help
from ssl_vision.cli.import_paths import local_modules
from ssl_vision.cli.recipes import with_recipes
from ssl_vision.errors import InputError
from ssl_vision.loading import load
from ssl_vision.quiet import one_line_warnings
from ssl_vision.runs.folder import as_yaml
from ssl_vision.runs.registry import Run


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Run ``fit`` or ``validate``, the first of ``args``, or print help about its options.

    Returns:
        Arguments of the report of a run that was trained, on the first process.
    """
    command, *given = args
    with _replaced_run(given) as options:
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


@contextmanager
def _replaced_run(options: Sequence[str]) -> Iterator[list[str]]:
    """Replace a run directory before the options by the options with which the run continues.

    Raises:
        InputError: the first argument is neither an option nor a run directory, or the config of the run
            cannot be read.
    """
    if not options or options[0].startswith("-"):
        yield list(options)
        return
    run, *others = options
    folder = Path(os.path.normpath(run))
    if not folder.name or folder.name == "..":
        folder = Path(os.path.abspath(run))
    config = folder / "config.yaml"
    if not config.is_file():
        raise InputError(f"{run}: no run directory (no config.yaml); options start with --")
    with ExitStack() as temporary:
        if (backup := Run(folder).config_backup) is not None:
            config = Path(temporary.enter_context(TemporaryDirectory())) / "config.yaml"
            config.write_text(as_yaml(backup), encoding="utf-8")
        place = [f"--runs_dir={folder.parent}", f"--name={folder.name}"]
        yield [f"--config={config}", *place, "--ckpt_path=last", *others]
