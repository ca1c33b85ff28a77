"""Tests of progress reports on a terminal and without one, with a simulated clock."""

import io
import logging
import os
import sys
import warnings
from contextlib import redirect_stderr, suppress
from types import SimpleNamespace

import pytest

from ssl_vision import progress
from ssl_vision.progress import Progress, duration, epochs_text, number, quiet, silenced, tracked


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only when a test sets it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "monotonic", lambda: clock.now)
    return clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal for stderr; the test itself redirects stderr, as pytest replaces it before the test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    progress._console.cache_clear()
    yield Terminal()
    progress._console.cache_clear()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (754, "12:34"), (3723, "1:02:03"), (86400, "24:00:00")]
)
def test_duration_formats_seconds(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (0.01234, "0.0123"), (12.345, "12.3"), (1234.5, "1,234"), (5e6, "5,000,000")],
)
def test_number_formats_value(value, text):
    assert number(value) == text


def test_progress_without_terminal_prints_periodic_and_final_lines(capsys, clock):
    with Progress("embed", 100, unit="images") as job:
        for _ in range(10):
            clock.now += 8
            job.advance(10)
    assert capsys.readouterr() == (
        "",
        "embed: 40/100 images, 1.25/s, 0:48 left\n"
        "embed: 80/100 images, 1.25/s, 0:16 left\n"
        "embed: 100 images in 1:20\n",
    )


def test_short_silent_and_failed_jobs_print_nothing(capsys, clock):
    with Progress("embed", 100) as job:
        clock.now += 1.9
        job.advance(100)
    with Progress("loading", lines=False):
        clock.now += 60
    with suppress(KeyError), Progress("embed", 100):
        clock.now += 20
        raise KeyError
    assert capsys.readouterr() == ("", "")


def test_rate_excludes_items_done_before_start(clock):
    with Progress("run", 100, done=50) as job:
        clock.now += 10
        job.advance(10)
        job.note = "loss 1"
        assert job.state() == "60/100, 1/s, 0:40 left, loss 1"


def test_job_without_total_reports_count_and_rate(clock):
    with Progress("wait") as job:
        assert job.state() == "0"
        clock.now += 2
        job.advance(3)
        assert job.state() == "3, 1.5/s"


def test_terminal_bar_is_drawn_and_erased(terminal, clock):
    with redirect_stderr(terminal), Progress("embed", 100, unit="images") as job:
        clock.now += 10
        job.advance(50)
        job._bar.refresh()
        drawn = terminal.getvalue()
        print("a warning", file=sys.stderr)
    assert "embed" in drawn
    assert "━" in drawn
    assert "50/100 images, 5/s, 0:10 left" in drawn
    assert "a warning\n" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


def test_nested_jobs_are_both_drawn(terminal):
    with redirect_stderr(terminal), Progress("outer", 2) as outer, Progress("inner", 2) as inner:
        inner.advance()
        inner._bar.refresh()
        assert "inner" in terminal.getvalue()
        assert "outer" in terminal.getvalue()
        outer.advance()


def test_dumb_terminal_gets_lines(terminal, monkeypatch, clock):
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(terminal), Progress("embed", 100) as job:
        clock.now += 30
        job.advance(50)
    assert terminal.getvalue() == "embed: 50/100, 1.67/s, 0:30 left\nembed: 50 in 0:30\n"


@pytest.mark.parametrize(("variable", "value"), [("SSL_VISION_QUIET", "1"), ("LOCAL_RANK", "1")])
def test_quiet_mode_and_other_ranks_print_nothing(variable, value, terminal, monkeypatch, clock):
    monkeypatch.setenv(variable, value)
    with redirect_stderr(terminal), Progress("embed", 100) as job:
        job.advance()
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(terminal), Progress("embed", 100) as job:
        clock.now += 90
        job.advance()
    assert terminal.getvalue() == ""


def test_tracked_yields_items_and_counts_finished_ones(monkeypatch):
    jobs = []
    enter = Progress.__enter__
    monkeypatch.setattr(Progress, "__enter__", lambda job: jobs.append(job) or enter(job))
    counts = [(item, jobs[0].done) for item in tracked("abc", "letters")]
    assert counts == [("a", 0), ("b", 1), ("c", 2)]
    assert (jobs[0].done, jobs[0].total) == (3, 3)
    assert list(tracked(iter("ab"), "letters", total=2)) == ["a", "b"]
    assert jobs[1].total == 2
    assert list(tracked(iter("ab"), "letters")) == ["a", "b"]
    assert jobs[2].total is None


def test_silenced_applies_only_within_its_context(monkeypatch, recwarn):
    monkeypatch.delenv("SSL_VISION_QUIET", raising=False)
    with silenced():
        assert quiet()
        assert os.environ["SSL_VISION_QUIET"]  # child processes inherit this
        warnings.warn("nobody hears it", stacklevel=1)
        with silenced():
            pass
        assert quiet()
    assert not quiet()
    assert not recwarn.list
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_epochs_are_whole_numbers_or_have_three_digits():
    assert [epochs_text(each) for each in (0.25, 1, 1.3333, 1000, 1234)] == [
        "0.25 epochs", "1 epoch", "1.33 epochs", "1,000 epochs", "1,234 epochs",
    ]  # fmt: skip


def test_loggers_of_lightning_are_restored_after_a_run():
    names = (
        "lightning_fabric.utilities.seed", "pytorch_lightning.accelerators.cuda",
        "pytorch_lightning.utilities.rank_zero",
    )  # fmt: skip
    loggers = list(map(logging.getLogger, names))
    before = [(logger.level, list(logger.filters)) for logger in loggers]
    with progress.without_noise():
        assert [(logger.level, list(logger.filters)) for logger in loggers] != before
    assert [(logger.level, list(logger.filters)) for logger in loggers] == before


def test_negative_duration_is_shown_as_none():
    assert progress.duration(-5) == "0:00"
