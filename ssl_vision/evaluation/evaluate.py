"""``ssl-vision evaluate``: kNN, linear probe and representation metrics of a checkpoint, as one table."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

from ssl_vision.data import ImageData, Images
from ssl_vision.errors import InputError
from ssl_vision.evaluation.features import embed, embed_views
from ssl_vision.evaluation.probe import ProbeRule, linear_probe
from ssl_vision.evaluation.rebuild import trained_model, untrained_model
from ssl_vision.evaluation.table import Row, render
from ssl_vision.metrics import Alignment, KNNAccuracy, Representation
from ssl_vision.models import Layers, SimCLR
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.complaint import OneLineErrors, one_line
from ssl_vision.runs.folder import RunFolder


class Protocol(NamedTuple):
    """How accuracies are measured: the bank is the labelled train split, the queries are the test split."""

    k: int
    temperature: float
    probe: ProbeRule
    epoch: int
    seed: int


def run(args: Sequence[str]) -> None:
    """Evaluates a checkpoint and prints the table; writes ``evaluation.json`` into the run folder.

    Model and data come from the checkpoint alone; options change the protocol, and ``--data.…`` the data.

    Raises:
        InputError: a checkpoint that cannot be used, absent data, or a wrong option.
    """
    named = bool(args) and not args[0].startswith("-")
    if not named and not {"-h", "--help"} & set(args):
        raise InputError("give the checkpoint, or the run folder, first: ssl-vision evaluate CHECKPOINT")
    checkpoint = read_checkpoint(args[0]) if named else None
    parser = _parser(checkpoint)
    options = parser.parse_args(list(args))
    if checkpoint is None:
        return
    seed = checkpoint.config["seed_everything"]
    if options.k < 1 or not options.temperature > 0:
        raise InputError(f"--k {options.k} and --temperature {options.temperature} must be positive")
    try:
        built = parser.instantiate(options)
    except ValueError as error:
        raise InputError(one_line(str(error))) from error
    data: ImageData = built.data
    data.prepare_data()
    protocol = Protocol(options.k, options.temperature, built.probe, checkpoint.epoch, seed)
    train, test = data.split("train"), data.split("test")
    if not train.labelled.any() or not test.labelled.any():
        raise InputError(
            f"{type(data).__name__} has no labels in train or test: there is nothing to classify"
        )
    rows = list(_trained_rows(trained_model(checkpoint).to(_device(options.device)), data, protocol))
    if options.baselines:
        untrained = untrained_model(checkpoint.config).to(_device(options.device))
        bank, queries = (embed(untrained, split, data.views).backbone for split in (train, test))
        rows += _accuracies("untrained", "backbone", bank, queries, train, test, protocol)
        bank, queries = (split.images.flatten(1).float() / 255 for split in (train, test))
        rows += _accuracies("pixels", "raw", bank, queries, train, test, protocol)
    output = Path(options.output) if options.output else _beside(checkpoint)
    output.write_text(json.dumps([row.as_dict() for row in rows], indent=1), encoding="utf-8")
    print(
        f"{type(data).__name__}: test split ({len(test)} images) against the train split ({len(train)}), "
        f"epoch {protocol.epoch}, seed {seed}\n"
        f"kNN: cosine, k = {min(protocol.k, len(train))}, T = {protocol.temperature:g}. "
        f"linear: {protocol.probe.epochs} epochs of SGD {protocol.probe.lr:g} on frozen features."
    )
    print(render(rows))
    print(f"written to {output}")


def _parser(checkpoint: Checkpoint | None) -> OneLineErrors:
    config = checkpoint.config if checkpoint else {}
    measured = config.get("metrics") or {}
    parser = OneLineErrors(prog="ssl-vision evaluate", description=run.__doc__)
    parser.add_argument("checkpoint", nargs="?", help="A checkpoint file, or a run folder for its last one.")
    parser.add_argument("--k", type=int, default=measured.get("k", 200), help="Neighbours that vote.")
    parser.add_argument(
        "--temperature", type=float, default=measured.get("temperature", 0.1), help="T of the vote."
    )
    parser.add_class_arguments(ProbeRule, "probe")
    parser.add_argument("--baselines", type=bool, default=True, help="Add the untrained network and pixels.")
    parser.add_argument("--device", type=Literal["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--output", type=str | None, default=None, help="JSON file; else in the run folder.")
    parser.add_subclass_arguments(pl.LightningDataModule, "data", required=checkpoint is not None)
    if checkpoint:
        parser.set_defaults({"data": config["data"]})
    return parser


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _beside(checkpoint: Checkpoint) -> Path:
    """The run folder's evaluation.json; that of the checkpoint's own folder where it lies outside a run."""
    run = RunFolder(checkpoint.path.parent.parent)
    return (run if run.config_file.exists() else RunFolder(checkpoint.path.parent)).evaluation_file


def _trained_rows(model: SimCLR, data: ImageData, protocol: Protocol) -> Iterator[Row]:
    train, test = data.split("train"), data.split("test")
    bank = embed(model, train, data.views, title="embed train")
    queries = embed(model, test, data.views, title="embed test")
    first, second = embed_views(model, test, data.views, seed=protocol.seed)
    for layer in Layers._fields:
        yield from _accuracies(
            "trained", layer, getattr(bank, layer), getattr(queries, layer), train, test, protocol
        )
        representation, alignment = Representation(), Alignment()
        representation.update(getattr(queries, layer).cpu(), test.labels)
        alignment.update(getattr(first, layer).cpu(), getattr(second, layer).cpu())
        values = representation.compute() | {"alignment": alignment.compute()}
        for metric, value in values.items():
            yield Row(
                "trained", layer, metric, float(value), "test", epoch=protocol.epoch, seed=protocol.seed
            )


def _accuracies(
    features: str, layer: str, bank: Tensor, queries: Tensor, train: Images, test: Images, protocol: Protocol
) -> Iterator[Row]:
    epoch = protocol.epoch if features == "trained" else 0
    classes = len(train.classes)
    train_labels, test_labels = train.labels.to(bank.device), test.labels.to(bank.device)
    knn = KNNAccuracy(num_classes=classes, k=protocol.k, temperature=protocol.temperature).to(bank.device)
    knn.update(bank, train_labels, "bank")
    knn.update(queries, test_labels, "query")
    k = min(protocol.k, int(train.labelled.sum()))
    yield Row(
        features, layer, "knn_top1", float(knn.compute()), "test", "train", k, protocol.temperature, epoch,
        protocol.seed,
    )  # fmt: skip
    try:
        probe = linear_probe(
            bank, train_labels, queries, test_labels,
            num_classes=classes, rule=protocol.probe, seed=protocol.seed, progress=len(bank) > 10_000,
        )  # fmt: skip
    except ValueError as error:
        raise InputError(f"linear probe of {features} {layer}: {error}") from error
    yield Row(
        features, layer, "linear_top1", probe.test_top1, "test", "train", epoch=epoch, seed=protocol.seed
    )
