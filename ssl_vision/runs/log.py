"""metrics.csv: every logged number of a run, one row a step, whatever else logs."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

Row = dict[str, str]


class RunLog(Logger):
    """Writes ``metrics.csv`` with the columns ``step``, ``epoch`` and one for each metric.

    Each row is on disk when ``log_metrics`` returns. A new metric widens the table; what was logged
    before stays. Numbers of one step that come in several calls share a row.

    Args:
        path: the CSV file; rows that it holds already are kept until ``keep_until`` drops them.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
        self._columns: list[str] = ["step", "epoch"]
        self._rows: list[Row] = []

    @property
    def name(self) -> str:
        """The run folder's name."""
        return self._path.parent.name

    @property
    def version(self) -> str:
        """Empty: a run folder holds one run."""
        return ""

    @property
    def log_dir(self) -> str:
        """The run folder."""
        return str(self._path.parent)

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return self.log_dir

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Adds a row, or completes the last one if it is of the same step."""
        row = {"step": str(step)} | {key: _text(value) for key, value in metrics.items()}
        new = [key for key in row if key not in self._columns]
        self._columns += sorted(new)
        if self._rows and self._rows[-1]["step"] == row["step"]:
            self._rows[-1] |= row
            self._rewrite()
            return
        self._rows.append(row)
        if new or not self._path.exists():
            self._rewrite()
            return
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    @rank_zero_only
    def keep_until(self, step: int) -> None:
        """Keeps the file's rows of steps before ``step`` and drops the rest.

        A continued run calls this with the step that it continues from, a fresh one with 0, so that each
        step stands once in the file.
        """
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                rows = [{k: v for k, v in row.items() if v} for row in reader]
                self._columns = list(reader.fieldnames or self._columns)
            self._rows = [row for row in rows if int(row["step"]) < step]
            self._rewrite()

    def _rewrite(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(self._path.name + ".partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        os.replace(partial, self._path)


def _text(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
