"""``ssl-vision evaluate``: accuracies and representation metrics of a checkpoint under named protocols."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ssl_vision.cli.classes import allowed_classes
from ssl_vision.cli.fit_help import class_help
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError
from ssl_vision.evaluation.beside import beside
from ssl_vision.evaluation.cache import FeatureCache
from ssl_vision.evaluation.evaluate_encoder import evaluate_encoder, names_encoder
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.measure import Network, measured
from ssl_vision.evaluation.options import chosen_protocols, evaluation_parser, instantiated
from ssl_vision.evaluation.processes import ALONE, Processes, process_group
from ssl_vision.evaluation.results import Evaluation, check_output, written
from ssl_vision.evaluation.splits import Splits, data_place, same_data
from ssl_vision.methods import Layers
from ssl_vision.pretrained.rebuild import ROOT_NEEDED, safe_data, trained_model, untrained_model
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint, run_beside
from ssl_vision.runs.evaluation_file import merged, read_rows
from ssl_vision.runs.evaluation_summary import evaluation_summary
from ssl_vision.runs.folder import RunFolder, owned
from ssl_vision.runs.registry import Run
from ssl_vision.runs.settings import class_name
from ssl_vision.tracking.artifacts import SCHEME, fetched_checkpoint
from ssl_vision.tracking.wandb import mirror_rows


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Evaluate a checkpoint, print the tables, and add the rows to evaluation.json in the run directory.

    ``--encoder`` evaluates an encoder that was trained elsewhere; its rows are written only with
    ``--output``.

    Model and data are those of the checkpoint. Options change the protocol, and ``--data.…`` changes the
    data. Images of another data set, ``--data CLASS``, are given the size and the normalisation of the run
    unless ``--data.views.…`` sets others. A row replaces the row of the same measurement (data, root, folder,
    split, protocol, layer, k, temperature, …). A measurement that fails is reported on stderr, and its
    earlier row is kept. Nothing is downloaded unless ``--data.download true`` is given. A run of another user
    requires ``--data.root``. torchrun starts several processes, which share the embedding.

    Returns:
        The arguments for the report of the run; None if other data than the run's, images that were prepared
        in another way, or an earlier epoch were measured.

    Raises:
        InputError: the checkpoint, an option or ``evaluation.json`` is invalid, the data are missing, or no
            measurement of the trained network was possible.
    """
    if (text := class_help(args)) is not None:
        print(text)
        return None
    if names_encoder(args):
        with process_group() as processes:
            evaluate_encoder(args, run.__doc__, processes)
        return None
    if not args or args[0].startswith("-"):
        if not {"-h", "--help"} & set(args):
            raise InputError(
                "give the checkpoint, or the run directory, first: ssl-vision evaluate CHECKPOINT; "
                "an encoder without a run is named by --encoder"
            )
        evaluation_parser(run.__doc__, data_required=False).parse_args(list(args))
        return None
    with process_group() as processes:
        evaluated = evaluate_run(args, processes)
    print(evaluated.result)
    if evaluated.error is not None:
        raise evaluated.error
    print(f"written to {evaluated.result.output}")
    return evaluated.page


class EvaluatedRun(NamedTuple):
    """Result of the evaluation of a run."""

    result: Evaluation
    error: InputError | None
    """The error of writing the rows, which does not lose the result."""
    page: dict[str, Any] | None
    """Arguments of the report of the run, as `run` returns them."""


