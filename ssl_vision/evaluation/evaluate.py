"""``ssl-vision evaluate``: accuracies and representation metrics of a checkpoint under named protocols."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl

from ssl_vision.cli.classes import add_allow_class, allowed_classes
from ssl_vision.cli.parser import OneLineErrors, one_line
from ssl_vision.data import ImageData, ImageFolder
from ssl_vision.errors import InputError
from ssl_vision.evaluation.cache import FeatureCache
from ssl_vision.evaluation.feature_extractor import FeatureExtractor, Pixels, Splits
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.heap import unmap_large_blocks
from ssl_vision.evaluation.knn import KNN
from ssl_vision.evaluation.measure import run_protocol
from ssl_vision.evaluation.measurement import Source
from ssl_vision.evaluation.probe import Linear, ProbeRule
from ssl_vision.evaluation.protocol import Protocol, read_protocol, shipped
from ssl_vision.evaluation.rebuild import ROOT_NEEDED, safe_data, trained_model, untrained_model
from ssl_vision.evaluation.rows import Row, render
from ssl_vision.methods import Layers
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.evaluation_file import merged, own_data, read_rows
from ssl_vision.runs.folder import RunFolder, below_home, owned, significant
from ssl_vision.tracking.wandb import mirror_rows

_DEFAULT = "macl"


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Evaluates a checkpoint, prints the tables and adds the rows to ``evaluation.json`` in the run folder.

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
        raise InputError("give the checkpoint, or the run folder, first: ssl-vision evaluate CHECKPOINT")
    checkpoint = read_checkpoint(args[0]) if named else None
    allowed = allowed_classes(args)
    if checkpoint is None:
        _parser().parse_args(list(args))
        return None
    folder = _beside(checkpoint)
    folder.check_links()
    by_user = owned(folder.path, checkpoint.path)
    stored = _data(checkpoint, args, allowed, own=by_user)
    parser = _parser(stored)
    options = parser.parse_args(list(args))
    if options.data.init_args.get("root") == ROOT_NEEDED:
        raise InputError(f"{checkpoint.path}: belongs to another user: give the images with --data.root")
    seed = checkpoint.config["seed_everything"]
    try:
        built = parser.instantiate(options)
    except ValueError as error:
        raise InputError(one_line(str(error))) from error
    data: ImageData = built.data
    data.check("train", data.eval_split)
    given = options.data.as_dict()
    own = _same(checkpoint.config["data"], data)
    protocols = _protocols(built, checkpoint.config.get("metrics") or {}, data, own=own)
    read_rows(folder.evaluation_file, checkpoint.config)
    unmap_large_blocks()
    data.prepare_data()
    splits = Splits.of(data, place=_place(checkpoint.config["data"], stored, given, data))
    train, test = splits.images["train"], splits.images["test"]
    if not train.labelled.any() or not test.labelled.any():
        raise InputError(
            f"{type(data).__name__} has no labels in train or {data.eval_split}: there is nothing to classify"
        )
    cache = FeatureCache(folder.features) if options.cache else None
    device = chosen_device(options.device)
    description = checkpoint.config["model"]
    trained_on = str(checkpoint.config["data"]["class_path"]).rpartition(".")[2]
    trained = FeatureExtractor(
        trained_model(checkpoint, allowed=allowed).to(device), splits,
        description=description, layers=Layers._fields, cache=cache, seed=seed,
        online=checkpoint.online if trained_on == splits.data else None,
    )  # fmt: skip
    untrained = None
    if options.baselines:
        untrained = FeatureExtractor(
            untrained_model(checkpoint.config, where=checkpoint.path, allowed=allowed).to(device), splits,
            description=description, layers=("backbone",), cache=cache, seed=seed,
        )  # fmt: skip
    pixels, rows = Pixels(splits), dict[str, list[Row]]()
    for protocol in protocols:
        rows[protocol.name] = [
            row
            for source in _sources(protocol, trained, untrained, pixels, checkpoint.epoch)
            for row in run_protocol(protocol, source, splits, seed=seed)
        ]
        for embedded in filter(None, (trained, untrained)):
            embedded.forget()
    every = [row.as_dict() for found in rows.values() for row in found]
    if not any(row["features"] == "trained" for row in every):
        raise InputError("nothing of the trained network could be measured: the lines above say why")
    output = Path(options.output) if options.output else folder.evaluation_file
    if not options.output:
        every = merged(read_rows(output, checkpoint.config), every)
    unwritten = _written(output, json.dumps(every, indent=1))
    if by_user:  # no one else's run says where to upload
        mirror_rows(folder, checkpoint.config, every, name=output.stem)
    split = "test split" if data.eval_split == "test" else "validation split, as there is no test split"
    print(
        f"{type(data).__name__}: {split} ({len(test)} images) against the train split ({len(train)}), "
        f"epoch {checkpoint.epoch}, seed {seed}"
    )
    for protocol in protocols:
        print(f"{protocol.name}. {_described(protocol, len(train))}")
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


def _parser(data: dict[str, Any] | None = None) -> OneLineErrors:
    parser = OneLineErrors(prog="ssl-vision evaluate", description=run.__doc__)
    parser.add_argument("checkpoint", nargs="?", help="A checkpoint file, or a run folder for its last one.")
    parser.add_argument(
        "--protocol",
        action="append",
        type=str,
        help=f"One of {', '.join(shipped())}, a .yaml file of your own, or all; may be repeated.",
    )
    parser.add_argument(
        "--k",
        type=int | None,
        default=None,
        help=f"Neighbours that vote in {_DEFAULT}. Default: metrics.k of the run on its own data without "
        "--protocol, otherwise that of the data set (200, and 20 for the digits).",
    )
    parser.add_argument(
        "--temperature", type=float | None, default=None, help="T of the vote, likewise metrics.temperature."
    )
    parser.add_class_arguments(ProbeRule, "probe", help=f"The linear layer of {_DEFAULT}.")
    parser.add_argument("--baselines", type=bool, default=True, help="Add the untrained network and pixels.")
    parser.add_argument(
        "--cache", type=bool, default=True, help="Keep features beside the checkpoint, for the next time."
    )
    parser.add_argument("--report", type=bool, default=True, help="Write report.html into the run folder.")
    parser.add_argument("--device", type=Literal["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--output", type=str | None, default=None,
        help="JSON file of these rows alone; else they are added to evaluation.json in the run folder.",
    )  # fmt: skip
    add_allow_class(parser)
    parser.add_subclass_arguments(pl.LightningDataModule, "data", required=data is not None)
    if data:
        parser.set_defaults({"data": data})
    return parser


def _protocols(options: Any, metrics: dict[str, Any], data: ImageData, *, own: bool) -> list[Protocol]:
    """What was asked for; the options, and the run's own T and, on its own data, k, change the default one.

    Raises:
        InputError: no such protocol, two of one name, or an option without the protocol that it changes.
    """
    names = options.protocol or [_DEFAULT]
    protocols = [read_protocol(name, k=data.knn_k) for name in dict.fromkeys(_expanded(names))]
    if len({protocol.name for protocol in protocols}) < len(protocols):
        raise InputError(f"--protocol: two of {', '.join(names)} have one name")
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


def _expanded(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield from shipped() if name == "all" else [name]


def _changed(protocol: Protocol, change: dict[str, Any], probe: ProbeRule) -> Protocol:
    def new(measurement: Any) -> Any:
        if isinstance(measurement, KNN):
            return dataclasses.replace(measurement, **change)
        return Linear(**dataclasses.asdict(probe)) if isinstance(measurement, Linear) else measurement

    return protocol._replace(measurements=tuple(map(new, protocol.measurements)))


def _beside(checkpoint: Checkpoint) -> RunFolder:
    """The run folder; the checkpoint's own folder where it lies outside a run."""
    run = RunFolder(checkpoint.path.parent.parent)
    return run if run.config_file.exists() else RunFolder(checkpoint.path.parent)


