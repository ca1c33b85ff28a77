"""``ssl-vision evaluate``: accuracies and representation metrics under named protocols."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl

from ssl_vision.cli.fit_help import class_help
from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import ImageData
from ssl_vision.encoders import Encoder, Timm
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureCache, FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.probe import ProbeRule
from ssl_vision.evaluation.processes import first_before_others, sharing
from ssl_vision.evaluation.protocol import chosen_protocols, shipped
from ssl_vision.evaluation.results import Evaluation, Stored, check_output, written
from ssl_vision.evaluation.splits import Splits, data_place, same_data
from ssl_vision.evaluation.subject import Network, Subject, networks_beside, run_protocols
from ssl_vision.methods import Layers
from ssl_vision.pretrained.encoder_options import (
    add_encoder_options,
    instantiated,
    named_encoder,
    names_encoder,
    with_classes,
)
from ssl_vision.pretrained.opened_run import ROOT_NEEDED, OpenedRun, open_run
from ssl_vision.runs.evaluation_file import DEFAULT_PROTOCOL, evaluation_summary, merged, read_rows
from ssl_vision.runs.settings import class_name
from ssl_vision.tracking.wandb import log_rows

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

_SEED = 0
"""Seed of random views and of the classifiers."""


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Print the help of the command, or evaluate and print the tables.

    Returns:
        The arguments for the report of the run; None if there is no run, or if an earlier epoch, other data
        or differently prepared images were measured.

    Raises:
        InputError: as `evaluated`, or the results cannot be written, which does not prevent their output.
    """
    if (text := class_help(args)) is not None:
        print(text)
        return None
    if not names_encoder(args) and (not args or args[0].startswith("-")):
        if not {"-h", "--help"} & set(args):
            raise InputError(
                "give the checkpoint, or the run directory, first: ssl-vision evaluate CHECKPOINT; "
                "an encoder without a run is named by --encoder"
            )
        evaluation_parser(data_required=False).parse_args(list(args))
        return None
    with sharing():
        stored = evaluated(args)
    print(stored.result)
    if stored.error is not None:
        raise stored.error
    if stored.result.output is not None:
        print(f"written to {stored.result.output}")
    return stored.page


def evaluated(args: Sequence[str]) -> Stored:
    """Evaluate a run, a checkpoint or an encoder, and store the rows.

    Args:
        args: arguments of the command.

    Raises:
        InputError: the checkpoint, the encoder, an option or ``evaluation.json`` is invalid, the data are
            missing or have no labels, or no measurement of the trained network was possible.
    """
    request = EncoderRequest(args) if names_encoder(args) else RunRequest(args)
    if request.options.output is not None:
        check_output(request.options.output)
    with first_before_others():
        splits = Splits.labelled(request.data, place=request.place())
    subject = request.subject(splits).checked()
    return request.stored(subject, run_protocols(subject, request.protocols))