def evaluate_run(args: Sequence[str], processes: Processes = ALONE) -> EvaluatedRun:
    """Evaluate a checkpoint as `run` does, without printing the result.

    Args:
        args: arguments of the command, the checkpoint first.
        processes: processes that embed the images; all but the first exit here.

    Raises:
        InputError: as `run`.
    """
    remote = args[0].startswith(SCHEME)
    checkpoint = read_checkpoint(fetched_checkpoint(args[0]) if remote else args[0])
    allow_class = allowed_classes(args)
    folder = run_beside(checkpoint)
    folder.check_links()
    by_user = not remote and owned(folder.path, checkpoint.path)
    stored = _data(checkpoint, args, allow_class, own=by_user)
    parser = evaluation_parser(run.__doc__, stored)
    options = parser.parse_args(list(args))
    if options.weights is not None:
        raise InputError("--weights requires --encoder; --beside NAME=FILE evaluates weights beside a run")
    if options.data.init_args.get("root") == ROOT_NEEDED:
        raise InputError(f"{checkpoint.path}: belongs to another user: give the images with --data.root")
    if options.output is not None:
        check_output(options.output)
    if "seed" in options.data.init_args and options.data.init_args.seed is None:  # of the views in the report
        options.data.init_args.seed = checkpoint.config.get("seed_everything")
    built = instantiated(parser, options)
    data: ImageData = built.data
    data.check_evaluated()
    data_options = options.data.as_dict()
    own = same_data(checkpoint.config["data"], data)
    protocols = chosen_protocols(built, checkpoint.config.get("metrics") or {}, data, own=own)
    read_rows(folder.evaluation_file, checkpoint.config)
    with processes.first_before_others():
        splits = Splits.labelled(
            data, place=data_place(checkpoint.config["data"], stored, data_options, data)
        )
    networks = _networks(checkpoint, options, splits, folder=folder, allow_class=allow_class)
    trained = networks[0].extractor
    rows = measured(
        protocols, networks, splits, seed=trained.seed, pixels=options.baselines, processes=processes
    )
    every = [row.as_dict() for each in rows.values() for row in each]
    output = Path(options.output) if options.output else folder.evaluation_file
    if not options.output:
        every = merged(read_rows(output, checkpoint.config), every)
    unwritten = written(output, every)
    of_last_epoch = folder.config_file.exists() and checkpoint.epoch == Run(folder.path).epoch
    if by_user:  # another user's config must not set the target of an upload
        values = evaluation_summary(every, checkpoint.config, epoch=checkpoint.epoch)
        summary = values if of_last_epoch else {}
        mirror_rows(folder, checkpoint.config, every, name=output.stem, summary=summary)
    about = f"epoch {checkpoint.epoch}, seed {trained.seed}"
    result = Evaluation.of(protocols, rows, splits, about, output=output)
    of_training = own and "settings" not in splits.place and (of_last_epoch or checkpoint.path == folder.last)
    if not (of_training and options.report) or options.output:
        return EvaluatedRun(result, unwritten, None)
    page = {
        "path": folder.path,
        "data": data,
        "embedded": trained if trained.is_embedded else None,
        "allow_class": allow_class,
    }
    return EvaluatedRun(result, unwritten, page)


def _data(
    checkpoint: Checkpoint, args: Sequence[str], allow_class: Sequence[str], *, own: bool
) -> dict[str, Any]:
    """Return the data section that options of the command line modify."""
    path, config = checkpoint.path, checkpoint.config
    try:
        return safe_data(config, where=path, owned=own, allow_class=allow_class)
    except InputError:
        if not any(arg == "--data" or arg.startswith("--data=") for arg in args):
            raise
        # Data of another class are evaluated. Only the views of the run's own data are used, whose class is
        # part of this package.
        views = {"views": config["data"]["init_args"]["views"]}
        other = {"class_path": "ssl_vision.data.CIFAR10", "init_args": views}
        return safe_data({**config, "data": other}, where=path, owned=own)


def _networks(
    checkpoint: Checkpoint, options: Any, splits: Splits, *, folder: RunFolder, allow_class: Sequence[str]
) -> list[Network]:
    """Return the trained network, those of ``--beside`` and, as a baseline, the untrained network."""
    device, config = chosen_device(options.device), checkpoint.config
    same_classes = checkpoint.classes in (None, list(splits.images["train"].classes))
    trained_here = same_classes and class_name(config["data"]) == splits.data
    common: dict[str, Any] = {
        "description": config["model"],
        "cache": FeatureCache(folder.features) if options.cache else None,
        "seed": config["seed_everything"],
    }
    untrained = partial(untrained_model, config, where=checkpoint.path, allow_class=allow_class)
    trained = FeatureExtractor(
        trained_model(checkpoint, allow_class=allow_class).to(device), splits, **common,
        layers=Layers._fields, online=checkpoint.online if trained_here else None,
    )  # fmt: skip
    networks = [
        Network("trained", trained, checkpoint.epoch),
        *beside(
            options.beside,
            splits,
            lambda: untrained().backbone,
            device=device,
            cache=common["cache"],
            seed=common["seed"],
            allow_class=allow_class,
        ),
    ]
    if options.baselines:
        extractor = FeatureExtractor(untrained().to(device), splits, **common, layers=("backbone",))
        networks.append(Network("untrained", extractor))
    return networks