def _sources(
    protocol: Protocol,
    trained: FeatureExtractor,
    untrained: FeatureExtractor | None,
    pixels: Pixels,
    epoch: int,
) -> Iterator[Source]:
    for layer in protocol.layers:
        yield Source("trained", layer, trained, protocol.layers, epoch)
    if untrained is not None:
        trained.forget()
        yield Source("untrained", "backbone", untrained)
        untrained.forget()
        yield Source("pixels", "raw", pixels)


def _same(own: Mapping[str, Any], data: ImageData) -> bool:
    """Whether the data are of the run's data set; images of one's own are told apart by their folders."""
    name = own_data({"data": own})["data"]
    if not isinstance(data, ImageFolder):
        return type(data).__name__ == name
    options = own.get("init_args") or {}
    return type(data).__name__ == name and _at(options, data) and options.get("test", "test") == data.test


def _at(options: Mapping[str, Any], data: ImageData) -> bool:
    """Whether the data lie in the root of some options."""
    return "root" in options and data.root.resolve() == Path(options["root"]).expanduser().resolve()


_NO_SETTINGS = {
    "class_path", "root", "test", "batch_size", "eval_batch_size", "seed", "val", "val_folder",
    "val_share", "views.compile",
}  # fmt: skip
"""Options of data that rows name elsewhere, or that do not change what evaluation sees."""


def _place(
    own: Mapping[str, Any], stored: Mapping[str, Any], given: Mapping[str, Any], data: ImageData
) -> dict[str, str]:
    """Root, folder and settings, as far as they apply, of the data of an evaluation.

    Args:
        own: the data of the run's config.
        stored: the same with every option that has a default, or another class where the run's is not built.
        given: the data as options say now.
        data: what they made.
    """
    place: dict[str, str] = {}
    mine = own.get("init_args") or {}
    if "root" in given["init_args"]:
        place["root"] = str(mine["root"]) if _at(mine, data) else below_home(str(data.root.resolve()))
    if isinstance(data, ImageFolder):
        place["folder"] = data.test if data.eval_split == "test" else data.val_folder
    before, now = (significant({"data": each}) for each in (stored, given))
    names = {key: key.removeprefix("data.").removeprefix("init_args.") for key in now}
    changed = [key for key in now if before.get(key) != now[key] and names[key] not in _NO_SETTINGS]
    if changed:
        place["settings"] = ", ".join(f"{names[key]} {now[key]}" for key in sorted(changed))
    return place


def _described(protocol: Protocol, count: int) -> str:
    """The measurements in words, with a k that does not exceed the rows there are."""
    shown = [
        dataclasses.replace(measurement, k=min(measurement.k, count))
        if isinstance(measurement, KNN)
        else measurement
        for measurement in protocol.measurements
    ]
    return ". ".join(filter(None, map(str, shown))) + "."