class RunRequest:
    """The evaluation of a run: its data, its protocols, its networks, and where rows are stored.

    Args:
        args: arguments of the command, the checkpoint or the run first.

    Raises:
        InputError: the checkpoint, an option or ``evaluation.json`` is invalid.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.run = run = open_run(args[0], allow_class=allowed_classes(args))
        self._data_of_run = _data_of_run(run, args)
        parser = evaluation_parser(self._data_of_run)
        self.options = options = parser.parse_args(list(args))
        if options.weights is not None:
            raise InputError(
                "--weights requires --encoder; --beside NAME=FILE evaluates weights beside a run"
            )
        if options.data.init_args.get("root") == ROOT_NEEDED:
            raise InputError(
                f"{run.checkpoint.path}: belongs to another user: give the images with --data.root"
            )
        if "seed" in options.data.init_args and options.data.init_args.seed is None:
            options.data.init_args.seed = run.config["seed_everything"]  # of the views in the report
        built = instantiated(parser, options)
        self.data: ImageData = built.data
        self.data.check_evaluated()
        self.own_data = same_data(run.config["data"], self.data)
        metrics = run.config.get("metrics") or {}
        self.protocols = chosen_protocols(built, metrics, self.data, own=self.own_data)
        read_rows(run.folder.evaluation_file)

    def place(self) -> dict[str, str]:
        """Fields of a row that distinguish the data from those of the run."""
        given = self.options.data.as_dict()
        return data_place(self.run.config["data"], self._data_of_run, given, self.data)

    def subject(self, splits: Splits) -> Subject:
        """The trained network, those of ``--beside`` and, as a baseline, the untrained network."""
        run, checkpoint, options = self.run, self.run.checkpoint, self.options
        device, seed = chosen_device(options.device), run.config["seed_everything"]
        same_classes = checkpoint.classes in (None, list(splits.images["train"].classes))
        trained_here = same_classes and class_name(run.config["data"]) == splits.data
        extractor = partial(
            FeatureExtractor, splits=splits, description=run.config["model"], seed=seed,
            cache=FeatureCache(run.folder.features) if options.cache else None,
        )  # fmt: skip
        trained = extractor(
            run.trained().to(device),
            layers=Layers._fields,
            online=checkpoint.online if trained_here else None,
        )
        beside = networks_beside(
            options.beside, trained, lambda: run.untrained().backbone, allow_class=run.allow_class
        )
        networks = [Network("trained", trained, checkpoint.epoch), *beside]
        if options.baselines:
            baseline = extractor(run.untrained().to(device), layers=("backbone",))
            networks.append(Network("untrained", baseline))
        about = f"epoch {checkpoint.epoch}, seed {seed}"
        return Subject(tuple(networks), splits, about, pixels=options.baselines)

    def stored(self, subject: Subject, result: Evaluation) -> Stored:
        """Write the rows to evaluation.json or ``--output``, and to W&B if the run is the user's."""
        run, folder, options = self.run, self.run.folder, self.options
        output, rows = folder.evaluation_file, [row.as_dict() for row in result.rows]
        if options.output:
            output = Path(options.output)
        else:
            rows = merged(read_rows(output), rows)
        error = written(output, rows)
        of_last_epoch = run.is_last_epoch
        if run.owned:  # another user's config must not set the target of an upload
            values = evaluation_summary(rows, run.config, epoch=run.checkpoint.epoch) if of_last_epoch else {}
            log_rows(folder, run.config, rows, name=output.stem, summary=values)
        result = dataclasses.replace(result, output=output)
        current = of_last_epoch or run.checkpoint.path == folder.last
        of_training = self.own_data and current and "settings" not in subject.splits.place
        if not (of_training and options.report) or options.output:
            return Stored(result, error)
        trained = subject.networks[0].extractor
        page = {
            "path": folder.path,
            "data": self.data,
            "embedded": trained if trained.is_embedded else None,
            "allow_class": run.allow_class,
        }
        return Stored(result, error, page)


def _data_of_run(run: OpenedRun, args: Sequence[str]) -> dict[str, Any]:
    """Return the data section that options of the command line modify."""
    try:
        return run.data_section()
    except InputError:
        if not any(arg == "--data" or arg.startswith("--data=") for arg in args):
            raise
        # Data of another class are evaluated. Only the views of the run's own data are used, whose class is
        # part of this package.
        views = {"views": run.config["data"]["init_args"]["views"]}
        return run.data_section({"class_path": "ssl_vision.data.CIFAR10", "init_args": views})


