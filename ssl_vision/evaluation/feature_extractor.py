"""Features of a data set's splits by a network, computed once or read from a cache of files."""

import dataclasses
import hashlib
import inspect
import json
import math
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ssl_vision.data import Views
from ssl_vision.data.module import Split
from ssl_vision.encoders import Encoder, device_of
from ssl_vision.errors import InputError
from ssl_vision.evaluation.features import (
    VIEW_EPOCH,
    Features,
    crop_and_flip,
    embed,
    embed_views,
    in_parts,
    is_finite,
    is_large,
)
from ssl_vision.evaluation.processes import ProcessEnded, agreed, is_first, process_group
from ssl_vision.evaluation.splits import Splits
from ssl_vision.methods import Method
from ssl_vision.metrics.lidar import ViewScatter, joined_scatters, view_scatter
from ssl_vision.metrics.rows import LazyRows
from ssl_vision.runs.checkpoint import load_plain
from ssl_vision.runs.files import atomic_write

_IMAGES_OF_MANY_VIEWS = 128
"""Number of images whose views are embedded before their statistics are computed."""

_CACHE_FORMAT = 2
"""Version in every key, increased when the file format or the computation of features changes."""


def digest_of_network(network: nn.Module, description: Any) -> str:
    """Return the SHA-256 of a network's weights, its own code, and its description, such as its config."""
    code = own_code(network)
    about = [description, *code] if code else description
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, value in sorted(network.state_dict().items()):
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


def digest_of_views(views: Views, *, plain: bool) -> str:
    """Return the options that determine the pixels of an image, un-augmented or as a random view."""
    fields = dataclasses.asdict(views)
    names = ("size", "mean", "std") if plain else sorted(fields.keys() - {"compile"})
    return json.dumps({name: fields[name] for name in names})


