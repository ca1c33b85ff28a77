"""Jobs with a clock of their own, on a terminal and without one."""

import io
import os
import sys
import warnings
from contextlib import redirect_stderr, suppress

import pytest

from ssl_vision import progress
from ssl_vision.progress import Progress, duration, number, tracked
from ssl_vision.quiet import quiet, silenced


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """One that stderr can be redirected to, in the test itself: pytest sets it anew before."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    progress._console.cache_clear()
    yield Terminal()
    progress._console.cache_clear()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (754, "12:34"), (3723, "1:02:03"), (86400, "24:00:00")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (0.01234, "0.0123"), (12.345, "12.3"), (1234.5, "1,234"), (5e6, "5,000,000")],
)
def test_numbers(value, text):
    assert number(value) == text


def test_without_a_terminal_a_line_every_thirty_seconds_and_one_at_the_end(capsys):
    clock = Clock()
    with Progress("embed", 100, unit="images", clock=clock) as job:
        for _ in range(10):
            clock.now += 8
            job.advance(10)
    assert capsys.readouterr() == (
        "",
        "embed: 40/100 images, 1.25/s, 0:48 left\n"
        "embed: 80/100 images, 1.25/s, 0:16 left\n"
        "embed: 100 images in 1:20\n",
    )


def test_a_job_that_nobody_waits_for_says_nothing(capsys):
    clock = Clock()
    with Progress("embed", 100, clock=clock) as job:
        clock.now += 1.9
        job.advance(100)
    with Progress("loading", lines=False, clock=clock):
        clock.now += 60
    with suppress(KeyError), Progress("embed", 100, clock=clock):
        clock.now += 20
        raise KeyError
    assert capsys.readouterr() == ("", "")


def test_what_was_done_before_is_in_no_rate(capsys):
    clock = Clock()
    with Progress("run", 100, done=50, clock=clock) as job:
        clock.now += 10
        job.advance(10)
        job.note = "loss 1"
        assert job.state() == "60/100, 1/s, 0:40 left, loss 1"


def test_of_a_job_without_an_end_the_rate_is_told():
    clock = Clock()
    with Progress("wait", clock=clock) as job:
        assert job.state() == ""
        clock.now += 2
        job.advance(3)
        assert job.state() == "3, 1.5/s"


def test_on_a_terminal_there_is_a_bar_and_it_goes(terminal):
    clock = Clock()
    with redirect_stderr(terminal), Progress("embed", 100, unit="images", clock=clock) as job:
        clock.now += 10
        job.advance(50)
        job._bar.refresh()
        drawn = terminal.getvalue()
        print("a warning", file=sys.stderr)
    assert "embed" in drawn
    assert "━" in drawn
    assert "50/100 images, 5/s, 0:10 left" in drawn
    assert "a warning\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is wiped


@pytest.mark.parametrize(("columns", "bar"), [(100, 24), (60, 21), (44, 5), (43, 0)])
def test_where_the_terminal_is_narrow_the_bar_is(columns, bar, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    clock = Clock()
    with redirect_stderr(terminal), Progress("embed", 100, unit="images", clock=clock) as job:
        clock.now += 10
        job.advance(100)
        job._bar.refresh()
        last = terminal.getvalue().split("\x1b[2K")[-1]
    assert last.count("━") == bar
    assert "100/100 images, 10/s, 0:00 left" in last


def test_one_within_another_is_drawn_too(terminal):
    with redirect_stderr(terminal), Progress("outer", 2) as outer, Progress("inner", 2) as inner:
        inner.advance()
        inner._bar.refresh()
        assert "inner" in terminal.getvalue()
        assert "outer" in terminal.getvalue()
        outer.advance()


def test_a_terminal_that_cannot_draw_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    clock = Clock()
    with redirect_stderr(terminal), Progress("embed", 100, clock=clock) as job:
        clock.now += 30
        job.advance(50)
    assert terminal.getvalue() == "embed: 50/100, 1.67/s, 0:30 left\nembed: 50 in 0:30\n"


@pytest.mark.parametrize(("variable", "value"), [("SSL_VISION_QUIET", "1"), ("LOCAL_RANK", "1")])
def test_quiet_and_other_processes_say_nothing(variable, value, terminal, monkeypatch):
    monkeypatch.setenv(variable, value)
    with redirect_stderr(terminal), Progress("embed", 100) as job:
        job.advance()
    monkeypatch.setenv("TERM", "dumb")
    clock = Clock()
    with redirect_stderr(terminal), Progress("embed", 100, clock=clock) as job:
        clock.now += 90
        job.advance()
    assert terminal.getvalue() == ""


def test_tracked_gives_the_items_and_counts_those_that_are_done(monkeypatch):
    jobs = []
    enter = Progress.__enter__
    monkeypatch.setattr(Progress, "__enter__", lambda job: jobs.append(job) or enter(job))
    seen = [(item, jobs[0].done) for item in tracked("abc", "letters")]
    assert seen == [("a", 0), ("b", 1), ("c", 2)]
    assert (jobs[0].done, jobs[0].total) == (3, 3)
    assert list(tracked(iter("ab"), "letters", total=2)) == ["a", "b"]
    assert jobs[1].total == 2
    assert list(tracked(iter("ab"), "letters")) == ["a", "b"]
    assert jobs[2].total is None


def test_silence_ends_with_its_context(monkeypatch):
    monkeypatch.delenv("SSL_VISION_QUIET", raising=False)
    with silenced():
        assert quiet()
        assert os.environ["SSL_VISION_QUIET"]  # what a process that is started now inherits
        warnings.warn("nobody hears it", stacklevel=1)
        with silenced():
            pass
        assert quiet()
    assert not quiet()
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)
