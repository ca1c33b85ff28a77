"""The results of an evaluation: printed as tables, and written to a file."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.errors import InputError
from ssl_vision.evaluation.knn import KNN
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.rows import Row, render
from ssl_vision.evaluation.splits import Splits
from ssl_vision.runs.atomic_files import atomic_write


def print_results(
    protocols: Sequence[Protocol], rows: Mapping[str, Sequence[Row]], splits: Splits, about: str
) -> None:
    """Print what was evaluated, and a table for each protocol.

    Args:
        protocols: the protocols.
        rows: rows by the name of the protocol.
        splits: the images.
        about: description of the network.
    """
    train, test = splits.images["train"], splits.images["test"]
    split = "test split" if splits.evaluated == "test" else "validation split, as there is no test split"
    print(f"{splits.data}: {split} ({len(test)} images) against the train split ({len(train)}), {about}")
    for protocol in protocols:
        print(f"{protocol.name}. {described_protocol(protocol, len(train))}")
        print(render(rows[protocol.name]) or "nothing could be measured")


def described_protocol(protocol: Protocol, count: int) -> str:
    """Describe the measurements in words, with k limited to the number of training images."""
    shown = [
        dataclasses.replace(measurement, k=min(measurement.k, count))
        if isinstance(measurement, KNN)
        else measurement
        for measurement in protocol.measurements
    ]
    return ". ".join(filter(None, map(str, shown))) + "."


def written(output: Path, rows: Sequence[Mapping[str, Any]]) -> InputError | None:
    """Write rows to a file; an error is returned, so that the results can be printed before it is raised."""
    try:
        with atomic_write(output) as partial:
            partial.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    except InputError as error:
        return error
    return None
