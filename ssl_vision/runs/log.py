"""Logger that writes metrics.csv, times.csv and weights.csv, one row per step."""

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from ssl_vision.runs.files import read_csv, replaced, sync

Row = dict[str, str]

_FILES = {"time/": "times.csv", "memory/": "times.csv", "weight/": "weights.csv"}
"""File of each metric prefix; all other metrics go to metrics.csv."""


class RunLog(Logger):
    """Writes ``metrics.csv`` with the columns ``step``, ``epoch`` and one for each metric.

    Metrics named ``time/…`` and ``memory/…`` go to ``times.csv`` instead, so that two runs with the same seed
    write the same ``metrics.csv``; the histogram bins ``weight/…`` go to ``weights.csv``. `log_metrics`
    writes each row immediately. A row that cannot be written ends the run.

    Args:
        path: path of ``metrics.csv``; existing rows are kept until `keep_until` drops them.
        check: function that raises if the run directory must not be written; called before every row.

    Attributes:
        latest: last logged value of every metric.
    """

    def __init__(self, path: str | Path, check: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.check = check
        self.latest: dict[str, float] = {}
        self._path = Path(path)
        names = [self._path.name, *_FILES.values()]
        self._tables = {name: _Table(self._path.with_name(name)) for name in names}

    @property
    def name(self) -> str:
        """The run directory's name."""
        return self._path.parent.name

    @property
    def version(self) -> str:
        """An empty string, because a run directory contains only one run."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run directory."""
        return str(self._path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing; hyperparameters are in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row, or extend the last row if it belongs to the same step."""
        self.check()
        self.latest |= metrics
        values = {key: _format(value) for key, value in metrics.items()}
        place = {"step": str(step)} | {key: values[key] for key in ("epoch",) if key in values}
        rows: dict[str, Row] = {}
        for key in values:
            if key not in place:
                name = next((_FILES[start] for start in _FILES if key.startswith(start)), self._path.name)
                rows.setdefault(name, dict(place))[key] = values[key]
        for name, row in rows.items():
            self._tables[name].add(row)

    @rank_zero_only
    def sync(self) -> None:
        """Flush all rows to disk."""
        for table in self._tables.values():
            table.sync()

    @rank_zero_only
    def keep_until(self, step: int) -> None:
        """Drop the rows from ``step`` on from all files.

        A continued run calls this with the step that it continues from, a new one with 0, so that each step
        is logged only once.

        Args:
            step: first step that is trained.
        """
        for table in self._tables.values():
            table.keep_until(step)


class _Table:
    """CSV file that is appended to, and rewritten when columns are added."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = ["step", "epoch"]
        self._rows: list[Row] = []
        self._last = 0  # byte at which the last row begins
        self._unsynced = False

    def add(self, row: Row) -> None:
        new_columns = [key for key in row if key not in self._columns]
        self._columns += sorted(new_columns)
        same_step = bool(self._rows) and self._rows[-1]["step"] == row["step"]
        if same_step:
            self._rows[-1] |= row
        else:
            self._rows.append(row)
        if new_columns or not self._path.exists():
            self._rewrite()
        else:
            self._write_last(replace=same_step)
        self._unsynced = True

    def sync(self) -> None:
        if self._unsynced:
            sync(self._path)
            self._unsynced = False

    def keep_until(self, step: int) -> None:
        if self._path.exists():
            columns, rows = read_csv(self._path)
            self._columns = columns or self._columns
            earlier = (row for row in rows if row["step"] < step)
            self._rows = [{name: _format(value) for name, value in row.items()} for row in earlier]
            self._rewrite()

    def _write_last(self, *, replace: bool) -> None:
        with self._path.open("r+", newline="", encoding="utf-8") as file:
            self._last = file.seek(self._last) if replace else file.seek(0, os.SEEK_END)
            csv.DictWriter(file, self._columns).writerow(self._rows[-1])
            file.truncate()

    def _rewrite(self) -> None:
        with replaced(self._path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows[:-1])
            self._last = file.tell()
            writer.writerows(self._rows[-1:])


def _format(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
