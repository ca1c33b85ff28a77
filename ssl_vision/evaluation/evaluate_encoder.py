"""``ssl-vision evaluate --encoder``: an encoder that was trained elsewhere, under the same protocols."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from torch import nn

from ssl_vision.cli.classes import allowed_classes
from ssl_vision.cli.parser import ArgumentParser, one_line
from ssl_vision.data import ImageData
from ssl_vision.encoders import Encoder, ResNet, Timm, as_encoder, build
from ssl_vision.errors import InputError
from ssl_vision.evaluation.beside import beside
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.measure import Network, measured
from ssl_vision.evaluation.options import chosen_protocols, evaluation_parser, instantiated
from ssl_vision.evaluation.processes import Processes
from ssl_vision.evaluation.results import Evaluation, check_output, written
from ssl_vision.evaluation.splits import Splits, data_place
from ssl_vision.hub import local_file
from ssl_vision.runs.weights import load_encoder_weights, read_weights

_OPTION = "--encoder"
_TIMM = "timm/"

_SEED = 0
"""Seed of the untrained weights, of random views and of the classifiers."""


def names_encoder(args: Sequence[str]) -> bool:
    """Return True for arguments with ``--encoder``."""
    return any(arg.partition("=")[0] == _OPTION for arg in args)


def evaluate_encoder(args: Sequence[str], description: str | None, processes: Processes) -> None:
    """Evaluate an encoder beside its untrained weights and raw pixels, and print the tables.

    A timm model is given images of the size and normalisation that its published weights expect, unless
    ``--data.views.…`` says otherwise; any other encoder is given those of the data set.

    Args:
        args: arguments of the command.
        description: text of ``--help``.
        processes: processes that embed the images; all but the first exit here.

    Raises:
        InputError: weights are missing or do not match the encoder, the data are missing or have no labels,
            or nothing could be measured.
    """
    args, allow_class = list(_with_classes(args)), allowed_classes(args)
    if not any(arg.partition("=")[0] == "--data" for arg in args) and not {"-h", "--help"} & set(args):
        raise InputError(f"{_OPTION} requires --data, the labelled images: CIFAR10, ImageFolder, …")
    parser = evaluation_parser(description)
    options = parser.parse_args(args)
    if options.checkpoint is not None:
        raise InputError(f"give a checkpoint or {_OPTION}, not both")
    explicit = parser.parse_args(args, defaults=False)
    for name in ("cache", "report"):
        if explicit.get(name):
            raise InputError(f"--{name} true requires a run: {_OPTION} has no run directory to write to")
    if options.weights == "":
        raise InputError("--weights is empty: give a file, or hf://OWNER/NAME")
    if options.output is not None:
        check_output(options.output)
    trained, untrained = _networks(parser, options)
    data_options = explicit.data.as_dict()
    settings = data_options.setdefault("init_args", {})
    if isinstance(trained, Timm):
        expected = {"size": trained.image_size, "mean": trained.mean, "std": trained.std}
        settings["views"] = expected | settings.get("views", {})
        for name, value in settings["views"].items():
            options.data.init_args.views[name] = value
        if options.data.init_args.get("image_size") is not None:  # the size of stored files
            settings.setdefault("image_size", settings["views"]["size"])
            options.data.init_args.image_size = settings["image_size"]
    built = instantiated(parser, options)
    data: ImageData = built.data
    data.check_evaluated()
    protocols = chosen_protocols(built, {}, data, own=False)
    if "root" in options.data.init_args:
        settings["root"] = options.data.init_args.root
    with processes.first_before_others():
        splits = Splits.labelled(data, place=data_place({}, {}, data_options, data))
    device = chosen_device(options.device)

    def network(name: str, encoder: Encoder) -> Network:
        extractor = FeatureExtractor(
            encoder.to(device), splits, description=str(encoder), layers=("backbone",), cache=None, seed=_SEED
        )
        return Network(name, extractor)

    networks = [
        network("trained", trained),
        *beside(
            options.beside, splits, lambda: _built(built.encoder),
            device=device, cache=None, seed=_SEED, allow_class=allow_class,
        ),
    ]  # fmt: skip
    if options.baselines and untrained is not None:
        networks.append(network("untrained", untrained))
    rows = measured(protocols, networks, splits, seed=_SEED, pixels=options.baselines, processes=processes)
    output = None if options.output is None else Path(options.output)
    every = [row.as_dict() for each in rows.values() for row in each]
    unwritten = None if output is None else written(output, every)
    views = data.views
    about = f"{_described(options)}, images of {views.size} pixels with mean {views.mean} and std {views.std}"
    print(Evaluation.of(protocols, rows, splits, about))
    if unwritten is not None:
        raise unwritten
    if output is not None:
        print(f"written to {output}")


def _with_classes(args: Sequence[str]) -> Iterator[str]:
    """Replace ``timm/NAME`` by the class and its option."""
    previous = ""
    for arg in args:
        option, equals, value = arg.partition("=")
        named = option == _OPTION and equals
        name = value if named else arg
        if (named or previous == _OPTION) and name.startswith(_TIMM):
            yield f"{_OPTION}=Timm" if named else "Timm"
            yield f"{_OPTION}.name={name.removeprefix(_TIMM)}"
        else:
            yield arg
        previous = arg


def _networks(parser: ArgumentParser, options: Any) -> tuple[Encoder, Encoder | None]:
    """Return the encoder with its weights and, unless it sets its own weights, the encoder without them.

    Raises:
        InputError: weights are missing or do not match the encoder.
    """
    downloaded = _settings(options).get("pretrained", False)
    if downloaded and options.weights is not None:
        raise InputError(f"give --weights or {_OPTION}.pretrained true, not both")
    factory = instantiated(parser, options).encoder
    encoder = _built(factory)
    if options.weights is None:
        if not isinstance(encoder, (ResNet, Timm)):
            return encoder, None
        if downloaded:
            options = options.clone()
            options.encoder.init_args.pretrained = False
            return encoder, _built(instantiated(parser, options).encoder)
        more = f", or timm's own with {_OPTION}.pretrained true" if isinstance(encoder, Timm) else ""
        raise InputError(
            f"{_OPTION} {type(encoder).__name__} has random weights: give some with --weights FILE{more}"
        )
    with local_file(options.weights) as file:
        file = file.expanduser()
        state = read_weights(file, option="--weights")
        load_encoder_weights(encoder, state, file, options=f"{_OPTION} and its options")
    return encoder, _built(factory)


def _built(factory: Callable[[], nn.Module]) -> Encoder:
    """Build an encoder with the random weights of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        try:
            return as_encoder(build(factory))
        except ValueError as error:
            raise InputError(f"{_OPTION}: {one_line(str(error))}") from error


def _described(options: Any) -> str:
    """Describe the encoder and its weights in a few words."""
    encoder = options.encoder
    name = encoder.class_path if isinstance(encoder, Namespace) else encoder.__qualname__
    model = str(_settings(options).get("name", name.rpartition(".")[2]))
    return f"{model} with weights of {options.weights}" if options.weights else model


def _settings(options: Any) -> dict[str, Any]:
    """Return the options of the encoder's class, or {} for a function that builds the encoder."""
    encoder = options.encoder
    return encoder.as_dict().get("init_args", {}) if isinstance(encoder, Namespace) else {}