class EncoderRequest:
    """The evaluation of an encoder beside its untrained weights and raw pixels.

    A timm model is given images of the size and normalisation that its published weights expect, unless
    ``--data.views.…`` says otherwise; any other encoder is given those of the data set.

    Args:
        args: arguments of the command.

    Raises:
        InputError: an option is invalid, or weights are missing or do not match the encoder.
    """

    def __init__(self, args: Sequence[str]) -> None:
        args, self.allow_class = with_classes(args), allowed_classes(args)
        if not any(arg.partition("=")[0] == "--data" for arg in args) and not {"-h", "--help"} & set(args):
            raise InputError("--encoder requires --data, the labelled images: CIFAR10, ImageFolder, …")
        parser = evaluation_parser()
        self.options = options = parser.parse_args(args)
        explicit = parser.parse_args(args, defaults=False)
        if options.checkpoint is not None:
            raise InputError("give a checkpoint or --encoder, not both")
        for name in ("cache", "report"):
            if explicit.get(name):
                raise InputError(f"--{name} true requires a run: --encoder has no run directory to write to")
        self.named = named_encoder(parser, options)
        self._data_options = explicit.data.as_dict()
        settings = self._data_options.setdefault("init_args", {})
        if isinstance(self.named.encoder, Timm):
            _set_views(options.data.init_args, settings, self.named.encoder)
        built = instantiated(parser, options)
        self.data: ImageData = built.data
        self.data.check_evaluated()
        self.protocols = chosen_protocols(built, {}, self.data, own=False)
        if "root" in options.data.init_args:
            settings["root"] = options.data.init_args.root

    def place(self) -> dict[str, str]:
        """Fields of a row that distinguish the data from other data of their name."""
        return data_place({}, {}, self._data_options, self.data)

    def subject(self, splits: Splits) -> Subject:
        """The encoder, those of ``--beside`` and, as a baseline, the encoder with its initial weights."""
        device, options, named = chosen_device(self.options.device), self.options, self.named

        def extractor(encoder: Encoder) -> FeatureExtractor:
            return FeatureExtractor(
                encoder.to(device), splits, description=str(encoder), layers=("backbone",), cache=None,
                seed=_SEED,
            )  # fmt: skip

        trained = extractor(named.encoder)
        networks = [
            Network("trained", trained),
            *networks_beside(options.beside, trained, named.untrained, allow_class=self.allow_class),
        ]
        if options.baselines and not named.sets_weights:
            networks.append(Network("untrained", extractor(named.untrained())))
        views = self.data.views
        images = f"images of {views.size} pixels with mean {views.mean} and std {views.std}"
        return Subject(tuple(networks), splits, f"{named.about}, {images}", pixels=options.baselines)

    def stored(self, subject: Subject, result: Evaluation) -> Stored:
        """Write the rows to ``--output``, if it is given."""
        if self.options.output is None:
            return Stored(result)
        output = Path(self.options.output)
        error = written(output, [row.as_dict() for row in result.rows])
        return Stored(dataclasses.replace(result, output=output), error)


def _set_views(options: Any, explicit: dict[str, Any], encoder: Timm) -> None:
    """Set the size and normalisation that an encoder expects, unless they are given."""
    expected = {"size": encoder.image_size, "mean": encoder.mean, "std": encoder.std}
    explicit["views"] = expected | explicit.get("views", {})
    for name, value in explicit["views"].items():
        options.views[name] = value
    if options.get("image_size") is not None:  # the size of stored files
        explicit.setdefault("image_size", explicit["views"]["size"])
        options.image_size = explicit["image_size"]


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
        f"Default: {DEFAULT_PROTOCOL}.",
    )
    parser.add_argument(
        "--k",
        type=int | None,
        default=None,
        help=f"Number of neighbours in protocol {DEFAULT_PROTOCOL}. Default: metrics.k of the run if its own "
        "data are evaluated without --protocol, otherwise that of the data set (200, 20 for the digits).",
    )
    parser.add_argument(
        "--temperature",
        type=float | None,
        default=None,
        help="Temperature T of the kNN vote. Default: metrics.temperature, as for k.",
    )
    parser.add_class_arguments(
        ProbeRule, "probe", help=f"Options of the linear probe of protocol {DEFAULT_PROTOCOL}."
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
