"""Progress of long tasks: a bar on a terminal, occasional lines elsewhere, nothing with ``--quiet``."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import cache
from typing import TYPE_CHECKING, Self, TypeVar

from ssl_vision.quiet import quiet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

T = TypeVar("T")

_EVERY = 30.0
"""Seconds between two lines where there is no terminal."""

_WAITED = 2.0
"""Seconds after which the end of a job is worth a line there."""

_SHORTEST, _LONGEST = 5, 24
"""Minimum and maximum length of the bar in characters."""


class Progress:
    """Context manager that shows the progress, speed and remaining time of a task on stderr.

    On a terminal, it shows a bar, which is removed at the end. Elsewhere, it prints at most one line every 30
    seconds, and one at the end of a task of 2 seconds or more. Only the first process of a machine prints.

    Args:
        what: Description of the task in a word or two, which can be changed while it runs.
        total: Number of units; None if it is unknown.
        unit: Name of the units, in the plural.
        done: Number of units that were done before.
        lines: Print lines if there is no terminal.
        clock: Function that returns seconds, from any origin.

    Attributes:
        note: Further text to show.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        *,
        unit: str = "",
        done: float = 0,
        lines: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, done
        self.note = ""
        self.clock = clock
        self._before = done
        self._begun = self._said = 0.0
        self._bar: Live | None = None
        silent = quiet() or bool(int(os.environ.get("LOCAL_RANK") or 0))
        self._draws = not silent and _terminal()
        self._writes = not silent and not self._draws and lines

    def __enter__(self) -> Self:
        self._begun = self._said = self.clock()
        if self._draws:
            self._bar = _live(self._drawn)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._writes and kind is None and self.seconds >= _WAITED:
            amount = f"{number(self.done - self._before)} {self.unit}".rstrip() if self.done else "done"
            self._say(f"{amount} in {duration(self.seconds)}")

    def advance(self, count: float = 1) -> None:
        """Add completed units."""
        self.done += count
        if self._writes and self.clock() - self._said >= _EVERY:
            self._said = self.clock()
            self._say(self.state())

    @property
    def seconds(self) -> float:
        """Return the elapsed seconds."""
        return self.clock() - self._begun

    def amount(self) -> str:
        """Return the completed amount as text; empty if it is unknown."""
        of = "" if self.total is None else f"/{number(self.total)}"
        return f"{number(self.done)}{of} {self.unit}".rstrip() if self.done or of else ""

    def speed(self) -> str:
        """Return the units per second as text; empty before the first one."""
        done = self.done - self._before
        return f"{number(done / self.seconds)}/s" if done and self.seconds else ""

    def seconds_left(self) -> float | None:
        """Return the remaining seconds at the current speed; None if they are unknown."""
        done = self.done - self._before
        return (self.total - self.done) * self.seconds / done if done and self.total is not None else None

    def state(self) -> str:
        """Return amount, speed and remaining time on one line."""
        left = self.seconds_left()
        parts = (self.amount(), self.speed(), "" if left is None else f"{duration(left)} left", self.note)
        return ", ".join(filter(None, parts))

    def _say(self, text: str) -> None:
        print(f"{self.what}: {text}", file=sys.stderr, flush=True)

    def _drawn(self) -> "Table":
        """Return description, bar and state; on a narrow terminal, the bar is shortened."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        state = self.state()
        room = _console().width - len(self.what) - len(state) - 3
        row = Table.grid(padding=(0, 1))
        row.add_column(no_wrap=True)
        cells: list[str | ProgressBar] = [self.what]
        if room >= _SHORTEST:
            width = min(room, _LONGEST)
            row.add_column(width=width)
            cells.append(ProgressBar(self.total or None, self.done, width=width, pulse=not self.total))
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_row(*cells, state)
        return row


def tracked(items: Iterable[T], what: str, *, total: int | None = None, unit: str = "") -> Iterator[T]:
    """Iterate over items and show a `Progress`.

    Args:
        items: Iterable of the items.
        what: Description of the task in a word or two.
        total: Number of items, if they have no length.
        unit: Name of the items, in the plural.
    """
    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    with Progress(what, total, unit=unit) as job:
        for item in items:
            yield item
            job.advance()


def duration(seconds: float) -> str:
    """Format seconds as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float) -> str:
    """Format a number: whole if it is above 100 or an integer, otherwise with three digits."""
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"


def epochs_text(count: float) -> str:
    """Format a number of epochs."""
    return "1 epoch" if count == 1 else f"{number(count)} epochs"


def _terminal() -> bool:
    """Return True if stderr is a terminal on which a line can be redrawn."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


@cache
def _console() -> "Console":
    """Return the console that all bars share, so that a nested bar is drawn below the outer one."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def _live(drawn: "Callable[[], Table]") -> "Live":
    """Return a display that is redrawn four times a second, below all other output."""
    from rich.live import Live

    return Live(console=_console(), transient=True, get_renderable=drawn, redirect_stdout=sys.stdout.isatty())
