"""The evaluation of an encoder that was trained elsewhere, as the command line requests it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from ssl_vision.cli.classes import allowed_classes
from ssl_vision.data import ImageData
from ssl_vision.encoders import Encoder, Timm
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import chosen_device
from ssl_vision.evaluation.options import chosen_protocols, evaluation_parser
from ssl_vision.evaluation.results import Evaluation, Stored, check_output, written
from ssl_vision.evaluation.splits import Splits, data_place
from ssl_vision.evaluation.subject import Network, Subject, networks_beside
from ssl_vision.pretrained.encoder_options import instantiated, named_encoder, with_classes

_SEED = 0
"""Seed of random views and of the classifiers."""


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
        self._check(explicit)
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

    def _check(self, explicit: Namespace) -> None:
        if self.options.checkpoint is not None:
            raise InputError("give a checkpoint or --encoder, not both")
        for name in ("cache", "report"):
            if explicit.get(name):
                raise InputError(f"--{name} true requires a run: --encoder has no run directory to write to")
        if self.options.output is not None:
            check_output(self.options.output)

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
