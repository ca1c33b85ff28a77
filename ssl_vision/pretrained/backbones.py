"""Load pretrained encoders from a run, a checkpoint, an exported file or the Hugging Face Hub."""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from ssl_vision._version import __version__
from ssl_vision.cli.config_objects import built
from ssl_vision.cli.parser import one_line
from ssl_vision.data import Views
from ssl_vision.encoders import Encoder, Timm, as_encoder, build
from ssl_vision.errors import InputError
from ssl_vision.hub import local_file
from ssl_vision.pretrained.opened_run import OpenedRun, open_run, with_weights
from ssl_vision.runs.checkpoint import OTHER_WEIGHTS

SUFFIX = ".safetensors"

_PREFIX = "prefix"
"""Metadata of a file whose names of tensors lack a prefix that they have in the encoder."""


@dataclass(frozen=True)
class Description:
    """Everything except the weights that is needed to build an encoder and prepare its images."""

    encoder: dict[str, Any]
    """Class and options of the encoder, as in a config: ``class_path``, ``init_args`` and ``dict_kwargs``."""
    size: int
    """Side of the input images in pixels."""
    decoded_size: int
    """Side of the squares to which files are decoded, before they are resized to ``size``."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    version: str = __version__
    """Version of this package that wrote the file."""
    pixel_range: tuple[float, float] | None = None
    """Values of grey images of more than 8 bits that become black and white."""

    def __post_init__(self) -> None:
        _ = self.views  # raises ValueError for invalid values

    @property
    def views(self) -> Views:
        """Views whose ``plain`` method prepares the input images."""
        return Views(size=self.size, mean=self.mean, std=self.std, saturation=0, hue=0, grayscale=0)


class Pretrained(NamedTuple):
    """A backbone in evaluation mode, with its description."""

    backbone: Encoder
    description: Description


def load_encoder(path: str | Path, *, allow_class: Collection[str] = ()) -> Encoder:
    """Load a pretrained encoder from a file, a run directory or the Hugging Face Hub.

    The encoder maps images (N, 3, H, W), normalised as in training, to features
    (N, ``encoder.num_features``); `read_backbone` also returns the normalisation. It is on the CPU and in
    evaluation mode. No code in the file is executed; only tensors and plain values are read.

    Args:
        path: ``.safetensors`` file of ``ssl-vision export``, run directory or checkpoint; or the address
            ``hf://OWNER/NAME`` of an encoder that ``ssl-vision export --push`` uploaded, optionally with
            ``@REVISION``. It is downloaded once into the cache of huggingface_hub.
        allow_class: classes outside this package, as ``module.Class``, that the file may name.

    Raises:
        InputError: The file or repository does not exist, cannot be downloaded, or is none of these.

    Example:
        >>> encoder = ssl_vision.load_encoder("hf://OWNER/NAME@v1.0")  # doctest: +SKIP
    """
    return read_backbone(path, allow_class=allow_class).backbone


def read_backbone(path: str | Path, *, allow_class: Collection[str] = ()) -> Pretrained:
    """Load a pretrained encoder as `load_encoder` does, with the size and normalisation of its images.

    ``read_backbone("runs/first").description.views.plain(images)`` resizes and normalises uint8 images
    (N, 3, H, W) as ``ssl-vision evaluate`` does.

    Args:
        path: path or address that `load_encoder` accepts.
        allow_class: classes outside this package, as ``module.Class``, that the file may name.

    Raises:
        InputError: The file or repository does not exist, cannot be downloaded, or is none of these.
    """
    file = local_file(path)
    if file.suffix == SUFFIX:
        return _read_file(file, allow_class)
    return pretrained(open_run(file, allow_class=allow_class))


def pretrained(run: OpenedRun) -> Pretrained:
    """Build the backbone of a run in evaluation mode, and describe it.

    Raises:
        InputError: The weights do not fit the config, or the config lacks a setting of the backbone.
    """
    path = run.checkpoint.path
    try:
        backbone = run.trained().eval().backbone.to(memory_format=torch.contiguous_format)
        model, data = (run.config[part]["init_args"] for part in ("model", "data"))
        views = data["views"]
        description = Description(
            encoder=without_pretrained(model["encoder"]),
            size=views["size"],
            decoded_size=data.get("image_size") or run.checkpoint.side or views["size"],
            mean=tuple(views["mean"]),
            std=tuple(views["std"]),
            pixel_range=data.get("pixel_range"),
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {one_line(str(error))}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not an encoder trained on views of images ({error})") from error
    return Pretrained(backbone, description)


def without_pretrained(encoder: Any) -> dict[str, Any]:
    """Return the class and options of an encoder in a config, with timm's pretrained weights disabled."""
    if isinstance(encoder, str):  # a function that builds the encoder
        return {"class_path": encoder}
    options = dict(encoder.get("init_args") or {})
    if "pretrained" in options:
        options["pretrained"] = False
    return {**encoder, "init_args": options}


def write_backbone(path: Path, backbone: nn.Module, description: Description | None = None) -> None:
    """Write the weights, with the description as metadata if there is one.

    The weights of timm models have timm's names, so that timm loads them, too.
    """
    about = (
        {key: value for key, value in asdict(description).items() if value is not None} if description else {}
    )
    if isinstance(backbone, Timm):
        backbone = backbone.network
        about |= {_PREFIX: "network."} if description else {}
    # copies, as safetensors stores no shared memory
    state = {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in backbone.state_dict().items()
    }
    path.write_bytes(save(state, {"format": "pt"} | {key: json.dumps(value) for key, value in about.items()}))


def has_description(path: Path) -> bool:
    """Return True for a file that `write_backbone` wrote with a description."""
    try:
        with safe_open(path, framework="pt") as file:
            return {"encoder", "size"} <= (file.metadata() or {}).keys()
    except (SafetensorError, OSError):
        return False


def _read_file(path: Path, allow_class: Collection[str]) -> Pretrained:
    """Read a file of `write_backbone`.

    Raises:
        InputError: The file is missing or unreadable, has no description, or its weights do not fit it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in list(file.keys())}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file") from error
    names = {field.name for field in fields(Description)}
    try:
        prefix = json.loads(about.get(_PREFIX, '""'))
        state = {f"{prefix}{name}": tensor for name, tensor in state.items()}
        values = {key: json.loads(text) for key, text in about.items() if key in names}
        if not names - {"pixel_range"} <= values.keys():
            raise InputError(f"{path}: was not written by ssl-vision export; {OTHER_WEIGHTS}")
        description = Description(**values | {key: tuple(values[key]) for key in ("mean", "std")})
        factory_type = Callable[[], Encoder] | Callable[[], nn.Module]

        def make() -> Encoder:
            config = {"encoder": description.encoder}
            factory = built(factory_type, "encoder", config, where=path, allow_class=allow_class)
            return as_encoder(build(factory))

        backbone = with_weights(make, state)
    except (ValueError, TypeError, RuntimeError) as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error
    return Pretrained(backbone.eval(), description)