class FeatureCache:
    """Cache of features with one file for each (network, images, views, layers).

    The name of a file contains a hash of everything that determines its content, so a file is never out of
    date. Files may be deleted at any time. If a file cannot be read or its CRC-32 checksums do not match, the
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
        """Read the features of ``layers``, which are then mapped from the file, or compute and store them.

        Args:
            title: beginning of the name of the file.
            parts: everything that determines the features.
            layers: layers to return.
            make: function that computes the features.
        """
        key = hashlib.sha256(json.dumps([_CACHE_FORMAT, parts, layers]).encode()).hexdigest()[:24]
        file = self.folder / f"{title}-{key}.pt"
        if file.is_file():
            try:
                stored: Features = load_plain(file, "file of features", verify=True)["features"]
                return stored
            except InputError as error:
                print(f"{error}; computing it again", file=sys.stderr)
        computed = make()
        if all(map(is_finite, computed.values())):
            features = {name: computed[name].cpu() for name in layers}
            try:
                with atomic_write(file) as part:
                    torch.save({"features": features}, part)
            except (InputError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
                print(f"features not kept: {error}", file=sys.stderr)
        return computed


class FeatureExtractor:
    """Computes the features of the splits by one network.

    Args:
        network: method or encoder, on the device of the computation.
        splits: images to embed.
        description: description of the network without its weights, such as the model in a run's config.
        layers: layers to keep.
        cache: cache that stores features for other evaluations, or None.
        seed: seed of random views and of classifiers.
        name: name of the network in rows; see `Row.features`.
        epoch: number of epochs that a run trained the network for.
        about: file and weights of a network that is evaluated beside another one.
        online: weight and bias of a linear layer that was trained along with the network on the same data
            set, or None.
    """

    def __init__(
        self,
        network: Method | Encoder,
        splits: Splits,
        *,
        description: Any,
        layers: tuple[str, ...] = ("backbone",),
        cache: FeatureCache | None = None,
        seed: int = 0,
        name: str = "trained",
        epoch: int = 0,
        about: str = "",
        online: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.network, self.splits, self.description = network, splits, description
        self.layers, self.cache, self.seed = layers, cache, seed
        self.name, self.epoch, self.about, self.online = name, epoch, about, online
        self._digest = digest_of_network(network, description)
        self._held: dict[tuple[str, ...], Features] = {}

    def with_network(
        self, network: Method | Encoder, *, splits: Splits | None = None, **changes: Any
    ) -> Self:
        """Return an extractor of the backbone features of another network on the same device.

        Args:
            network: method or encoder.
            splits: images as the network expects them; None for those of this object.
            changes: other arguments of the class that differ from those of this object.
        """
        options = {"description": self.description, "cache": self.cache, "seed": self.seed} | changes
        return type(self)(network.to(self.device), splits or self.splits, **options)

    @property
    def encoder(self) -> Encoder:
        """The network itself, or the encoder of a method."""
        return self.network.backbone if isinstance(self.network, Method) else self.network

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return device_of(self.network)

    @property
    def is_embedded(self) -> bool:
        """True if the un-augmented images of all splits are embedded."""
        return {split for kind, split, *_ in self._held if kind == "plain"} >= self.splits.images.keys()

    @property
    def weights(self) -> str:
        """The first digits of a hash of the network."""
        return self._digest[:12]

    def forget(self) -> None:
        """Free all features except those of un-augmented images."""
        self._held = {key: features for key, features in self._held.items() if key[0] == "plain"}

    def plain(self, split: Split, layer: str) -> Tensor | LazyRows:
        """Return the features of the un-augmented images on the device of the model, shape (N, F).

        Features of more than 1 GiB (`IN_MEMORY`) are in a mapped file and read in parts.

        Raises:
            ValueError: some features are not finite.
        """
        views = self.splits.views

        def make() -> Features:
            return self._embed(split, self.layers, embed, views=views, title=f"embed {split}")

        identity = ("plain", digest_of_views(views, plain=True))
        features = self._kept(split, split, identity, self.layers, make)
        return in_parts(_finite(features, [layer], split)[layer], self.device)

    def pairs(
        self,
        split: Split,
        layers: tuple[str, ...],
        *,
        views: Views | None = None,
        epoch: int = VIEW_EPOCH,
        rows: Tensor | None = None,
    ) -> Features:
        """Return the features of two random views of each image by layer, shape (2, N, F).

        Args:
            split: split of the images.
            layers: layers to return.
            views: augmentations; None uses those of pretraining.
            epoch: epoch of the views; each gives different ones.
            rows: (n,) increasing numbers of the images to embed; None embeds all.
        """
        made_by = views or self.splits.views

        def make() -> Features:
            title, options = f"embed views of {split}", {"rows": rows, "seed": self.seed, "epoch": epoch}
            return self._embed(split, layers, embed_views, views=made_by, title=title, **options)

        chosen = () if rows is None else (str(rows.tolist()),)
        identity = ("views", digest_of_views(made_by, plain=False), str(self.seed), str(epoch), *chosen)
        return _finite(self._kept(f"{split}-views", split, identity, layers, make), layers, split)

    def view_scatter(self, layers: tuple[str, ...], *, images: int, views: int) -> dict[str, ViewScatter]:
        """Return statistics of V random views of n evenly spaced test images by layer.

        Args:
            layers: layers to return.
            images: number n of images, or all if there are fewer.
            views: number V of views.
        """
        test, made_by, seed = self.splits.images["test"], self.splits.views, self.seed
        count = min(images, len(test))
        some = test.select(torch.arange(count) * len(test) // count)

        def make() -> Features:
            scatters: dict[str, list[ViewScatter]] = {layer: [] for layer in layers}
            for rows in torch.arange(count).split(_IMAGES_OF_MANY_VIEWS):  # type: ignore[no-untyped-call]
                pairs = [
                    embed_views(
                        self.network, some, made_by, rows=rows, seed=seed, epoch=VIEW_EPOCH + number,
                        title=f"embed views {2 * number + 1} and {2 * number + 2} of {views}, images from "
                        f"{rows[0] + 1}",
                    )
                    for number in range(math.ceil(views / 2))
                ]  # fmt: skip
                for layer in layers:
                    features = torch.cat([pair[layer] for pair in pairs])[:views]
                    scatters[layer].append(view_scatter(features.transpose(0, 1)))
            return {layer: torch.cat(joined_scatters(parts)) for layer, parts in scatters.items()}

        identity = ("scatter", digest_of_views(made_by, plain=False), str(seed), str(count), str(views))
        both = _finite(self._kept("test-many-views", "test", identity, layers, make), layers, "test")
        return {layer: ViewScatter(both[layer][:count], both[layer][count:]) for layer in layers}

    def augmented(
        self, layers: tuple[str, ...], count: int, *, plainer: bool
    ) -> dict[str, list[Tensor | LazyRows]]:
        """Return the features of ``count`` random views of the training images by layer, shape (N, F) each.

        Args:
            layers: layers to return.
            count: number of views of each image.
            plainer: use only crop and flip of the augmentations of pretraining.
        """
        views = crop_and_flip(self.splits.views) if plainer else self.splits.views
        epochs = range(VIEW_EPOCH + 1, VIEW_EPOCH + 1 + math.ceil(count / 2))
        pairs = [self.pairs("train", layers, views=views, epoch=epoch) for epoch in epochs]
        return {
            layer: [in_parts(view, self.device) for pair in pairs for view in pair[layer]][:count]
            for layer in layers
        }

    def _embed(
        self, split: Split, layers: tuple[str, ...], function: Callable[..., Features], **options: Any
    ) -> Features:
        """Return the features of a split's images, which all processes compute within `embedding_by_all`."""
        call = partial(function, **options)
        with process_group():
            agreed((self._digest, split, call))
            features = call(self.network, self.splits.images[split])
        return {name: features[name] for name in layers}

    def _kept(
        self,
        title: str,
        split: Split,
        identity: tuple[str, ...],
        layers: tuple[str, ...],
        make: Callable[[], Features],
    ) -> Features:
        """Return the finite features of the layers from memory, from the cache, or by computing them."""
        kind, *conditions = identity
        key = (kind, split, *conditions, *layers)
        if key not in self._held:
            if self.cache is None:
                features = make()
            else:
                parts = (self._digest, self.splits.digest(split), *identity)
                features = self.cache.get(title, parts, layers, make)
            self._held[key] = {
                name: values if is_large(values) else values.to(self.device)
                for name, values in features.items()
                if is_finite(values)
            }
        return self._held[key]


def _finite(features: Features, layers: Sequence[str], split: str) -> Features:
    """Return the features of all layers, if those of the given ones are finite.

    Raises:
        ValueError: they are not.
    """
    if not features.keys() >= set(layers):
        raise ValueError(f"features of {split} images are not finite: training has diverged")
    return features


@contextmanager
def embedding_by_all(extractors: Sequence[FeatureExtractor]) -> Iterator[None]:
    """Run the body in the first process, for which the others embed; those exit when the body has ended.

    Args:
        extractors: extractors of all networks, the same ones in all processes.
    """
    known = {extractor._digest: extractor for extractor in extractors}
    request: Any = ()
    while not is_first() and request is not None:
        with suppress(ProcessEnded), process_group():  # the first process can end a group and continue
            request = agreed(None)
            if request is not None:
                digest, split, call = request
                call(known[digest].network, known[digest].splits.images[split])
    if not is_first():
        raise SystemExit(0)
    yield
    with process_group():
        agreed(None)
