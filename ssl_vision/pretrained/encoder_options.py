"""Options ``--encoder`` and ``--weights``, and the encoder that they name."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import yaml
from jsonargparse import Namespace
from torch import nn

from ssl_vision.cli.fit_command import check_classes
from ssl_vision.cli.parser import ArgumentParser, expanded, one_line
from ssl_vision.encoders import Encoder, ResNet, Timm, as_encoder, build
from ssl_vision.errors import InputError
from ssl_vision.hub import is_address, local_file
from ssl_vision.pretrained.backbones import Description, Pretrained, without_pretrained
from ssl_vision.runs.encoder_weights import load_encoder_weights, read_weights

_OPTION = "--encoder"
_TIMM = "timm/"
_SEED = 0
"""Seed of the untrained weights."""


class NamedEncoder(NamedTuple):
    """An encoder of the command line, with its weights."""

    encoder: Encoder
    untrained: Callable[[], Encoder]
    """Builds the encoder with its initial weights."""
    sets_weights: bool
    """True if the class of the encoder sets its weights itself."""
    about: str
    """The model and its weights, in a few words."""


def names_encoder(args: Sequence[str]) -> bool:
    """Return True for arguments with ``--encoder``."""
    return any(arg.partition("=")[0] == _OPTION for arg in args)


def add_encoder_options(parser: ArgumentParser, *, encoder: str, more: str = "", views: bool = True) -> None:
    """Add ``--encoder`` and ``--weights``.

    Args:
        parser: parser of the command.
        encoder: first words of the help of ``--encoder``.
        more: last words of the help of ``--weights``.
        views: True to add the options of the images that the encoder expects, for a command without data.
    """
    parser.add_argument(
        _OPTION, type=Callable[[], Encoder] | Callable[[], nn.Module] | None, default=None,
        help=f"{encoder}: timm/NAME, ResNet or the import path of your own, with options --encoder.OPTION.",
    )  # fmt: skip
    parser.add_argument(
        "--weights", type=str | None, default=None,
        help="Weights of --encoder: a .safetensors file, a state dict of torch.save, a checkpoint, or "
        f"hf://OWNER/NAME.{more}",
    )  # fmt: skip
    parser.add_argument(
        "--weights_by_order", type=bool, default=False,
        help="Name the tensors of --weights by their order, whose shapes must be those of the encoder.",
    )  # fmt: skip
    kinds = {"size": int, "mean": tuple[float, ...], "std": tuple[float, ...]} if views else {}
    for name, kind in kinds.items():
        text = f"{name.capitalize()} of the images of --encoder. Default: what a timm model expects."
        parser.add_argument(f"--views.{name}", type=kind | None, default=None, help=text)


def with_classes(args: Sequence[str]) -> list[str]:
    """Replace ``timm/NAME`` by the class and its option, and check the classes that are named.

    Raises:
        InputError: a class or an option of one does not exist.
    """
    words = list(args)
    for place, (previous, arg) in enumerate(zip(["", *args], args, strict=False)):
        name = arg if previous == _OPTION else arg.removeprefix(f"{_OPTION}=")
        if (previous == _OPTION or name != arg) and name.startswith(_TIMM):
            words[place] = f"{arg.removesuffix(name)}Timm"
            words.append(f"{_OPTION}.name={name.removeprefix(_TIMM)}")
    check_classes(words)
    return words


def instantiated(parser: ArgumentParser, options: Any) -> Any:
    """Build the classes that the options name.

    Raises:
        InputError: a value is out of range.
    """
    options = options.clone()
    if "data" in options:
        options.data = expanded(options.data)
    try:
        return parser.instantiate(options)
    except ValueError as error:
        raise InputError(one_line(str(error))) from error


def named_encoder(parser: ArgumentParser, options: Any) -> NamedEncoder:
    """Build the encoder of ``--encoder`` with the weights of ``--weights``.

    Raises:
        InputError: weights are missing or do not match the encoder.
    """
    is_class = isinstance(options.encoder, Namespace)
    settings = options.encoder.as_dict().get("init_args", {}) if is_class else {}
    downloaded = settings.get("pretrained", False)
    if downloaded and options.weights is not None:
        raise InputError(f"give --weights or {_OPTION}.pretrained true, not both")
    untrained = partial(_built, instantiated(parser, options).encoder)
    encoder = untrained()
    class_name = options.encoder.class_path if is_class else options.encoder.__qualname__
    about = str(settings.get("name", class_name.rpartition(".")[2]))
    if options.weights is not None:
        file = local_file(options.weights)
        state = read_weights(file, option="--weights")
        used = load_encoder_weights(
            encoder, state, file, options=f"{_OPTION} and its options", by_order=options.weights_by_order
        )
        source = options.weights if is_address(options.weights) else file.name
        return NamedEncoder(encoder, untrained, False, f"{about} with weights of {source}: {used}")
    if downloaded:
        options = options.clone()
        options.encoder.init_args.pretrained = False
        untrained = partial(_built, instantiated(parser, options).encoder)
        return NamedEncoder(encoder, untrained, False, f"{about} with timm's weights")
    if isinstance(encoder, (ResNet, Timm)):
        more = f", or timm's own with {_OPTION}.pretrained true" if isinstance(encoder, Timm) else ""
        raise InputError(
            f"{_OPTION} {type(encoder).__name__} has random weights: give some with --weights FILE{more}"
        )
    return NamedEncoder(encoder, untrained, True, about)


def described_encoder(parser: ArgumentParser, options: Any) -> tuple[Pretrained, str]:
    """Build the encoder of ``--encoder`` with a description of its images, and a text about it.

    Raises:
        InputError: as `named_encoder`, or the size or the normalisation of the images is unknown.
    """
    encoder, _, _, about = named_encoder(parser, options)
    views = {name: value for name, value in options.views.as_dict().items() if value is not None}
    if isinstance(encoder, Timm):
        views = {"size": encoder.image_size, "mean": encoder.mean, "std": encoder.std} | views
    if missing := [f"--views.{name}" for name in ("size", "mean", "std") if name not in views]:
        raise InputError(f"{_OPTION} requires {', '.join(missing)}: the images that the encoder expects")
    section = yaml.safe_load(parser.dump(options, skip_unset=False, skip_validation=True))["encoder"]
    description = Description(without_pretrained(section), decoded_size=views["size"], **views)
    return Pretrained(encoder.eval(), description), about


def _built(factory: Callable[[], nn.Module]) -> Encoder:
    """Build an encoder with the random weights of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        try:
            return as_encoder(build(factory))
        except ValueError as error:
            raise InputError(f"{_OPTION}: {one_line(str(error))}") from error
