"""Weights of an encoder from a file, as initial weights of a run or for an evaluation."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ssl_vision.encoders import Encoder, ModuleEncoder
from ssl_vision.errors import InputError
from ssl_vision.hub import local_file
from ssl_vision.methods import Method
from ssl_vision.runs.checkpoint import CHECKPOINT_KEY, read_checkpoint

_INITIAL = "--initial_checkpoint"

_CLASSIFIERS = ("classifier.", "fc.", "head.")
"""Prefixes of the classifiers of torchvision and timm networks, which encoders do not have."""

_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder_q.", "encoder.")
"""Prefixes of the encoder in checkpoints of training code, alone or one after another, in this order."""

_STATE_KEYS = ("state_dict", "model", "teacher", "student")
"""Keys of the state dict in files that hold other values, too; the first that a file has is read."""


def start_from(model: nn.Module, path: str | Path) -> str:
    """Load initial weights from a file into a model, and return a description of what was loaded.

    The backbone must match completely. The projection head of a run is loaded if its shapes match those of
    the model; otherwise it keeps its random initialisation. The objective's parameters and the optimizer's
    state are not loaded: this is a new run, not the continuation of another one.

    Args:
        model: the model, modified in place.
        path: run directory, file of weights (see `read_weights`), or address ``hf://OWNER/NAME`` of a
            repository on the Hugging Face Hub, optionally with ``@REVISION``.

    Raises:
        InputError: the file does not exist, cannot be downloaded or read, or belongs to another encoder; or
            the model is not a `Method`.
    """
    if not isinstance(model, Method):
        raise InputError(f"{_INITIAL} requires a method of ssl_vision, not {type(model).__name__}")
    with local_file(path) as file:
        file = file.expanduser()
        state = read_weights(file, option=_INITIAL)
        load_encoder_weights(model.backbone, state, file, options="--model.encoder and its options")
    head = {name.removeprefix("head."): tensor for name, tensor in state.items() if name.startswith("head.")}
    expected = model.head.state_dict()
    fits = head.keys() == expected.keys() and all(head[n].shape == expected[n].shape for n in expected)
    if fits:
        model.head.load_state_dict(head)
    model.after_initial_weights()
    if fits:
        return f"backbone and projection head from {path}"
    return f"backbone from {path}; the projection head is initialised randomly"


def read_weights(path: Path, *, option: str) -> dict[str, Tensor]:
    """Read the state dict of a file or a run directory.

    Args:
        path: run directory, checkpoint of ``ssl-vision fit``, or a state dict of another library, saved as
            ``.safetensors`` or with ``torch.save``, alone or below a key such as ``state_dict``. Only tensors
            and plain values are read from pickles.
        option: option of the command that names the file, for messages.

    Raises:
        InputError: the file does not exist, cannot be read, or contains no state dict.
    """
    if path.is_dir():
        return read_checkpoint(path).state
    if not path.is_file():
        raise InputError(f"{option} {path}: no such file or run directory")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in list(file.keys())}
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: refused, it contains more than tensors and plain values") from error
    except (
        SafetensorError, zipfile.BadZipFile, OSError, RuntimeError, EOFError, ValueError, LookupError
    ) as error:  # fmt: skip
        raise InputError(f"{path}: not a readable file of weights ({type(error).__name__})") from error
    if isinstance(content, dict) and CHECKPOINT_KEY in content:
        return read_checkpoint(path).state
    nested = [content.get(key) for key in _STATE_KEYS] if isinstance(content, dict) else []
    for state in (content, *nested):
        if isinstance(state, dict) and state and all(map(_is_entry, state.items())):
            return state
    raise InputError(f"{path}: not a state dict that maps names to tensors")


def _is_entry(entry: tuple[Any, Any]) -> bool:
    return isinstance(entry[0], str) and torch.is_tensor(entry[1])


def load_encoder_weights(encoder: Encoder, state: Mapping[str, Tensor], path: Path, *, options: str) -> None:
    """Load the weights of an encoder, which must match it completely.

    Prefixes of training code, such as ``backbone.`` or ``module.encoder_q.``, are removed, and a classifier
    is ignored. Weights that do not match are converted if the encoder can do so (`Encoder.convert_weights`).
    BatchNorm's number of batches may be missing, as in older files.

    Args:
        encoder: the encoder, modified in place.
        state: state dict of the encoder, or of a model that contains it.
        path: file of the state dict, for messages.
        options: options of the command that describe the encoder, for messages.

    Raises:
        InputError: the weights do not match the encoder, are not finite, or are not ordinary floating-point
            tensors.
    """
    network = "network." if isinstance(encoder, ModuleEncoder) else ""
    expected = {name.removeprefix(network): value for name, value in encoder.state_dict().items()}
    weights = _without_prefix(state, expected, network)
    if any(name not in weights or weights[name].shape != value.shape for name, value in expected.items()):
        try:
            weights = encoder.convert_weights(weights)
        except Exception as error:  # of any class, because code of another library may fail on foreign files
            raise InputError(f"{path}: does not belong to this encoder ({type(error).__name__})") from error
    weights = {
        name: value
        for name, value in weights.items()
        if name in expected or not name.startswith(_CLASSIFIERS)
    }
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):
            weights.setdefault(name, value)
        if name not in weights:
            first = f", but {next(iter(weights))}" if weights else ""
            raise InputError(f"{path}: has no {name}{first}, so it does not belong to this encoder")
        if weights[name].shape != value.shape:
            shapes = f"shape {tuple(weights[name].shape)}, but the model's has {tuple(value.shape)}"
            raise InputError(f"{path}: {name} has {shapes}: {options} must match the file")
        if problem := _problem(weights[name], value):
            raise InputError(f"{path}: {name} {problem}")
    if unexpected := sorted(weights.keys() - expected.keys()):
        raise InputError(
            f"{path}: has {unexpected[0]}, which the model does not have: {options} must match the file"
        )
    encoder.load_state_dict({f"{network}{name}": value for name, value in weights.items()})


def _problem(tensor: Tensor, expected: Tensor) -> str:
    """Return why a tensor of the right shape cannot be loaded, or ""."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return "is sparse, quantized or without data: save it as an ordinary tensor"
    if expected.is_floating_point() and not tensor.is_floating_point():
        return f"is {tensor.dtype}, but floating-point numbers are expected"
    finite = not expected.is_floating_point() or expected.isfinite().all()  # a mask may have infinities
    if finite and not tensor.float().isfinite().all():
        return "contains NaN or infinite values"
    return ""


def _without_prefix(
    state: Mapping[str, Tensor], expected: Mapping[str, Any], network: str
) -> dict[str, Tensor]:
    """Return the tensors of the encoder, and of layers after it, under the names of the wrapped network."""
    for prefix in _PREFIXES:
        inside = {
            name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
        }
        if inside and not any(name.startswith(prefix) for name in expected):
            state = inside
    wrapped = {f"{network}{name}" for name in expected}
    return {name.removeprefix(network) if name in wrapped else name: value for name, value in state.items()}
