"""``ssl-vision evaluate``: accuracies and representation metrics under named protocols."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl

from ssl_vision.cli.fit_help import class_help
from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import ImageData
from ssl_vision.encoders import Timm
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureCache, FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.probe import ProbeRule
from ssl_vision.evaluation.processes import first_before_others, sharing
from ssl_vision.evaluation.protocol import chosen_protocols, shipped
from ssl_vision.evaluation.results import Evaluation, check_output, write_rows
from ssl_vision.evaluation.splits import Splits, data_place, same_data
from ssl_vision.evaluation.subject import compared, run_protocols
from ssl_vision.methods import Layers
from ssl_vision.pretrained.encoder_options import (
    add_encoder_options,
    instantiated,
    named_encoder,
    names_encoder,
    with_classes,
)
from ssl_vision.pretrained.opened_run import ROOT_NEEDED, OpenedRun, open_run
from ssl_vision.runs.config import class_name
from ssl_vision.runs.evaluation_file import DEFAULT_PROTOCOL, evaluation_summary, merged, read_rows
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


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Print the help of the command, or evaluate and print the tables.

    Returns:
        The arguments for the report of the run; None if there is no run, or if an earlier epoch, other data
        or differently prepared images were measured.

    Raises:
        InputError: as `evaluated`.
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
        evaluation_parser().parse_args(list(args))
        return None
    with sharing():
        result, page = evaluated(args)
    print(result)
    if result.output is not None:
        print(f"written to {result.output}")
    return page


def evaluated(args: Sequence[str]) -> tuple[Evaluation, dict[str, Any] | None]:
    """Evaluate a run, a checkpoint or an encoder, and write the rows.

    Args:
        args: arguments of the command.

    Returns:
        The result, and the arguments for the report of the run.

    Raises:
        InputError: the checkpoint, the encoder, an option or ``evaluation.json`` is invalid, the data are
            missing or have no labels, no measurement of the trained network was possible, or the rows cannot
            be written.
    """
    return _evaluated_encoder(args) if names_encoder(args) else _evaluated_run(args)


def _evaluated_run(args: Sequence[str]) -> tuple[Evaluation, dict[str, Any] | None]:
    """Evaluate a run or a checkpoint, and add the rows to its evaluation.json, to ``--output`` or to W&B."""
    run = open_run(args[0], allow_class=allowed_classes(args))
    config, checkpoint, folder = run.config, run.checkpoint, run.folder
    data_of_run = _data_of_run(run, args)
    parser = evaluation_parser(data_of_run)
    options = parser.parse_args(list(args))
    if options.weights is not None:
        raise InputError("--weights requires --encoder; --other NAME=FILE evaluates weights beside a run")
    if options.data.init_args.get("root") == ROOT_NEEDED:
        raise InputError(f"{checkpoint.path}: belongs to another user: give the images with --data.root")
    seed = config["seed_everything"]
    if "seed" in options.data.init_args and options.data.init_args.seed is None:
        options.data.init_args.seed = seed  # of the views in the report
    built = instantiated(parser, options)
    data: ImageData = built.data
    data.check_evaluated()
    own_data = same_data(config["data"], data)
    metrics = config.get("metrics") or {}
    protocols = chosen_protocols(built, metrics if own_data else metrics | {"k": None})
    read_rows(folder.evaluation_file)
    place = data_place(config["data"], data_of_run, options.data.as_dict(), data)
    splits = _labelled_splits(built, place)
    same_classes = checkpoint.classes in (None, list(splits.images["train"].classes))
    trained = FeatureExtractor(
        run.trained().to(chosen_device(options.device)), splits,
        description=config["model"], layers=Layers._fields, seed=seed, epoch=checkpoint.epoch,
        cache=FeatureCache(folder.features) if options.cache else None,
        online=checkpoint.online if same_classes and class_name(config["data"]) == splits.data else None,
    )  # fmt: skip
    subject = compared(
        trained, f"epoch {checkpoint.epoch}, seed {seed}", run.untrained,
        start=open_run(folder.start, allow_class=run.allow_class) if folder.start.exists() else None,
        others=options.other, baseline=options.baselines, pixels=options.baselines,
        allow_class=run.allow_class,
    )  # fmt: skip
    result = run_protocols(subject, protocols)
    rows = [row.as_dict() for row in result.rows]
    if options.output is None:
        rows = merged(read_rows(folder.evaluation_file), rows)
    output, is_last = Path(options.output or folder.evaluation_file), run.is_last_epoch
    if run.owned:  # another user's config must not set the target of an upload
        values = evaluation_summary(rows, config, epoch=checkpoint.epoch) if is_last else {}
        log_rows(folder, config, rows, name=output.stem, summary=values)
    result = write_rows(result, rows, output)
    of_training = own_data and "settings" not in place and (is_last or checkpoint.path == folder.last)
    if options.output is not None or not (of_training and options.report):
        return result, None
    page = {"path": folder.path, "data": data, "allow_class": run.allow_class}
    return result, page | {"embedded": trained if trained.is_embedded else None}


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


def _evaluated_encoder(args: Sequence[str]) -> tuple[Evaluation, None]:
    """Evaluate an encoder beside its untrained weights and raw pixels, and write the rows to ``--output``.

    A timm model is given images of the size and normalisation that its published weights expect, unless
    ``--data.views.…`` says otherwise; any other encoder is given those of the data set.
    """
    args, allow_class = with_classes(args), allowed_classes(args)
    if not any(arg.partition("=")[0] == "--data" for arg in args) and not {"-h", "--help"} & set(args):
        raise InputError("--encoder requires --data, the labelled images: CIFAR10, ImageFolder, …")
    parser = evaluation_parser()
    options = parser.parse_args(args)
    explicit = parser.parse_args(args, defaults=False)
    if options.checkpoint is not None:
        raise InputError("give a checkpoint or --encoder, not both")
    for name in ("cache", "report"):
        if explicit.get(name):
            raise InputError(f"--{name} true requires a run: --encoder has no run directory to write to")
    named = named_encoder(parser, options)
    given = explicit.data.as_dict()
    settings = given.setdefault("init_args", {})
    if isinstance(named.encoder, Timm):
        _set_views(options.data.init_args, settings, named.encoder)
    built = instantiated(parser, options)
    data: ImageData = built.data
    data.check_evaluated()
    protocols = chosen_protocols(built, {})
    if "root" in options.data.init_args:
        settings["root"] = options.data.init_args.root
    splits = _labelled_splits(built, data_place({}, {}, given, data))
    encoder = named.encoder.to(chosen_device(options.device))
    images = f"images of {data.views.size} pixels with mean {data.views.mean} and std {data.views.std}"
    subject = compared(
        FeatureExtractor(encoder, splits, description=str(encoder)), f"{named.about}, {images}",
        named.untrained, others=options.other,
        baseline=options.baselines and not named.sets_weights, pixels=options.baselines,
        allow_class=allow_class,
    )  # fmt: skip
    result = run_protocols(subject, protocols)
    if options.output is not None:
        result = write_rows(result, [row.as_dict() for row in result.rows], Path(options.output))
    return result, None


def _labelled_splits(options: Any, place: Mapping[str, str]) -> Splits:
    """Read the labelled images, after checking that the results can be written."""
    if options.output is not None:
        check_output(options.output)
    with first_before_others():
        options.data.prepare_data()
        return Splits.of(options.data, place=place).checked()


def _set_views(options: Any, explicit: dict[str, Any], encoder: Timm) -> None:
    """Set the size and normalisation that an encoder expects, unless they are given."""
    expected = {"size": encoder.image_size, "mean": encoder.mean, "std": encoder.std}
    explicit["views"] = expected | explicit.get("views", {})
    for name, value in explicit["views"].items():
        options.views[name] = value
    if options.get("image_size") is not None:  # the size of stored files
        explicit.setdefault("image_size", explicit["views"]["size"])
        options.image_size = explicit["image_size"]


def _options(
    k: int | None = None,
    temperature: float | None = None,
    baselines: bool = True,
    cache: bool = True,
    report: bool = True,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    output: str | None = None,
) -> None:
    """Declare options of the command.

    Args:
        k: Number of neighbours in protocol macl. Default: metrics.k of the run if its own data are evaluated
            without --protocol, otherwise that of the data set (200, 20 for the digits).
        temperature: Temperature T of the kNN vote. Default: metrics.temperature of the run without
            --protocol, otherwise that of the protocol.
        baselines: Evaluate the untrained network and raw pixels, too.
        cache: Cache features in the run directory.
        report: Write report.html.
        device: Device of the networks.
        output: JSON file for the rows. Default: they are added to evaluation.json in the run directory.
    """


def evaluation_parser(data: dict[str, Any] | None = None) -> ArgumentParser:
    """Return the parser of the command.

    Args:
        data: data section of the run, the default of ``--data``; None while no run is known.
    """
    parser = ArgumentParser(prog="ssl-vision evaluate", description=_DESCRIPTION)
    parser.add_argument(
        "checkpoint", nargs="?", help="Checkpoint file, or a run directory for its last checkpoint."
    )
    add_encoder_options(
        parser, encoder="Evaluate this encoder instead of a checkpoint; requires --data", views=False
    )
    parser.add_argument(
        "--other",
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
    parser.add_function_arguments(_options, as_group=False)
    parser.add_class_arguments(
        ProbeRule, "probe", help=f"Options of the linear probe of protocol {DEFAULT_PROTOCOL}."
    )
    add_allow_class(parser)
    parser.add_subclass_arguments(
        pl.LightningDataModule,
        "data",
        as_group=False,
        required=False,
        help="Evaluate on other images: CIFAR10, ImageFolder, …; --data.help lists them.",
    )
    if data:
        parser.set_defaults({"data": data})
    return parser
