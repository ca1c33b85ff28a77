"""Other networks that an evaluation measures beside its own: ``--beside NAME=FILE``."""

import dataclasses
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from ssl_vision.encoders import Encoder
from ssl_vision.errors import InputError
from ssl_vision.evaluation.cache import FeatureCache
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.measure import Network
from ssl_vision.evaluation.splits import Splits
from ssl_vision.hub import local_file
from ssl_vision.pretrained.backbones import has_description, pretrained, read_backbone
from ssl_vision.runs.checkpoint import is_checkpoint, read_checkpoint
from ssl_vision.runs.weights import load_encoder_weights, read_weights

_TAKEN = ("trained", "untrained", "pixels")
"""Names of the rows that an evaluation has without the option."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def beside(
    values: Sequence[str],
    splits: Splits,
    own: Callable[[], Encoder],
    *,
    device: torch.device,
    cache: FeatureCache | None,
    seed: int,
    allow_class: Collection[str],
) -> list[Network]:
    """Build the networks of ``--beside NAME=FILE``.

    A run, a checkpoint of ``ssl-vision fit`` and an exported encoder, which may be on the Hugging Face Hub,
    state the size and the normalisation of their images. Other files hold weights of the encoder that is
    evaluated, which is given the same images.

    Args:
        values: values of the option.
        splits: the images.
        own: builds the encoder that is evaluated, with random weights.
        device: where the networks run.
        cache: where features are stored, or None.
        seed: seed of random views.
        allow_class: classes outside this package that the files may name.

    Raises:
        InputError: a name is invalid or occurs twice, or a file cannot be used.
    """
    networks: list[Network] = []
    for value in values:
        name, _, file = value.partition("=")
        if not file or not _NAME.fullmatch(name) or name in _TAKEN:
            raise InputError(
                f"--beside {value}: expected NAME=FILE, with a name other than {', '.join(_TAKEN)}"
            )
        if any(name == network.name for network in networks):
            raise InputError(f"--beside: two networks are named {name}")
        with local_file(file) as path:
            encoder, description, own_splits, epoch = _read(path.expanduser(), splits, own, allow_class)
        extractor = FeatureExtractor(
            encoder.to(device), own_splits,
            description=description, layers=("backbone",), cache=cache, seed=seed,
        )  # fmt: skip
        networks.append(Network(name, extractor, epoch))
    return networks


def _read(
    path: Path, splits: Splits, own: Callable[[], Encoder], allow_class: Collection[str]
) -> tuple[Encoder, Any, Splits, int]:
    """Return the encoder of a file, its description, the images as it expects them, and its epoch."""
    if path.is_dir() or is_checkpoint(path):
        checkpoint = read_checkpoint(path)
        (encoder, about), epoch = pretrained(checkpoint, allow_class=allow_class)[1], checkpoint.epoch
    elif has_description(path):
        (encoder, about), epoch = read_backbone(path, allow_class=allow_class), 0
    else:
        encoder = own()
        options = "the encoder that is evaluated"
        load_encoder_weights(encoder, read_weights(path, option="--beside"), path, options=options)
        return encoder, str(encoder), splits, 0
    views = dataclasses.replace(splits.views, size=about.size, mean=about.mean, std=about.std)
    return encoder, about.encoder, splits.with_views(views), epoch
