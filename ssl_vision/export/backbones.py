"""Pretrained backbones: out of a run, a checkpoint or an exported file, in one line."""

import copy
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ssl_vision import __version__
from ssl_vision.data import Views
from ssl_vision.encoders.resnet import Depth, Stem
from ssl_vision.errors import InputError
from ssl_vision.evaluation.rebuild import trained_model
from ssl_vision.models import Backbone, SimCLR
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.complaint import one_line

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Description:
    """What has to be known of a backbone besides its weights."""

    depth: Depth
    width: int
    stem: Stem
    size: int
    """Side of the images that it is given, pixels."""
    decoded_size: int
    """Side of the squares that files are decoded to, before they are brought to ``size``."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    version: str = __version__
    """Of this package, when it was written."""

    @property
    def views(self) -> Views:
        """Whose ``plain`` images the backbone is given."""
        return Views(size=self.size, mean=self.mean, std=self.std)


class Pretrained(NamedTuple):
    """A backbone in evaluation mode, and what it is."""

    backbone: Backbone
    description: Description


def load_backbone(path: str | Path, *, allowed: Collection[str] = ()) -> Backbone:
    """The pretrained backbone in a file or a run folder, on the CPU, in evaluation mode.

    Images (N, 3, H, W), normalised as they were for its training, become features (N, ``backbone.dim``).
    Nothing in the file is run: only tensors and plain values are read.

    Args:
        path: a ``.safetensors`` file that ``ssl-vision export`` wrote, a run folder or a checkpoint.
        allowed: classes outside this package, as ``module.Class``, that a checkpoint may name.

    Raises:
        InputError: there is no such file, or it is none of these.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return read_backbone(path).backbone
    return pretrained(read_checkpoint(path), allowed=allowed)[1].backbone


def pretrained(checkpoint: Checkpoint, *, allowed: Collection[str] = ()) -> tuple[SimCLR, Pretrained]:
    """The whole network of a checkpoint in evaluation mode, and a copy of its backbone with what it is.

    Args:
        checkpoint: of a run.
        allowed: classes outside this package that its config may name.

    Raises:
        InputError: the weights do not fit the config, or it does not say what a backbone needs.
    """
    try:
        network = trained_model(checkpoint, allowed=allowed).eval()
        model, data = (checkpoint.config[part]["init_args"] for part in ("model", "data"))
        views = data["views"]
        description = Description(
            depth=model["depth"],
            width=model["width"],
            stem=model["stem"],
            size=views["size"],
            decoded_size=data.get("image_size", views["size"]),
            mean=tuple(views["mean"]),
            std=tuple(views["std"]),
        )
        _ = description.views  # refuses what no image can be
        backbone = copy.deepcopy(network.backbone).to(memory_format=torch.contiguous_format)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{checkpoint.path}: {one_line(str(error))}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{checkpoint.path}: not a ResNet trained on views of images ({error})") from error
    return network, Pretrained(backbone, description)


def write_backbone(path: Path, backbone: Backbone, description: Description | None = None) -> None:
    """Writes the weights; without a description there is nothing but tensors with torchvision's names."""
    state = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    about = asdict(description) if description else {}
    path.write_bytes(save(state, {"format": "pt"} | {key: json.dumps(value) for key, value in about.items()}))


def read_backbone(path: Path) -> Pretrained:
    """Reads what `write_backbone` wrote.

    Raises:
        InputError: absent, unreadable, without a description, or with weights that do not fit it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in list(file.keys())}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file") from error
    names = [field.name for field in fields(Description)]
    if not set(names) <= set(about):
        raise InputError(f"{path}: was not written by ssl-vision export --format safetensors")
    try:
        values = {name: json.loads(about[name]) for name in names}
        description = Description(**values | {key: tuple(values[key]) for key in ("mean", "std")})
        _ = description.views
        with torch.device("meta"):  # no weights are drawn: they are in the file
            backbone = Backbone(depth=description.depth, width=description.width, stem=description.stem)
        backbone.load_state_dict(state, assign=True)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error
    return Pretrained(backbone.eval(), description)
