"""Initial weights from a file: another run's, or those of an encoder of another library."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ssl_vision.encoders import ModuleEncoder
from ssl_vision.errors import InputError
from ssl_vision.methods import Method
from ssl_vision.runs.checkpoint import check_bytes, read_checkpoint

_CLASSIFIERS = ("classifier.", "fc.", "head.")
"""Names of the classifiers of torchvision's and timm's networks, which encoders do not have."""


def start_from(model: nn.Module, path: str | Path) -> str:
    """Gives a model the weights of a file instead of those drawn from its seed; returns what was taken.

    The backbone is taken whole or the file refused. A run's projection head is taken, too, where it has the
    sizes of the model's; otherwise the model keeps its own. The objective's parameters and the optimizer's
    state are never taken: this is another run, not the continuation of that one.

    Args:
        model: about to be trained.
        path: a run directory, a checkpoint that ``ssl-vision fit`` wrote, or an encoder's state dict with the
            names of torchvision or timm, as a ``.safetensors`` file or one of ``torch.save``; a classifier
            in it is left out. Of a pickle only tensors and plain values are read.

    Raises:
        InputError: the file is absent, unreadable, or holds tensors of another encoder; or the model is not
            a `Method`.
    """
    path = Path(path).expanduser()
    if not isinstance(model, Method):
        raise InputError(f"--initial_checkpoint requires a method of ssl_vision, not {type(model).__name__}")
    state = _read(path, model.state_dict())
    _load(model.backbone, _of_encoder(state, model.backbone), path)
    head = {name.removeprefix("head."): tensor for name, tensor in state.items() if name.startswith("head.")}
    own = model.head.state_dict()
    if head.keys() != own.keys() or any(head[name].shape != own[name].shape for name in own):
        return f"backbone from {path}; the projection head starts from the seed"
    model.head.load_state_dict(head)
    return f"backbone and projection head from {path}"


def _of_encoder(state: Mapping[str, Tensor], encoder: nn.Module) -> dict[str, Tensor]:
    """Return the encoder's tensors in a file, without a classifier and with the names of the encoder.

    A run's tensors start with ``backbone.``. Those of another library lack the ``network.`` that starts the
    names of `ModuleEncoder`.
    """
    own = encoder.state_dict().keys()
    if any(name.startswith("backbone.") for name in state):
        return {
            name.removeprefix("backbone."): tensor
            for name, tensor in state.items()
            if name.startswith("backbone.")
        }
    prefix = "network." if isinstance(encoder, ModuleEncoder) else ""
    renamed = {name if name in own else f"{prefix}{name}": tensor for name, tensor in state.items()}
    left_out = tuple(f"{prefix}{name}" for name in _CLASSIFIERS)
    return {name: tensor for name, tensor in renamed.items() if name in own or not name.startswith(left_out)}


def _read(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, those of a run under ``backbone.`` and ``head.``.

    Args:
        path: of the file or the run directory.
        expected: the model's tensors.
    """
    if path.is_dir() or path.suffix == ".ckpt":
        return read_checkpoint(path).state
    if not path.is_file():
        raise InputError(f"--initial_checkpoint {path}: no such file or run directory")
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path, expected)
        check_bytes(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: refused, it holds more than tensors and plain values") from error
    except (
        SafetensorError, zipfile.BadZipFile, OSError, RuntimeError, EOFError, ValueError, LookupError
    ) as error:  # fmt: skip
        raise InputError(f"{path}: not a readable file of weights ({type(error).__name__})") from error
    if not isinstance(state, dict) or not all(map(torch.is_tensor, state.values())):
        raise InputError(f"{path}: not a state dict, names and their tensors")
    return state


def _read_safetensors(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file; of those that the model does not have, only the shape is read."""
    found: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        for name in list(file.keys()):
            shape = tuple(file.get_slice(name).get_shape())
            names = (name, f"backbone.{name}", f"backbone.network.{name}")
            own = next((expected[known] for known in names if known in expected), None)
            fits = own is not None and own.shape == shape
            found[name] = file.get_tensor(name) if fits else torch.empty(shape, device="meta")
    return found


def _load(backbone: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    own = backbone.state_dict()
    for name in own:
        if name not in state:
            raise InputError(f"{path}: has no {name}, so it is not a file of this encoder")
        theirs, ours = tuple(state[name].shape), tuple(own[name].shape)
        if theirs != ours:
            raise InputError(
                f"{path}: {name} is {theirs}, the model's is {ours}: "
                "--model.encoder and its options must be those of the file"
            )
    if more := sorted(state.keys() - own.keys()):
        raise InputError(
            f"{path}: has {more[0]}, which the model has not: "
            "--model.encoder and its options must be those of the file"
        )
    backbone.load_state_dict(state)
