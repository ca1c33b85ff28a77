"""``ssl-vision evaluate``: accuracies and representation metrics of a checkpoint under named protocols."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.cli.classes import allowed_classes
from ssl_vision.cli.parser import one_line
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError
from ssl_vision.evaluation.cache import FeatureCache
from ssl_vision.evaluation.data_place import data_place, same_data
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.heap import unmap_large_blocks
from ssl_vision.evaluation.measure import run_protocol
from ssl_vision.evaluation.measurement import Source
from ssl_vision.evaluation.options import chosen_protocols, described_protocol, evaluation_parser
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.rebuild import ROOT_NEEDED, safe_data, trained_model, untrained_model
from ssl_vision.evaluation.rows import Row, render
from ssl_vision.evaluation.splits import Pixels, Splits
from ssl_vision.methods import Layers
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.evaluation_file import merged, read_rows
from ssl_vision.runs.evaluation_summary import evaluation_summary
from ssl_vision.runs.folder import RunFolder, owned
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.artifacts import SCHEME, fetched_checkpoint
from ssl_vision.tracking.wandb import mirror_rows


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Evaluate a checkpoint, print the tables, and add the rows to evaluation.json in the run directory.

    Model and data come from the checkpoint alone; options change the protocol, and ``--data.…`` the data.
    Another data set, ``--data CLASS``, is brought to the size and the normalisation of the run unless
    ``--data.views.…`` says otherwise. A row replaces that of the same measurement (data, root, folder, split,
    protocol, layer, k, temperature, …); all others stay. A measurement that fails is named on stderr and left
    out, so that its earlier row stays. Nothing is downloaded unless ``--data.download true`` is given, and a
    run of another user needs ``--data.root``.

    Returns:
        What the run's page is made of; None where other data than the run's were measured.

    Raises:
        InputError: a checkpoint that cannot be used, absent data, a wrong option, an ``evaluation.json`` that
            cannot be read, or nothing of the trained network that could be measured.
    """
    named = bool(args) and not args[0].startswith("-")
    if not named and not {"-h", "--help"} & set(args):
        raise InputError("give the checkpoint, or the run directory, first: ssl-vision evaluate CHECKPOINT")
    remote = named and args[0].startswith(SCHEME)
    place = fetched_checkpoint(args[0]) if remote else args[0] if named else None
    checkpoint = None if place is None else read_checkpoint(place)
    allowed = allowed_classes(args)
    if checkpoint is None:
        evaluation_parser(run.__doc__).parse_args(list(args))
        return None
    folder = _beside(checkpoint)
    folder.check_links()
    by_user = not remote and owned(folder.path, checkpoint.path)
    stored = _data(checkpoint, args, allowed, own=by_user)
    parser = evaluation_parser(run.__doc__, stored)
    options = parser.parse_args(list(args))
    if options.data.init_args.get("root") == ROOT_NEEDED:
        raise InputError(f"{checkpoint.path}: belongs to another user: give the images with --data.root")
    try:
        built = parser.instantiate(options)
    except ValueError as error:
        raise InputError(one_line(str(error))) from error
    data: ImageData = built.data
    data.check("train", data.eval_split)
    given = options.data.as_dict()
    own = same_data(checkpoint.config["data"], data)
    protocols = chosen_protocols(built, checkpoint.config.get("metrics") or {}, data, own=own)
    read_rows(folder.evaluation_file, checkpoint.config)
    unmap_large_blocks()
    data.prepare_data()
    splits = Splits.of(data, place=data_place(checkpoint.config["data"], stored, given, data))
    train, test = splits.images["train"], splits.images["test"]
    if not train.labelled.any() or not test.labelled.any():
        raise InputError(
            f"{type(data).__name__} has no labels in train or {data.eval_split}: there is nothing to classify"
        )
    cache = FeatureCache(folder.features) if options.cache else None
    trained, untrained = _networks(checkpoint, options, splits, cache=cache, allowed=allowed)
    rows = {
        protocol.name: list(_rows(protocol, trained, untrained, splits, checkpoint.epoch))
        for protocol in protocols
    }
    every = [row.as_dict() for measured in rows.values() for row in measured]
    if not any(row["features"] == "trained" for row in every):
        raise InputError("nothing of the trained network could be measured: the lines above say why")
    output = Path(options.output) if options.output else folder.evaluation_file
    if not options.output:
        every = merged(read_rows(output, checkpoint.config), every)
    unwritten = _written(output, json.dumps(every, indent=1))
    if by_user:  # no one else's run says where to upload
        of_last_epoch = folder.config_file.exists() and checkpoint.epoch == Run(folder.path).epoch
        values = evaluation_summary(every, checkpoint.config, epoch=checkpoint.epoch)
        summary = values if of_last_epoch else {}
        mirror_rows(folder, checkpoint.config, every, name=output.stem, summary=summary)
    split = "test split" if data.eval_split == "test" else "validation split, as there is no test split"
    print(
        f"{type(data).__name__}: {split} ({len(test)} images) against the train split ({len(train)}), "
        f"epoch {checkpoint.epoch}, seed {trained.seed}"
    )
    for protocol in protocols:
        print(f"{protocol.name}. {described_protocol(protocol, len(train))}")
        print(render(rows[protocol.name]) or "nothing could be measured")
    if unwritten is not None:
        raise unwritten
    print(f"written to {output}")
    if not options.report or options.output or not own or not folder.config_file.exists():
        return None
    return {
        "path": folder.path, "data": data, "embedded": trained if trained.made else None, "allowed": allowed,
    }  # fmt: skip


