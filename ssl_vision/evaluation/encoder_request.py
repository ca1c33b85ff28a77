"""The evaluation of an encoder that was trained elsewhere, as the command line requests it."""

import dataclasses
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
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.options import chosen_protocols, evaluation_parser, instantiated
from ssl_vision.evaluation.results import Evaluation, Stored, check_output, written
from ssl_vision.evaluation.splits import Splits, data_place
from ssl_vision.evaluation.subject import Network, Subject, networks_beside
from ssl_vision.hub import local_file
from ssl_vision.runs.weights import load_encoder_weights, read_weights

_OPTION = "--encoder"
_TIMM = "timm/"

_SEED = 0
"""Seed of the untrained weights, of random views and of the classifiers."""


def names_encoder(args: Sequence[str]) -> bool:
    """Return True for arguments with ``--encoder``."""
    return any(arg.partition("=")[0] == _OPTION for arg in args)


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
        args, self.allow_class = list(_with_classes(args)), allowed_classes(args)
        if not any(arg.partition("=")[0] == "--data" for arg in args) and not {"-h", "--help"} & set(args):
            raise InputError(f"{_OPTION} requires --data, the labelled images: CIFAR10, ImageFolder, …")
        parser = evaluation_parser()
        self.options = options = parser.parse_args(args)
        explicit = parser.parse_args(args, defaults=False)
        self._check(explicit)
        self.trained, self.untrained = _networks(parser, options)
        self._data_options = explicit.data.as_dict()
        settings = self._data_options.setdefault("init_args", {})
        if isinstance(self.trained, Timm):
            _set_views(options.data.init_args, settings, self.trained)
        built = instantiated(parser, options)
        self._factory = built.encoder
        self.data: ImageData = built.data
        self.data.check_evaluated()
        self.protocols = chosen_protocols(built, {}, self.data, own=False)
        if "root" in options.data.init_args:
            settings["root"] = options.data.init_args.root

    def _check(self, explicit: Namespace) -> None:
        if self.options.checkpoint is not None:
            raise InputError(f"give a checkpoint or {_OPTION}, not both")
        for name in ("cache", "report"):
            if explicit.get(name):
                raise InputError(f"--{name} true requires a run: {_OPTION} has no run directory to write to")
        if self.options.weights == "":
            raise InputError("--weights is empty: give a file, or hf://OWNER/NAME")
        if self.options.output is not None:
            check_output(self.options.output)

    def place(self) -> dict[str, str]:
        """Fields of a row that distinguish the data from other data of their name."""
        return data_place({}, {}, self._data_options, self.data)

    def subject(self, splits: Splits) -> Subject:
        """The encoder, those of ``--beside`` and, as a baseline, the encoder with its initial weights."""
        device, options = chosen_device(self.options.device), self.options

        def extractor(encoder: Encoder) -> FeatureExtractor:
            return FeatureExtractor(
                encoder.to(device), splits, description=str(encoder), layers=("backbone",), cache=None,
                seed=_SEED,
            )  # fmt: skip

        trained = extractor(self.trained)
        networks = [
            Network("trained", trained),
            *networks_beside(
                options.beside, trained, lambda: _built(self._factory), allow_class=self.allow_class
            ),
        ]
        if options.baselines and self.untrained is not None:
            networks.append(Network("untrained", extractor(self.untrained)))
        views = self.data.views
        images = f"images of {views.size} pixels with mean {views.mean} and std {views.std}"
        about = f"{_described(options)}, {images}"
        return Subject(tuple(networks), splits, about, pixels=options.baselines)

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
