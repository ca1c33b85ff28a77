"""``ssl-vision embed``: write the features of the images in a folder."""

import itertools
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from torch import Tensor

from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data.loading.decoding import Decoded, squares
from ssl_vision.data.loading.file_listing import list_images
from ssl_vision.data.module import LARGEST_BATCH
from ssl_vision.encoders import Encoder, device_of
from ssl_vision.errors import InputError, check
from ssl_vision.evaluation.features import by_layer, chosen_device, empty_rows
from ssl_vision.evaluation.processes import agreed, gathered, is_first, process_group, sharing
from ssl_vision.hub import is_address
from ssl_vision.methods import Method
from ssl_vision.metrics.neighbours import nearest_others
from ssl_vision.optional import needed
from ssl_vision.pretrained.backbones import SUFFIX, Description, pretrained, read_backbone
from ssl_vision.pretrained.encoder_options import add_encoder_options, described_encoder, with_classes
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.files import atomic_write

LayerName = Literal["backbone", "hidden", "projector"]
Features = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

_NAMED = 20
"""Largest number of skipped files that are named."""

_ROW_GROUP = 2**16
"""Number of rows that a ``.parquet`` file is written by."""


class Network(NamedTuple):
    """A layer of a network, with the description of its images."""

    module: Method | Encoder
    description: Description
    layer: LayerName = "backbone"
    about: str = ""
    """What was read, if the weights do not describe themselves."""

    @property
    def memory_format(self) -> torch.memory_format:
        """Memory format of the encoder, of the weights and the images."""
        return (self.module.backbone if isinstance(self.module, Method) else self.module).memory_format

    def __call__(self, squares: Tensor) -> Tensor:
        """Features, float32 (N, F), of decoded uint8 images (N, 3, side, side) on the network's device."""
        images = self.description.views.plain(squares).to(memory_format=self.memory_format)
        return by_layer(self.module(images))[self.layer].float()


def run(args: Sequence[str]) -> None:
    """Write the features and names of all images below a folder, sorted by name.

    Images are decoded, resized and normalised as in the evaluation of the network. torchrun starts several
    processes, each of which embeds a share of the batches; the file is the same for any number of them.

    Raises:
        InputError: The folder, the network or the output cannot be used, or an image cannot be decoded.
    """
    parser = ArgumentParser(prog="ssl-vision embed", description=run.__doc__)

    def add(name: str, kind: Any, text: str, **options: Any) -> None:
        parser.add_argument(f"--{name}", type=kind, help=text, **options)

    parser.add_argument("images", type=str, help="Folder of images, searched recursively.")
    more = " A run, its checkpoint and an exported file state the encoder themselves."
    add_encoder_options(parser, encoder="Encoder of --weights that do not state it", more=more)
    add("output", str, "Output file: .npz (features, names) or .parquet.", required=True)
    text = "Layer of the features; only runs and their checkpoints have others than the backbone."
    add("layer", LayerName, text, default="backbone")
    add("batch_size", int, "Number of images per batch.", default=256)
    add("device", Literal["auto", "cpu", "cuda"], "Device of the encoder.", default="auto")
    text = "Also store the k nearest other images of each, by cosine: their rows and similarities."
    add("nearest", PositiveInt | None, text, default=None)
    add("strict", bool, "Stop at the first file that cannot be decoded.", default=False)
    add_allow_class(parser)
    allow_class, options = allowed_classes(args), parser.parse_args(with_classes(args))
    check("--batch_size", options.batch_size, at_least=1, at_most=LARGEST_BATCH)
    folder, output, device = Path(options.images), Path(options.output), chosen_device(options.device)
    if output.suffix == ".parquet":
        needed("pyarrow", extra="parquet")
    elif output.suffix != ".npz":
        raise InputError(f"--output {output} must end with .npz or .parquet")
    with sharing(), process_group():
        names = agreed(list_images(folder).names if is_first() else [])
        network = _network(parser, options, allow_class)
        network.module.to(device, memory_format=network.memory_format)  # type: ignore[call-overload]
        embedded = partial(
            embed_files, network, folder, names, batch_size=options.batch_size, strict=options.strict
        )
        if not is_first():
            embedded()
            return
        with atomic_write(output) as partial_file:
            features, done = embedded()
            others = {}
            if options.nearest is not None:
                check("--nearest", options.nearest, at_most=len(features) - 1)
                found = nearest_others(torch.from_numpy(features), options.nearest)
                others = {"neighbours": found.index.numpy(), "similarities": found.similarity.numpy()}
            _write(partial_file, output.suffix, features, done, others)
    if network.about:
        print(network.about)
    print(f"{len(features)} images, {features.shape[1]} features each, written to {output}")


