"""Cache of features in files named by a hash of everything that determines them."""

import dataclasses
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssl_vision.data import Views
from ssl_vision.errors import InputError
from ssl_vision.evaluation.features import Features, blocks, is_finite, is_large
from ssl_vision.runs.atomic_files import atomic_write

_FORMAT = 2
"""Version in every key, increased when the file format or the computation of features changes."""


def digest_of_network(state: Mapping[str, Tensor], description: Any) -> str:
    """Return the SHA-256 of a network's weights and of its description, such as the model in a config."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def own_code(network: nn.Module) -> list[str]:
    """Return the source of the classes of a network that belong to no installed package."""
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    installed.append(Path(__file__).parents[1])
    sources = []
    for each in {type(module) for module in network.modules()}:
        with suppress(OSError, TypeError):  # classes defined in an interactive session have no file
            if not any(map(Path(inspect.getfile(each)).is_relative_to, installed)):
                sources.append(inspect.getsource(each))
    return sorted(sources)


def digest_of_features(key: str, features: Features) -> str:
    """Return the SHA-256 of a file's key and of the names, types, shapes and bytes of its features."""
    digest = hashlib.sha256(key.encode())
    for name, values in features.items():
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        for block in blocks(values.detach().cpu()):
            digest.update(block.contiguous().numpy().data)
    return digest.hexdigest()


def digest_of_views(views: Views, *, plain: bool) -> str:
    """Return the options that determine the pixels of an image, un-augmented or as a random view."""
    fields = dataclasses.asdict(views)
    names = ("size", "mean", "std") if plain else sorted(fields.keys() - {"compile"})
    return json.dumps({name: fields[name] for name in names})


class FeatureCache:
    """Cache of features with one file for each (network, images, views, layers).

    The name of a file contains a hash of everything that determines its content, so a file is never out of
    date. Files may be deleted at any time. If a file cannot be read or its checksum does not match, the
    features are computed again, with a message on stderr. A file that cannot be written is also reported.
    Features that are not finite are not stored.

    Args:
        folder: directory of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(
        self, title: str, parts: tuple[str, ...], layers: tuple[str, ...], make: Callable[[], Features]
    ) -> Features:
        """Read the features of ``layers``, or compute and store them.

        Large features are not read into memory but mapped from the file.

        Args:
            title: beginning of the name of the file.
            parts: everything that determines the features.
            layers: layers to return.
            make: function that computes the features.
        """
        key = hashlib.sha256(json.dumps([_FORMAT, parts, layers]).encode()).hexdigest()[:24]
        file = self.folder / f"{title}-{key}.pt"
        try:
            stored = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            features: Features = {
                name: values if is_large(values) else values.clone()
                for name, values in ((name, stored["features"][name]) for name in layers)
            }
            if digest_of_features(key, features) == stored["checksum"]:
                return features
            print(
                f"{file}: its features are not those that were written; computing them again", file=sys.stderr
            )
        except (FileNotFoundError, NotADirectoryError):
            pass
        except Exception as error:
            print(f"{file}: not readable ({type(error).__name__}); computing it again", file=sys.stderr)
        computed = make()
        if all(map(is_finite, computed.values())):
            self._write(file, key, {name: computed[name].cpu() for name in layers})
        return computed

    def _write(self, file: Path, key: str, features: Features) -> None:
        try:
            with atomic_write(file) as part:
                torch.save({"features": features, "checksum": digest_of_features(key, features)}, part)
        except (InputError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            print(f"features not kept: {error}", file=sys.stderr)
