"""What a command prints besides its results: progress, and with ``--quiet`` nothing.

Progress is a bar on a terminal, and an occasional line elsewhere.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_VARIABLE = "SSL_VISION_QUIET"
_LIGHTNING = ("pytorch_lightning", "lightning_fabric")


def quiet() -> bool:
    """Return True if only results and errors are printed."""
    return bool(os.environ.get(_VARIABLE))


@contextmanager
def _at_level(level: int, names: Sequence[str]) -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)


@contextmanager
def silenced() -> Iterator[None]:
    """Context manager that prints only results and errors, in this process and in those that it starts."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        with warnings.catch_warnings(), _at_level(logging.ERROR, _LIGHTNING):
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


@contextmanager
def without_noise() -> Iterator[None]:
    """Context manager that hides warnings and messages of Lightning that do not concern the run."""
    with warnings.catch_warnings():
        for message in (
            "LightningCLI's args parameter",  # which equal sys.argv here
            ".*(does not have many workers|in eval mode at the start of training)",
            "The number of training batches .* is smaller than the logging",
            "Be aware that when using `ckpt_path`",
            ".*LeafSpec.*is deprecated",
        ):
            warnings.filterwarnings("ignore", message=message)
        # Lightning's use of jsonargparse
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"pytorch_lightning\.cli")
        logger = logging.getLogger("pytorch_lightning.utilities.rank_zero")
        logger.addFilter(_is_about_the_run)
        names = ("lightning_fabric.utilities.seed", "pytorch_lightning.accelerators.cuda")
        try:
            with _at_level(logging.WARNING, names):
                yield
        finally:
            logger.removeFilter(_is_about_the_run)


def _is_about_the_run(record: logging.LogRecord) -> bool:
    noise = (
        "TPU available", "GPU available", "litlogger", "litmodels", "Loading `train_dataloader`",
        "Automatic Mixed Precision", "was configured so", "has Tensor Cores", "Restoring states",
        "Restored all states", "Loaded model weights", "`Trainer.fit` stopped",
    )  # fmt: skip
    return not any(words in record.getMessage() for words in noise)


class Progress:
    """Context manager that shows the progress, speed and remaining time of a task on stderr.

    On a terminal, it shows a bar, which is removed at the end. Elsewhere, it prints at most one line every 30
    seconds, and one at the end of a task of 2 seconds or more. Only the first process of a machine prints.

    Args:
        task: Description of the task in a word or two, which can be changed while it runs.
        total: Number of units; None if it is unknown.
        unit: Name of the units, in the plural.
        done: Number of units that were done before.
        lines: Print lines if there is no terminal.

    Attributes:
        note: Further text to show.
        untimed: Number of units done before the task whose time is unknown; only the final line counts them.
    """

    def __init__(
        self, task: str, total: float | None = None, *, unit: str = "", done: float = 0, lines: bool = True
    ) -> None:
        self.task, self.total, self.unit, self.done, self.note = task, total, unit, done, ""
        self._before, self.untimed = done, 0.0
        silent = quiet() or os.environ.get("LOCAL_RANK", "0") != "0"
        terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._draws = terminal and not silent
        self._writes = lines and not terminal and not silent

    def __enter__(self) -> Self:
        self._begun = self._printed = monotonic()
        if self._draws:
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(24),
                TextColumn("{task.fields[state]}", markup=False),
                console=_console(), transient=True, redirect_stdout=sys.stdout.isatty(),
            )  # fmt: skip
            self._task_id = self._bar.add_task(self.task, total=self.total, state="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        seconds = monotonic() - self._begun
        if self._draws:
            self._bar.stop()
        elif self._writes and kind is None and seconds >= 2:
            done = self.done - self._before + self.untimed
            amount = f"{number(done)} {self.unit}".rstrip() if done else "done"
            print(f"{self.task}: {amount} in {duration(seconds)}", file=sys.stderr, flush=True)

    def advance(self, count: float = 1) -> None:
        """Add completed units."""
        self.done += count
        if self._draws:
            self._bar.update(self._task_id, description=self.task, completed=self.done, state=self.state())
        elif self._writes and monotonic() - self._printed >= 30:
            self._printed = monotonic()
            print(f"{self.task}: {self.state()}", file=sys.stderr, flush=True)

    def state(self) -> str:
        """Return amount, speed and remaining time on one line."""
        of = "" if self.total is None else f"/{number(self.total)}"
        parts = [f"{number(self.done)}{of} {self.unit}".rstrip()]
        done, seconds = self.done - self._before, monotonic() - self._begun
        if done and seconds:
            parts.append(f"{number(done / seconds)}/s")
            if self.total is not None:
                parts.append(f"{duration((self.total - self.done) * seconds / done)} left")
        return ", ".join([*parts, *filter(None, [self.note])])


def tracked(items: Iterable[T], task: str, *, total: int | None = None, unit: str = "") -> Iterator[T]:
    """Iterate over items and show a `Progress`.

    Args:
        items: Iterable of the items.
        task: Description of the task in a word or two.
        total: Number of items, if they have no length.
        unit: Name of the items, in the plural.
    """
    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    with Progress(task, total, unit=unit) as job:
        for item in items:
            yield item
            job.advance()


def duration(seconds: float) -> str:
    """Format seconds as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float) -> str:
    """Format a number: whole if it is above 100 or an integer, otherwise with three digits."""
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"


def epochs_text(count: float) -> str:
    """Format a number of epochs."""
    return "1 epoch" if count == 1 else f"{number(count)} epochs"


@cache
def _console() -> "Console":
    """Return the console that all bars share, so that a nested bar is drawn below the outer one."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)
