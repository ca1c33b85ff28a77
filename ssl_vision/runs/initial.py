"""Initial weights from another run, or from an encoder of another library."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ssl_vision.encoders import ModuleEncoder
from ssl_vision.errors import InputError
from ssl_vision.hub import local_file
from ssl_vision.methods import Method
from ssl_vision.runs.checkpoint import check_bytes, read_checkpoint

_CLASSIFIERS = ("classifier.", "fc.", "head.")
"""Prefixes of the classifiers of torchvision and timm networks, which encoders do not have."""


def start_from(model: nn.Module, path: str | Path) -> str:
    """Load initial weights from a file into a model, and return a description of what was loaded.

    The backbone must match completely. The projection head of a run is loaded if its shapes match those of
    the model; otherwise it keeps its random initialisation. The objective's parameters and the optimizer's
    state are not loaded: this is a new run, not the continuation of another one.

    Args:
        model: the model, modified in place.
        path: run directory, checkpoint of ``ssl-vision fit``, or state dict of an encoder with the names of
            torchvision or timm, saved as ``.safetensors`` or with ``torch.save``; or the address
            ``hf://OWNER/NAME`` of a repository with such a file, ``model.safetensors``, on the Hugging Face
            Hub, optionally with ``@REVISION``. A classifier is ignored. Only tensors and plain values are
            read from pickles.

    Raises:
        InputError: the file does not exist, cannot be downloaded or read, or belongs to another encoder; or
            the model is not a `Method`.
    """
    if not isinstance(model, Method):
        raise InputError(f"--initial_checkpoint requires a method of ssl_vision, not {type(model).__name__}")
    with local_file(path) as file:
        file = file.expanduser()
        state = _read(file, model.state_dict())
        _load(model.backbone, _select_encoder(state, model.backbone), file)
    head = {name.removeprefix("head."): tensor for name, tensor in state.items() if name.startswith("head.")}
    expected = model.head.state_dict()
    fits = head.keys() == expected.keys() and all(head[n].shape == expected[n].shape for n in expected)
    if fits:
        model.head.load_state_dict(head)
    model.after_initial_weights()
    if fits:
        return f"backbone and projection head from {path}"
    return f"backbone from {path}; the projection head is initialised randomly"


def _select_encoder(state: Mapping[str, Tensor], encoder: nn.Module) -> dict[str, Tensor]:
    """Select the encoder's tensors in a state dict, without a classifier, under the names of the encoder.

    Names in a run start with ``backbone.``. Names of another library lack the prefix ``network.`` of a
    `ModuleEncoder`.
    """
    expected = encoder.state_dict().keys()
    if any(name.startswith("backbone.") for name in state):
        return {
            name.removeprefix("backbone."): tensor
            for name, tensor in state.items()
            if name.startswith("backbone.")
        }
    prefix = "network." if isinstance(encoder, ModuleEncoder) else ""
    renamed = {name if name in expected else f"{prefix}{name}": tensor for name, tensor in state.items()}
    ignored = tuple(f"{prefix}{name}" for name in _CLASSIFIERS)
    return {
        name: tensor for name, tensor in renamed.items() if name in expected or not name.startswith(ignored)
    }


def _read(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the tensors of a file or a run directory; those of a run start with ``backbone.`` and ``head.``.

    Args:
        path: path of the file or the run directory.
        expected: state dict of the model.
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
        raise InputError(f"{path}: refused, it contains more than tensors and plain values") from error
    except (
        SafetensorError, zipfile.BadZipFile, OSError, RuntimeError, EOFError, ValueError, LookupError
    ) as error:  # fmt: skip
        raise InputError(f"{path}: not a readable file of weights ({type(error).__name__})") from error
    if not isinstance(state, dict) or not all(map(torch.is_tensor, state.values())):
        raise InputError(f"{path}: not a state dict that maps names to tensors")
    return state


def _read_safetensors(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the tensors of a file; of tensors that do not fit the model, only the shape is read."""
    state: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        for name in list(file.keys()):
            shape = tuple(file.get_slice(name).get_shape())
            candidates = (name, f"backbone.{name}", f"backbone.network.{name}")
            target = next((expected[key] for key in candidates if key in expected), None)
            fits = target is not None and target.shape == shape
            state[name] = file.get_tensor(name) if fits else torch.empty(shape, device="meta")
    return state


def _load(backbone: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    expected = backbone.state_dict()
    for name in expected:
        if name not in state:
            raise InputError(f"{path}: has no {name}, so it does not belong to this encoder")
        shape, expected_shape = tuple(state[name].shape), tuple(expected[name].shape)
        if shape != expected_shape:
            raise InputError(
                f"{path}: {name} has shape {shape}, but the model's has {expected_shape}: "
                "--model.encoder and its options must match the file"
            )
    if unexpected := sorted(state.keys() - expected.keys()):
        raise InputError(
            f"{path}: has {unexpected[0]}, which the model does not have: "
            "--model.encoder and its options must match the file"
        )
    backbone.load_state_dict(state)
