"""Rows of a log that grows or was cut off: the readers take whole lines, and the writer goes on from them."""

import random

from ssl_vision.runs.csv_files import column, last_value, names, rows
from ssl_vision.runs.log import RunLog

LOGGED = [{"a": 0.5, "b": 12.0}, {"a": 0.25}, {"b": -3.0}, {"a": 0.9312, "b": 1e-9}, {"a": 41.75, "b": 60.0}]


def written(path, *, first=0):
    log = RunLog(path / "metrics.csv")
    log.keep_until(first)
    for step, metrics in list(enumerate(LOGGED))[first:]:
        log.log_metrics(metrics, step)
    return path / "metrics.csv"


def test_of_every_beginning_of_a_log_the_rows_that_have_ended_are_read(tmp_path):
    content, part = written(tmp_path).read_bytes(), tmp_path / "part.csv"
    for size in range(len(content) + 1):
        part.write_bytes(content[:size])
        lines = content[:size].count(b"\n")
        whole = [{"step": step} | LOGGED[step] for step in range(lines - 1)]
        assert rows(part) == whole, content[:size]
        assert names(part) == (["step", "epoch", "a", "b"] if lines else [])
        for name in ("a", "b"):
            values = [row[name] for row in whole if name in row]
            assert column(part, name) == values
            assert last_value(part, name) == (values[-1] if values else None)


def test_a_continued_log_drops_a_row_that_was_cut_off(tmp_path):
    content = written(tmp_path).read_bytes()
    for cut in range(1, 6):  # from the line's end into the last number
        (tmp_path / "metrics.csv").write_bytes(content[:-cut])
        RunLog(tmp_path / "metrics.csv").keep_until(len(LOGGED))
        assert (tmp_path / "metrics.csv").read_bytes() == b"".join(content.splitlines(keepends=True)[:-1])
        assert written(tmp_path, first=len(LOGGED) - 1).read_bytes() == content


def test_values_logged_at_one_step_share_a_row(tmp_path):
    """The row is replaced in the file; rows before it are not written again."""
    path, logged = tmp_path / "metrics.csv", {}
    log = RunLog(path)
    generator = random.Random(0)
    for step in range(40):
        inode, content = (path.stat().st_ino, path.read_bytes()) if step else (None, b"")
        for _ in range(generator.randint(1, 4)):  # also shorter values than before
            values = {name: generator.choice([0.5, 12.0, 1e-9, -0.123456789]) for name in "abc"}
            del values[generator.choice("abc")]
            logged.setdefault(step, {}).update(values)
            log.log_metrics(values, step)
        if step > 3:  # every column is known
            assert path.stat().st_ino == inode
            assert path.read_bytes().startswith(content)
    assert rows(path) == [{"step": step} | values for step, values in logged.items()]
