"""Tests of reading and resuming logs that are being written or were cut off."""

import random

from ssl_vision.runs.files import last_value, read_csv
from ssl_vision.runs.log import RunLog

LOGGED = [{"a": 0.5, "b": 12.0}, {"a": 0.25}, {"b": -3.0}, {"a": 0.9312, "b": 1e-9}, {"a": 41.75, "b": 60.0}]


def write_log(path, *, first=0):
    log = RunLog(path / "metrics.csv")
    log.keep_until(first)
    for step, metrics in list(enumerate(LOGGED))[first:]:
        log.log_metrics(metrics, step)
    return path / "metrics.csv"


def test_readers_return_complete_rows_of_log_cut_at_any_byte(tmp_path):
    content, truncated = write_log(tmp_path).read_bytes(), tmp_path / "part.csv"
    for size in range(len(content) + 1):
        truncated.write_bytes(content[:size])
        lines = content[:size].count(b"\n")
        complete = [{"step": step} | LOGGED[step] for step in range(lines - 1)]
        columns, rows = read_csv(truncated)
        assert rows == complete, content[:size]
        assert columns == (["step", "epoch", "a", "b"] if lines else [])
        for name in ("a", "b"):
            values = [row[name] for row in complete if name in row]
            assert last_value(rows, name) == (values[-1] if values else None)


def test_a_continued_log_drops_a_row_that_was_cut_off(tmp_path):
    content = write_log(tmp_path).read_bytes()
    for cut in range(1, 6):  # from the line ending into the last number
        (tmp_path / "metrics.csv").write_bytes(content[:-cut])
        RunLog(tmp_path / "metrics.csv").keep_until(len(LOGGED))
        assert (tmp_path / "metrics.csv").read_bytes() == b"".join(content.splitlines(keepends=True)[:-1])
        assert write_log(tmp_path, first=len(LOGGED) - 1).read_bytes() == content


def test_values_logged_at_one_step_share_a_row(tmp_path):
    """The row is replaced in the file; earlier rows are not rewritten."""
    path, logged = tmp_path / "metrics.csv", {}
    log = RunLog(path)
    generator = random.Random(0)
    for step in range(40):
        inode, content = (path.stat().st_ino, path.read_bytes()) if step else (None, b"")
        for _ in range(generator.randint(1, 4)):  # new values may be shorter than those they replace
            values = {name: generator.choice([0.5, 12.0, 1e-9, -0.123456789]) for name in "abc"}
            del values[generator.choice("abc")]
            logged.setdefault(step, {}).update(values)
            log.log_metrics(values, step)
        if step > 3:  # every column is known
            assert path.stat().st_ino == inode
            assert path.read_bytes().startswith(content)
    assert read_csv(path)[1] == [{"step": step} | values for step, values in logged.items()]


def test_log_of_two_thousand_metrics_is_kept(tmp_path):
    log = RunLog(tmp_path / "metrics.csv")
    log.log_metrics({f"norm/{'x' * 50}{i}": float(i) for i in range(2000)}, step=0)
    RunLog(tmp_path / "metrics.csv").keep_until(1)
    assert len(read_csv(tmp_path / "metrics.csv")[1][0]) == 2001
