"""Options of ``ssl-vision evaluate``, and the protocols that they choose."""

import dataclasses
from typing import Any, Literal

import pytorch_lightning as pl

from ssl_vision.cli.classes import add_allow_class
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError
from ssl_vision.evaluation.knn import KNN
from ssl_vision.evaluation.probe import Linear, ProbeRule
from ssl_vision.evaluation.protocol import Protocol, read_protocols, shipped
from ssl_vision.pretrained.encoder_options import add_encoder_options

_DEFAULT = "macl"

_DESCRIPTION = """\
Evaluate a checkpoint, print the tables, and add the rows to evaluation.json in the run directory.

``--encoder`` evaluates an encoder that was trained elsewhere; its rows are written only with ``--output``.

Model and data are those of the checkpoint. Options change the protocol, and ``--data.…`` changes the data.
Images of another data set, ``--data CLASS``, are given the size and the normalisation of the run unless
``--data.views.…`` sets others. A row replaces the row of the same measurement (data, root, folder, split,
protocol, layer, k, temperature, …). A measurement that fails is reported on stderr, and its earlier row is
kept. Nothing is downloaded unless ``--data.download true`` is given. A run of another user requires
``--data.root``. torchrun starts several processes, which share the embedding.
"""


def evaluation_parser(data: dict[str, Any] | None = None, *, data_required: bool = True) -> ArgumentParser:
    """Return the parser of the command.

    Args:
        data: data section of the run, the default of ``--data``; None while no run is known.
        data_required: True if the command needs data.
    """
    parser = ArgumentParser(prog="ssl-vision evaluate", description=_DESCRIPTION)
    parser.add_argument(
        "checkpoint", nargs="?", help="Checkpoint file, or a run directory for its last checkpoint."
    )
    add_encoder_options(
        parser, encoder="Evaluate this encoder instead of a checkpoint; requires --data", views=False
    )
    parser.add_argument(
        "--beside",
        action="append",
        type=str,
        default=[],
        metavar="NAME=FILE",
        help="Evaluate another network, too, and name its rows NAME. FILE is a run, a checkpoint, an "
        "exported encoder, or weights of the encoder that is evaluated; may be repeated.",
    )
    parser.add_argument(
        "--protocol",
        action="append",
        type=str,
        help=f"One of {', '.join(shipped())}, the path of your own .yaml file, or all; may be repeated. "
        f"Default: {_DEFAULT}.",
    )
    parser.add_argument(
        "--k",
        type=int | None,
        default=None,
        help=f"Number of neighbours in protocol {_DEFAULT}. Default: metrics.k of the run if its own data "
        "are evaluated without --protocol, otherwise the default of the data set (200, 20 for the digits).",
    )
    parser.add_argument(
        "--temperature",
        type=float | None,
        default=None,
        help="Temperature T of the kNN vote. Default: metrics.temperature, as for k.",
    )
    parser.add_class_arguments(
        ProbeRule, "probe", help=f"Options of the linear probe of protocol {_DEFAULT}."
    )
    parser.add_argument(
        "--baselines", type=bool, default=True, help="Evaluate the untrained network and raw pixels, too."
    )
    parser.add_argument("--cache", type=bool, default=True, help="Cache features in the run directory.")
    parser.add_argument("--report", type=bool, default=True, help="Write report.html.")
    parser.add_argument(
        "--device", type=Literal["auto", "cpu", "cuda"], default="auto", help="Device of the networks."
    )
    parser.add_argument(
        "--output", type=str | None, default=None,
        help="JSON file for the rows. Default: they are added to evaluation.json in the run directory.",
    )  # fmt: skip
    add_allow_class(parser)
    parser.add_subclass_arguments(
        pl.LightningDataModule,
        "data",
        as_group=False,
        required=data_required,
        help="Evaluate on other images: CIFAR10, ImageFolder, …; --data.help lists them.",
    )
    if data:
        parser.set_defaults({"data": data})
    return parser


def chosen_protocols(options: Any, metrics: dict[str, Any], data: ImageData, *, own: bool) -> list[Protocol]:
    """Read the requested protocols; options, and the run's own T and k, modify the default protocol.

    k of the run is used only on its own data.

    Raises:
        InputError: a protocol is unknown, two have the same name, or an option modifies a protocol that was
            not requested.
    """
    names = options.protocol or [_DEFAULT]
    protocols = read_protocols(names, k=data.knn_k)
    change = {name: getattr(options, name) for name in ("k", "temperature")}
    if not options.protocol:
        metrics = metrics if own else metrics | {"k": None}
        change = {name: metrics.get(name) if value is None else value for name, value in change.items()}
    change = {name: value for name, value in change.items() if value is not None}
    other_probe = options.probe != ProbeRule()
    if _DEFAULT not in (protocol.name for protocol in protocols):
        if change or other_probe:
            raise InputError(f"--k, --temperature and --probe change the protocol {_DEFAULT} only")
        return protocols
    try:
        return [_changed(p, change, options.probe) if p.name == _DEFAULT else p for p in protocols]
    except ValueError as error:
        raise InputError(f"--{error}") from error


def _changed(protocol: Protocol, change: dict[str, Any], probe: ProbeRule) -> Protocol:
    def new(measurement: Any) -> Any:
        if isinstance(measurement, KNN):
            return dataclasses.replace(measurement, **change)
        if isinstance(measurement, Linear):
            return Linear(**dataclasses.asdict(probe))
        return measurement

    return protocol._replace(measurements=tuple(map(new, protocol.measurements)))
