"""Measurement of networks under protocols, which yields rows of results."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ssl_vision.descriptions import stored_description
from ssl_vision.encoders import measure_num_features
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.measurement import Measurement, Source
from ssl_vision.evaluation.processes import Processes, sharing
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.rows import Row
from ssl_vision.evaluation.splits import Pixels, Splits


class Network(NamedTuple):
    """A network that is measured."""

    name: str
    """Name in rows; see `Row.features`."""
    extractor: FeatureExtractor
    epoch: int = 0
    """Number of epochs that a run trained the network for."""


def measured(
    protocols: Sequence[Protocol],
    networks: Sequence[Network],
    splits: Splits,
    *,
    seed: int,
    pixels: bool,
    processes: Processes,
) -> dict[str, list[Row]]:
    """Measure networks, and raw pixels, under protocols.

    A network without the layers of a protocol is measured at the encoder.

    Args:
        protocols: layers and measurements.
        networks: the networks, of which the first is the trained one.
        splits: the images whose pixels are measured.
        seed: seed of the order of rows in training, of held-out rows and of noise.
        pixels: True to measure raw pixels, too.
        processes: processes that embed the images; all but the first exit here.

    Returns:
        Rows by the name of the protocol.

    Raises:
        InputError: a network does not accept images of the size that it is given, or nothing of the trained
            network could be measured.
    """
    for name, extractor, _ in networks:
        try:
            views = extractor.splits.views
            measure_num_features(extractor.encoder, views.size, views.channels)
        except ValueError as error:
            raise InputError(f"{name}: {error}; --data.views.size sets the size of the images") from error
    rows: dict[str, list[Row]] = {}
    embedding = [network.extractor.network for network in networks]
    with sharing(processes, embedding, list(splits.images.values())):
        if pixels and any(images.digest for images in splits.images.values()):
            print("raw pixels are left out: the images are decoded for each batch", file=sys.stderr)
            pixels = False
        for protocol in protocols:
            results = rows[protocol.name] = []
            for name, extractor, epoch in networks:
                known = [layer for layer in protocol.layers if layer in extractor.layers]
                layers = tuple(known or ["backbone"])
                for layer in layers:
                    source = Source(name, layer, extractor, layers, epoch)
                    results += run_protocol(protocol, source, extractor.splits, seed=seed)
                extractor.forget()
            if pixels:
                results += run_protocol(protocol, Source("pixels", "raw", Pixels(splits)), splits, seed=seed)
    if not any(row.features == networks[0].name for each in rows.values() for row in each):
        raise InputError(
            f"nothing of the {networks[0].name} network could be measured: the lines above say why"
        )
    return rows


def run_protocol(protocol: Protocol, source: Source, splits: Splits, *, seed: int) -> Iterator[Row]:
    """Measure one representation under a protocol and yield the rows.

    A measurement that is not possible, for example because training diverges, is omitted and reported on
    stderr with the reason. Equal rows, of kNN with different k above the number of images, are yielded once.
    The arguments are those of `Measurement.measure`.
    """
    yielded: list[Row] = []
    grouped: dict[type[Measurement], list[Measurement]] = {}
    for measurement in protocol.measurements:
        grouped.setdefault(type(measurement), []).append(measurement)
    values_of = {kind: kind.measure_all(group, source, splits, seed) for kind, group in grouped.items()}
    for measurement in protocol.measurements:
        try:
            values = list(next(values_of[type(measurement)]))
        except (ValueError, torch.OutOfMemoryError) as error:
            reason = " ".join(str(error).split())
            subject = f"{protocol.name}: {measurement.kind} of {source.features} {source.layer}"
            print(f"{subject} is left out: {reason}", file=sys.stderr)
            continue
        for metric, value, about in values:
            fields: dict[str, Any] = splits.place | about | stored_description(metric)
            row = Row(
                source.features, source.layer, metric, value, splits.evaluated, epoch=source.epoch, seed=seed,
                data=splits.data, protocol=protocol.name, **fields,
                weights=source.network.weights if source.network else None,
            )  # fmt: skip
            if row not in yielded:
                yielded.append(row)
                yield row