def _network(parser: ArgumentParser, options: Namespace, allow_class: Collection[str]) -> Network:
    """Build the network that the options name.

    Raises:
        InputError: No network is named or can be built, or it does not have the layer.
    """
    layer: LayerName = options.layer
    if options.encoder is not None:
        if layer != "backbone":
            raise InputError(f"--encoder has the backbone only: --layer {layer} takes a run")
        given, about = described_encoder(parser, options)
        return Network(*given, about=about)
    if options.weights is None:
        raise InputError("give --weights, a run, an exported file or hf://OWNER/NAME, or --encoder, too")
    if layer == "backbone":
        return Network(*read_backbone(options.weights, allow_class=allow_class))
    if is_address(options.weights) or Path(options.weights).suffix == SUFFIX:
        raise InputError(f"{options.weights} has the backbone only: --layer {layer} takes a run")
    run = open_run(options.weights, allow_class=allow_class)
    return Network(run.trained().eval(), pretrained(run).description, layer)


def embed_files(
    network: Network,
    folder: Path,
    names: list[str],
    *,
    batch_size: int,
    strict: bool,
) -> tuple[Features, list[str]]:
    """Compute the features of image files with one batch in memory at a time.

    The processes of a `process_group` share the files, and only the first one returns features.

    Args:
        network: network on the device.
        folder: folder of the files.
        names: paths of the files within the folder.
        batch_size: number of files per batch.
        strict: stop at a file that cannot be decoded, instead of skipping it with a warning.

    Returns:
        Features, float32 (N, F), and the names of the N decoded files in order.

    Raises:
        InputError: A file cannot be decoded and `strict` is set, no file can be decoded, or features are not
            finite.
    """
    if (channels := network.description.views.channels) != 3:
        raise InputError(
            f"the network takes images with {channels} channels, but image files have 3: compute "
            "features with load_encoder from Python"
        )
    batches = [names[start : start + batch_size] for start in range(0, len(names), batch_size)]
    results = partial(_embedded, network, folder, batches, strict=strict)
    features = torch.empty(0, 0)
    done: list[str] = []
    for decoded, values in gathered(results, len(batches)):
        if not decoded:
            continue
        if not done:
            features = empty_rows((len(names), values.shape[1]))
        features[len(done) : len(done) + len(decoded)] = torch.from_numpy(values)
        done += decoded
    if is_first() and not done:
        raise InputError(f"none of the {len(names)} images can be decoded, for example {folder / names[0]}")
    if is_first() and len(done) < len(names):
        decodable = set(done)
        skipped = [str(folder / name) for name in names if name not in decodable]
        more = ", ..." if len(skipped) > _NAMED else ""
        warnings.warn(
            f"skipped {len(skipped)} of {len(names)} images that cannot be decoded: "
            f"{', '.join(skipped[:_NAMED])}{more}",
            stacklevel=2,
        )
    return features[: len(done)].numpy(), done


@torch.inference_mode()
def _embedded(
    network: Network, folder: Path, batches: list[list[str]], share: slice, *, strict: bool
) -> Iterator[tuple[list[str], Features]]:
    """Yield the decodable files of each batch of a share and their features."""
    if not (batches := batches[share]):
        return
    about, names = network.description, list(itertools.chain.from_iterable(batches))
    images = squares(folder, names, side=about.decoded_size, strict=strict, pixel_range=about.pixel_range)
    decoded = _until_none(images, strict=strict)
    following = next(decoded, None)
    for batch in batches:
        members, images_of_batch = set(batch), list[Decoded]()
        while following is not None and following.name in members:
            images_of_batch.append(following)
            following = next(decoded, None)
        features: Features = np.empty((0, 0), dtype=np.float32)
        if images_of_batch:
            pixels = torch.from_numpy(np.stack([each.pixels for each in images_of_batch]))
            features = network(pixels.to(device_of(network.module))).cpu().numpy()
            if (bad := ~np.isfinite(features).all(axis=1)).any():
                name = images_of_batch[bad.argmax()].name
                raise InputError(f"{folder / name}: its features are not finite: check the weights")
        yield [each.name for each in images_of_batch], features


def _until_none(images: Iterator[Decoded], *, strict: bool) -> Iterator[Decoded]:
    """Yield images; unless ``strict``, end silently if none of the process's images can be decoded."""
    with nullcontext() if strict else suppress(InputError):
        yield from images


def _write(
    path: Path,
    suffix: str,
    features: Features,
    names: list[str],
    others: Mapping[str, Any],
) -> None:
    """Write features (N, F), N file names and other arrays (N, k) in the format of a suffix.

    ``.npz`` files have the arrays ``features`` and ``names``, and the others. ``.parquet`` files have a row
    for each image: ``name``, ``features``, a list of F numbers, and a list of k numbers of each other array.
    """
    texts = [_text(name) for name in names]
    if suffix == ".npz":
        np.savez(path, features=features, names=np.array(texts), **others)
        return
    arrow, parquet = needed("pyarrow", extra="parquet"), needed("pyarrow.parquet", extra="parquet")
    lists = {
        name: arrow.FixedSizeListArray.from_arrays(arrow.array(rows.reshape(-1)), rows.shape[1])
        for name, rows in {"features": features, **others}.items()
    }
    table = arrow.table({"name": arrow.array(texts, arrow.string()), **lists})
    parquet.write_table(table, path, row_group_size=_ROW_GROUP)


def _text(name: str) -> str:
    """Return a name with ``/`` between folders; invalid bytes become replacement characters."""
    return os.fsencode(name).decode("utf-8", errors="replace").replace(os.sep, "/")