def _written(output: Path, text: str) -> InputError | None:
    """Writes a file; returns the error where that fails, so that the tables can be printed first."""
    try:
        with atomic_write(output) as partial:
            partial.write_text(text, encoding="utf-8")
    except InputError as error:
        return error
    return None


def _data(
    checkpoint: Checkpoint, args: Sequence[str], allowed: Sequence[str], *, own: bool
) -> dict[str, Any]:
    """The data section that the command line changes."""
    path, config = checkpoint.path, checkpoint.config
    try:
        return safe_data(config, where=path, owned=own, allowed=allowed)
    except InputError:
        if not any(arg == "--data" or arg.startswith("--data=") for arg in args):
            raise
        # Another class is evaluated. Of the run's own only the views matter, whose class is this package's.
        views = {"views": config["data"]["init_args"]["views"]}
        other = {"class_path": "ssl_vision.data.CIFAR10", "init_args": views}
        return safe_data({**config, "data": other}, where=path, owned=own)


def _beside(checkpoint: Checkpoint) -> RunFolder:
    """The run directory; the checkpoint's own folder where it lies outside a run."""
    run = RunFolder(checkpoint.path.parent.parent)
    return run if run.config_file.exists() else RunFolder(checkpoint.path.parent)


def _networks(
    checkpoint: Checkpoint,
    options: Any,
    splits: Splits,
    *,
    cache: FeatureCache | None,
    allowed: Sequence[str],
) -> tuple[FeatureExtractor, FeatureExtractor | None]:
    """Return the trained network, and the untrained one unless there are to be no baselines."""
    device, config = chosen_device(options.device), checkpoint.config
    trained_on = str(config["data"]["class_path"]).rpartition(".")[2]
    common: dict[str, Any] = {
        "description": config["model"], "cache": cache, "seed": config["seed_everything"]
    }  # fmt: skip
    trained = FeatureExtractor(
        trained_model(checkpoint, allowed=allowed).to(device), splits, **common,
        layers=Layers._fields, online=checkpoint.online if trained_on == splits.data else None,
    )  # fmt: skip
    if not options.baselines:
        return trained, None
    network = untrained_model(config, where=checkpoint.path, allowed=allowed).to(device)
    return trained, FeatureExtractor(network, splits, **common, layers=("backbone",))


def _rows(
    protocol: Protocol,
    trained: FeatureExtractor,
    untrained: FeatureExtractor | None,
    splits: Splits,
    epoch: int,
) -> Iterator[Row]:
    """Measure all layers of the trained network and, with an untrained one, both baselines."""
    for layer in protocol.layers:
        source = Source("trained", layer, trained, protocol.layers, epoch)
        yield from run_protocol(protocol, source, splits, seed=trained.seed)
    trained.forget()
    if untrained is not None:
        baselines = Source("untrained", "backbone", untrained), Source("pixels", "raw", Pixels(splits))
        for source in baselines:
            yield from run_protocol(protocol, source, splits, seed=trained.seed)
        untrained.forget()
