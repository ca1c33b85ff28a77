"""How far a long job is: a bar on a terminal, a line now and then elsewhere, nothing with ``--quiet``."""

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
"""Of the bar, in characters."""


class Progress:
    """Says on stderr how far a job is, how fast it goes and when it will be done, while its context lasts.

    On a terminal that is a bar, which goes at the end. Elsewhere it is at most one line every 30 seconds, and
    one at the end of a job of 2 seconds or more. Of several processes on a machine the first one speaks.

    Args:
        what: The job, in a word or two; may be changed on the way.
        total: How much there is to do; None where nobody knows.
        unit: What is counted, in the plural.
        done: How much of it was done before.
        lines: False says nothing where there is no terminal.
        clock: Seconds, from any origin.

    Attributes:
        note: What else there is to say at the moment.
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
        """Adds what was done."""
        self.done += count
        if self._writes and self.clock() - self._said >= _EVERY:
            self._said = self.clock()
            self._say(self.state())

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return self.clock() - self._begun

    def amount(self) -> str:
        """How much is done, in words; empty where nothing is known."""
        of = "" if self.total is None else f"/{number(self.total)}"
        return f"{number(self.done)}{of} {self.unit}".rstrip() if self.done or of else ""

    def speed(self) -> str:
        """Units a second so far, in words; empty before there is any."""
        done = self.done - self._before
        return f"{number(done / self.seconds)}/s" if done and self.seconds else ""

    def seconds_left(self) -> float | None:
        """Until the end, at the rate so far; None where it cannot be told."""
        done = self.done - self._before
        return (self.total - self.done) * self.seconds / done if done and self.total is not None else None

    def state(self) -> str:
        """How far, how fast and how long still, on one line."""
        left = self.seconds_left()
        parts = (self.amount(), self.speed(), "" if left is None else f"{duration(left)} left", self.note)
        return ", ".join(filter(None, parts))

    def _say(self, text: str) -> None:
        print(f"{self.what}: {text}", file=sys.stderr, flush=True)

    def _drawn(self) -> "Table":
        """Name, bar and state; where the terminal is narrow, the bar is what is shortened."""
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
    """The items, one after the other, while a `Progress` says how far their user is.

    Args:
        items: Anything to go through.
        what: The job, in a word or two.
        total: How many there are, where the items do not know.
        unit: What they are, in the plural.
    """
    if total is None:
        total = len(items) if isinstance(items, Sized) else None
    with Progress(what, total, unit=unit) as job:
        for item in items:
            yield item
            job.advance()


def duration(seconds: float) -> str:
    """As 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float) -> str:
    """Whole above 100 and where it is whole, else three digits."""
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"


def _terminal() -> bool:
    """Whether stderr is a terminal on which a line can be drawn anew."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


@cache
def _console() -> "Console":
    """The one that all bars share, so that one within another is drawn below it."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def _live(drawn: "Callable[[], Table]") -> "Live":
    """A picture that is drawn anew four times a second; what else is printed stands above it."""
    from rich.live import Live

    return Live(console=_console(), transient=True, get_renderable=drawn, redirect_stdout=sys.stdout.isatty())
