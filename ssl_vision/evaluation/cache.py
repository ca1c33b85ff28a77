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
from ssl_vision.evaluation.features import Features
from ssl_vision.runs.atomic_files import atomic_write

_FORMAT = 2
"""Part of every key: to be raised when the form of a file changes, or what a network makes of images."""


def digest_of_network(state: Mapping[str, Tensor], description: Any) -> str:
    """Return the SHA-256 of a network's weights and of its description, such as the model in a config."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_of_features(key: str, features: Features) -> str:
    """SHA-256 of the key of a file, and of the names, types, shapes and bytes of its features."""
    digest = hashlib.sha256(key.encode())
    for name, values in features.items():
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def digest_of_views(views: Views, *, plain: bool) -> str:
    """What decides how an image looks to the network: as it is, or as a random view."""
    fields = dataclasses.asdict(views)
    names = ("size", "mean", "std") if plain else sorted(fields.keys() - {"compile"})
    return json.dumps({name: fields[name] for name in names})


class FeatureCache:
    """Features in ``folder``, one file for each (network, images, views, layers).

    A file's name holds a hash of all that its content is a function of, so that none is ever out of date; it
    may be deleted at any time. The file holds a checksum of the features; where it does not fit, or the file
    cannot be read, the features are computed again and a line on stderr says so. Another one reports a file
    that cannot be written. Features that are not finite are not kept.

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
            features: Features = {name: kept["features"][name] for name in layers}
            if digest_of_features(key, features) == kept["checksum"]:
                return features
            print(
                f"{file}: its features are not those that were written; computing them again", file=sys.stderr
            )
        except (FileNotFoundError, NotADirectoryError):
            pass
        except Exception as error:
            print(f"{file}: not readable ({type(error).__name__}); computing it again", file=sys.stderr)
        made = make()
        if all(values.isfinite().all() for values in made.values()):
            self._write(file, key, {name: made[name].cpu() for name in layers})
        return made

    def _write(self, file: Path, key: str, features: Features) -> None:
        try:
            with atomic_write(file) as part:
                torch.save({"features": features, "checksum": digest_of_features(key, features)}, part)
        except (InputError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            print(f"features not kept: {error}", file=sys.stderr)
