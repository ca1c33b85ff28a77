"""From features to rows: all measurements of a protocol on one representation."""

import sys
from collections.abc import Iterator
from typing import Any

import torch

from ssl_vision.descriptions import stored_description
from ssl_vision.evaluation.measurement import Measurement, Source
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.rows import Row
from ssl_vision.evaluation.splits import Splits


def run_protocol(protocol: Protocol, source: Source, splits: Splits, *, seed: int) -> Iterator[Row]:
    """The rows of a protocol's measurements of one representation.

    A measurement that the features do not allow, as where training diverges, is named on stderr with the
    reason and left out.

    Args:
        protocol: the measurements.
        source: the representation.
        splits: the images and their labels.
        seed: seed of the order of rows in training, of held-out rows and of noise.
    """
    grouped: dict[type[Measurement], list[Measurement]] = {}
    for measurement in protocol.measurements:
        grouped.setdefault(type(measurement), []).append(measurement)
    values_of = {kind: kind.measure_all(group, source, splits, seed) for kind, group in grouped.items()}
    for measurement in protocol.measurements:
        try:
            values = list(next(values_of[type(measurement)]))
        except (ValueError, torch.OutOfMemoryError) as error:
            reason = " ".join(str(error).split())
            where = f"{protocol.name}: {measurement.kind} of {source.features} {source.layer}"
            print(f"{where} is left out: {reason}", file=sys.stderr)
            continue
        for metric, value, about in values:
            fields: dict[str, Any] = splits.place | about | stored_description(metric)
            yield Row(
                source.features, source.layer, metric, value, splits.evaluated, epoch=source.epoch, seed=seed,
                data=splits.data, protocol=protocol.name, **fields,
                weights=source.network.weights if source.network else None,
            )  # fmt: skip
