"""The feature cache: what a network made of a split's images, kept in a file named by its content."""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssl_vision.data import Views
from ssl_vision.errors import InputError
from ssl_vision.runs.output import completed

_FORMAT = 1
"""Part of every key: to be raised when the same network makes other features of the same images."""

Features = dict[str, Tensor]
"""(N, ·) float32 by layer."""


def digest_of_network(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> str:
    """SHA-256 of a network's weights and of its description in a run's config."""
    digest = hashlib.sha256(json.dumps(config["model"], sort_keys=True, default=str).encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_of_views(views: Views, *, plain: bool) -> str:
    """What decides how an image looks to the network: as it is, or as a random view."""
    fields = dataclasses.asdict(views)
    names = ("size", "mean", "std") if plain else sorted(fields.keys() - {"compile"})
    return json.dumps({name: fields[name] for name in names})


class FeatureCache:
    """Features in ``folder``, one file for each (network, images, views, layers).

    A file's name holds a hash of all that its content is a function of, so that none is ever out of date; it
    may be deleted at any time. One that cannot be read is made again, and one that cannot be written is
    mentioned on stderr.

    Args:
        folder: where the files lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(
        self, title: str, parts: tuple[str, ...], layers: tuple[str, ...], make: Callable[[], Features]
    ) -> Features:
        """The features of ``layers``, from the file or made and written.

        Args:
            title: how the file's name begins.
            parts: all that decides the features.
            layers: which of them are wanted.
            make: makes them.
        """
        key = hashlib.sha256(json.dumps([_FORMAT, parts, layers]).encode()).hexdigest()[:24]
        file = self.folder / f"{title}-{key}.pt"
        try:
            kept = torch.load(file, map_location="cpu", weights_only=True)
            if kept.keys() == set(layers):
                return {name: kept[name] for name in layers}
        except (FileNotFoundError, NotADirectoryError):
            pass
        except Exception as error:
            print(f"{file}: not readable ({type(error).__name__}), made again", file=sys.stderr)
        made = make()
        self._write(file, {name: made[name].cpu() for name in layers})
        return made

    def _write(self, file: Path, features: Features) -> None:
        try:
            with completed(file) as part:
                torch.save(features, part)
        except (InputError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            print(f"features not kept: {error}", file=sys.stderr)
