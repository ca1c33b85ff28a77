"""The results of an evaluation: displayed as tables, and written to a file."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

from ssl_vision.display import html_table
from ssl_vision.errors import InputError
from ssl_vision.evaluation.knn import KNN
from ssl_vision.evaluation.measurement import Measurement, labels_text
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.rows import Row, aligned, table
from ssl_vision.evaluation.splits import Splits
from ssl_vision.runs.atomic_files import write_text


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of `ssl_vision.evaluate`: a table for each protocol, printed or displayed in a notebook.

    Args:
        rows: all measured numbers, each with its protocol.
        subject: images and network that were evaluated.
        protocols: descriptions of the measurements by the name of the protocol.
        output: file that the rows are written to; None without one.
    """

    rows: tuple[Row, ...]
    subject: str
    protocols: Mapping[str, str]
    output: Path | None = None

    @classmethod
    def of(
        cls,
        protocols: Sequence[Protocol],
        rows: Mapping[str, Sequence[Row]],
        splits: Splits,
        about: str,
        *,
        output: Path | None = None,
    ) -> Self:
        """Return the result of an evaluation from its rows by protocol and a description of the network."""
        train, test = splits.images["train"], splits.images["test"]
        split = "test split" if splits.evaluated == "test" else "validation split, as there is no test split"
        return cls(
            rows=tuple(row for each in rows.values() for row in each),
            subject=f"{splits.data}: {split} ({len(test)} images) against "
            f"{len(train)} labelled train images, {about}",
            protocols={each.name: described_protocol(each, len(train)) for each in protocols},
            output=output,
        )

    def value(self, metric: str, **fields: object) -> float:
        """Return the value of one metric, accuracies in [0, 1].

        Args:
            metric: name of the metric, such as ``"knn_top1"``.
            fields: other fields of `Row` that the row must have, such as ``k=20``. By default, ``features``
                is ``"trained"`` and ``layer`` is ``"backbone"``; raw pixels have ``features="pixels"`` and
                ``layer="raw"``.

        Raises:
            InputError: no row fits, or several.
        """
        fields = {"features": "trained", "layer": "backbone"} | fields | {"metric": metric}
        matches = [row.value for row in self.rows if fields.items() <= row.as_dict().items()]
        if len(matches) != 1:
            names = ", ".join(dict.fromkeys(row.metric for row in self.rows))
            wanted = ", ".join(f"{name} {value}" for name, value in fields.items())
            raise InputError(f"{len(matches)} rows have {wanted}; the metrics are {names}")
        return matches[0]

    def __str__(self) -> str:
        lines = [self.subject]
        for name, description in self.protocols.items():
            cells = table(self._rows_of(name))
            lines += [f"{name}. {description}", aligned(cells) if cells else "nothing could be measured"]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(self.subject)}</p>"]
        for name, description in self.protocols.items():
            parts.append(f"<p><b>{escape(name)}</b>: {escape(description)}</p>")
            if cells := table(self._rows_of(name)):
                parts.append(html_table(cells))
        return "".join(parts)

    def _rows_of(self, protocol: str) -> list[Row]:
        return [row for row in self.rows if row.protocol == protocol]


def described_protocol(protocol: Protocol, count: int) -> str:
    """Describe the measurements in words, with k limited to the number of labelled training images.

    Measurements that differ only in their share of the labels are described together.
    """
    shares: dict[str, dict[str, None]] = {}
    for text in filter(None, (str(_limited(each, count)) for each in protocol.measurements)):
        match = re.fullmatch(r"(.+), with (\S+) of the labels", text)
        same, share = match.groups() if match else (text, "all")
        shares.setdefault(same, {})[share] = None
    parts = []
    for text, (*others, last) in shares.items():
        parts.append(text + labels_text(" and ".join(filter(None, (", ".join(others), last)))))
    return ". ".join(parts) + "."


def _limited(measurement: Measurement, count: int) -> Measurement:
    """Return a measurement with k at most ``count``."""
    if isinstance(measurement, KNN):
        return dataclasses.replace(measurement, k=min(measurement.k, count))
    return measurement


def check_output(output: str) -> None:
    """Check that a file can be written, before anything is computed.

    Raises:
        InputError: the path is empty or a directory, or its directory cannot be made or written to.
    """
    path = Path(output)
    if not output or path.is_dir():
        raise InputError(f"--output {f'{output} is a directory' if output else 'is empty'}: give a file")
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--output {output}: {parent} cannot be written to")


def written(output: Path, rows: Sequence[Mapping[str, Any]]) -> InputError | None:
    """Write rows to a file; an error is returned, so that the results can be printed before it is raised."""
    try:
        write_text(output, json.dumps(rows, indent=1))
    except InputError as error:
        return error
    return None
