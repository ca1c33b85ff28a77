"""metrics.csv, times.csv, weights.csv: every logged number of a run, one row a step, whatever else logs."""

import csv
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from ssl_vision.runs.atomic_files import no_follow, replaced, sync
from ssl_vision.runs.csv_files import names, rows

Row = dict[str, str]

_FILES = {"time/": "times.csv", "memory/": "times.csv", "weight/": "weights.csv"}
"""Where numbers go whose names begin so; all others go to metrics.csv."""


class RunLog(Logger):
    """Writes ``metrics.csv`` with the columns ``step``, ``epoch`` and one for each metric.

    Numbers named ``time/…`` and ``memory/…`` go to ``times.csv`` beside it, so that two runs of one seed have
    equal metrics, and the shares of a histogram, ``weight/…``, to ``weights.csv``.
    Each row is on disk when ``log_metrics`` returns; where the disk cannot take it, a warning says so and
    the row is kept for the next time.

    Args:
        path: the CSV file of metrics; rows that it holds already are kept until ``keep_until`` drops them.

    Attributes:
        latest: the last value of every name that was logged.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
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
        """Empty: a run directory holds one run."""
        return ""

    @property
    def log_dir(self) -> str:
        """The run directory."""
        return str(self._path.parent)

    @property
    def save_dir(self) -> str:
        """The run directory."""
        return self.log_dir

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Adds a row, or completes the last one if it is of the same step."""
        self.latest |= metrics
        values = {key: _text(value) for key, value in metrics.items()}
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
        """Puts all rows on the disk, those too that it could not take before, or warns."""
        for table in self._tables.values():
            table.sync()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """The last chance of rows that the disk could not take."""
        self.sync()

    @rank_zero_only
    def keep_until(self, step: int) -> None:
        """Keeps the rows of steps before ``step`` that the files hold, and drops the rest.

        A continued run calls this with the step that it continues from, a fresh one with 0, so that each
        step stands once in the file.
        """
        for table in self._tables.values():
            table.keep_until(step)


class _Table:
    """A CSV file that grows by rows and, where a new name comes, by columns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = ["step", "epoch"]
        self._rows: list[Row] = []
        self._behind = self._unsynced = False

    def add(self, row: Row) -> None:
        new = [key for key in row if key not in self._columns]
        self._columns += sorted(new)
        same = bool(self._rows) and self._rows[-1]["step"] == row["step"]
        if same:
            self._rows[-1] |= row
        else:
            self._rows.append(row)
        try:
            if same or new or self._behind or not self._path.exists():
                self._rewrite()
            else:
                with open(self._path, "a", newline="", encoding="utf-8", opener=no_follow) as file:
                    csv.DictWriter(file, self._columns).writerow(row)
            self._unsynced = True
        except OSError as error:
            self._complain(error)

    def sync(self) -> None:
        try:
            if self._behind:
                self._rewrite()
            if self._unsynced:
                sync(self._path)
                self._unsynced = False
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._behind:
            warnings.warn(f"{self._path} cannot be written ({error.strerror}); trying again", stacklevel=4)
        self._behind = True

    def keep_until(self, step: int) -> None:
        if self._path.exists():
            self._columns = names(self._path) or self._columns
            kept = (row for row in rows(self._path) if row["step"] < step)
            self._rows = [{name: _text(value) for name, value in row.items()} for row in kept]
            self._rewrite()

    def _rewrite(self) -> None:
        with replaced(self._path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        self._behind = False


def _text(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
