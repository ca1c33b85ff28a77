"""Weights of an encoder from a file, as initial weights of a run or for an evaluation."""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ssl_vision.encoders import Encoder, ModuleEncoder
from ssl_vision.errors import InputError
from ssl_vision.hub import local_file
from ssl_vision.methods import Method
from ssl_vision.runs.checkpoint import CHECKPOINT_KEY, is_checkpoint, load_plain, read_checkpoint

_INITIAL = "--initial_checkpoint"

_LAYOUTS = (
    "state_dict_ema:", "state_dict:", "model:", "teacher:", "student:",
    "module.", "_orig_mod.", "_forward_module.",
    "teacher.", "model.", "backbone.", "encoder_q.", "base_encoder.", "encoder.", "student.",
)  # fmt: skip
"""Keys (with a colon) and prefixes of the encoder in files of other training code, one inside another.

The first row has the keys below which files hold state dicts: moving averages first, as in timm.
The second has the prefixes of DistributedDataParallel, torch.compile and Fabric, and the third those of DINO,
lightly, solo-learn, MoCo and SupContrast. At each level the first that a file has is removed, unless the
encoder's own names have it.
"""

_SEQUENTIAL = {
    "0": "conv1", "1": "bn1", "2": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4",
}  # fmt: skip
"""Numbers of a ResNet's layers in ``nn.Sequential(*resnet.children())``; bn1 follows the pool in `ResNet`."""

_HEADS = ("classifier", "fc", "head", "predictor", "projection_head", "projector", "prototypes")
"""Layers above the encoder, which are left out."""


def start_from(model: nn.Module, path: str | Path, *, by_order: bool = False) -> str:
    """Load initial weights from a file into a model, and return a description of what was loaded.

    The backbone must match completely. The projection head of a run is loaded if its shapes match those of
    the model; otherwise it keeps its random initialisation. The objective's parameters and the optimizer's
    state are not loaded: this is a new run, not the continuation of another one.

    Args:
        model: the model, modified in place.
        path: run directory, file of weights (see `read_weights`), or address ``hf://OWNER/NAME`` of a
            repository on the Hugging Face Hub, optionally with ``@REVISION``.
        by_order: give the tensors the names of the backbone's, see `named_by_order`.

    Raises:
        InputError: the file does not exist, cannot be downloaded or read, or belongs to another encoder; or
            the model is not a `Method`.
    """
    if not isinstance(model, Method):
        raise InputError(f"{_INITIAL} requires a method of ssl_vision, not {type(model).__name__}")
    file = local_file(path)
    state = read_weights(file, option=_INITIAL)
    options = "--model.encoder and its options"
    used = load_encoder_weights(model.backbone, state, file, options=options, by_order=by_order)
    head = {name.removeprefix("head."): tensor for name, tensor in state.items() if name.startswith("head.")}
    expected = model.head.state_dict()
    fits = head.keys() == expected.keys() and all(head[n].shape == expected[n].shape for n in expected)
    if fits:
        model.head.load_state_dict(head)
    model.after_initial_weights()
    if fits:
        return f"backbone and projection head from {path} ({used})"
    return f"backbone from {path} ({used}); the projection head is initialised randomly"


def read_weights(path: Path, *, option: str) -> dict[str, Tensor]:
    """Read the state dict of a file or a run directory.

    Args:
        path: run directory, checkpoint of ``ssl-vision fit``, or a state dict of another library, saved as
            ``.safetensors`` or with ``torch.save``, alone or below a key such as ``state_dict``. Only tensors
            and plain values are read from pickles.
        option: option of the command that names the file, for messages.

    Returns:
        Tensors by name. Names of a state dict below a key start with the key and a colon.

    Raises:
        InputError: the file does not exist, cannot be read, or contains no state dict.
    """
    if path.is_dir():
        return read_checkpoint(path).state
    if not path.is_file():
        raise InputError(f"{option} {path}: no such file or run directory")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in list(file.keys())}
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable file of weights ({type(error).__name__})") from error
    content = load_plain(path, "file of weights")
    if isinstance(content, dict) and CHECKPOINT_KEY in content:
        return read_checkpoint(path).state
    states = {"": content}
    if isinstance(content, dict):
        states |= {f"{key}:": value for key, value in content.items()}
    state = {
        f"{key}{name}": tensor
        for key, values in states.items()
        if isinstance(values, dict)
        and all(isinstance(name, str) and torch.is_tensor(tensor) for name, tensor in values.items())
        for name, tensor in values.items()
    }
    if not state:
        raise InputError(f"{path}: not a state dict that maps names to tensors")
    return state


def stated_normalisation(path: str | Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and the standard deviation with which weights expect images to be normalised.

    A run, a checkpoint of ``ssl-vision fit`` and an exported encoder state them; None for other files.
    """
    file = local_file(path)
    with suppress(LookupError, TypeError, ValueError, SafetensorError, OSError):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as weights:
                about = weights.metadata() or {}
            return tuple(json.loads(about["mean"])), tuple(json.loads(about["std"]))
        if file.is_dir() or is_checkpoint(file):
            views = read_checkpoint(file).config["data"]["init_args"]["views"]
            return tuple(views["mean"]), tuple(views["std"])
    return None


def load_encoder_weights(
    encoder: Encoder, state: Mapping[str, Tensor], path: Path, *, options: str, by_order: bool = False
) -> str:
    """Load the weights of an encoder, which must match it completely.

    Keys and prefixes of training code, such as ``backbone.`` or ``module.encoder_q.``, are removed, and
    layers above the encoder are left out. Weights that do not match are converted if the encoder can do so
    (`Encoder.convert_weights`). BatchNorm's number of batches may be missing, as in older files.

    Args:
        encoder: the encoder, modified in place.
        state: state dict of the encoder, or of a model that contains it.
        path: file of the state dict, for messages.
        options: options of the command that describe the encoder, for messages.
        by_order: give the tensors the names of the encoder's, see `named_by_order`.

    Returns:
        Which tensors were loaded, resized and left out, in a few words.

    Raises:
        InputError: the weights do not match the encoder, are not finite, or are not ordinary floating-point
            tensors.
    """
    network = "network." if isinstance(encoder, ModuleEncoder) else ""
    expected = {name.removeprefix(network): value for name, value in encoder.state_dict().items()}
    mismatch = f"does not belong to this encoder ({type(encoder).__name__}): {options} must match the file"
    mapped = ""
    if by_order:
        state, mapped = named_by_order(state, expected, path)
    weights, prefix, left_out = _without_prefix(state, expected, network)
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    if any(shapes.get(name) != value.shape for name, value in expected.items()):
        try:
            weights = encoder.convert_weights(weights)
        except Exception as error:  # of any class, because code of another library may fail on foreign files
            raise InputError(f"{path}: {mismatch} ({type(error).__name__})") from error
    for name in weights.keys() - expected.keys():
        if (top := name.partition(".")[0]) in _HEADS:
            left_out.add(top)
            del weights[name]
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):
            weights.setdefault(name, value)
        if name not in weights:
            first = f", but {next(iter(weights))}" if weights else ""
            raise InputError(f"{path}: has no {name}{first}, so it {mismatch}")
        if weights[name].shape != value.shape:
            found = f"shape {tuple(weights[name].shape)}, but the model's has {tuple(value.shape)}"
            raise InputError(f"{path}: {name} has {found}: {options} must match the file")
        if problem := _problem(weights[name], value):
            raise InputError(f"{path}: {name} {problem}")
    if unexpected := sorted(weights.keys() - expected.keys()):
        raise InputError(
            f"{path}: has {unexpected[0]}, which the model does not have: {options} must match the file"
        )
    encoder.load_state_dict({f"{network}{name}": value for name, value in weights.items()})
    resized = [
        f"{name} resized from {shapes[name]} to {tuple(value.shape)}"
        for name, value in expected.items()
        if shapes.get(name, value.shape) != value.shape
    ]
    others = [f"{', '.join(sorted(left_out))} left out"] if left_out else []
    return "; ".join([f"{len(expected)} tensors{prefix and f' below {prefix}'}{mapped}", *resized, *others])


def named_by_order(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path
) -> tuple[dict[str, Tensor], str]:
    """Give tensors of a file the names of an encoder's tensors, which have the same shapes in the same order.

    This is for networks whose layers have other names in other code. The tensors of the file that follow
    those of the encoder, such as a classifier's, are left out.

    Args:
        state: tensors of the file.
        expected: tensors of the encoder. BatchNorm's number of batches is passed over if the file has no
            scalars.
        path: the file, for messages.

    Returns:
        The tensors with their new names, and a text that states which were renamed and which left out.

    Raises:
        InputError: a shape differs, or the file has too few tensors.
    """
    found, counts = list(state), any(tensor.ndim == 0 for tensor in state.values())
    names = [name for name in expected if counts or not name.endswith("num_batches_tracked")]
    for place, name in enumerate(names):
        shape = tuple(expected[name].shape)
        if place == len(found):
            raise InputError(f"{path}: has {place} tensors, so none for {name} {shape}")
        if (other := tuple(state[found[place]].shape)) != shape:
            raise InputError(f"{path}: {found[place]} {other} is in the place of {name} {shape}")
    text = f" by order, from {found[0]} as {names[0]} to {found[len(names) - 1]} as {names[-1]}"
    if rest := found[len(names) :]:
        text += f", without {', '.join(rest)}"
    return dict(zip(names, state.values(), strict=False)), text


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
) -> tuple[dict[str, Tensor], str, set[str]]:
    """Return the tensors of the encoder and of layers above it, their prefix, and the other parts' names."""

    def start_with(prefix: str, names: Iterable[str]) -> bool:
        return any(name.startswith(prefix) for name in names)

    used, left_out = "", set[str]()
    layouts = [prefix for prefix in _LAYOUTS if not start_with(prefix, expected)]
    while prefix := next((each for each in layouts if start_with(each, state)), ""):
        left_out |= {re.split("[.:]", name)[0] for name in state if not name.startswith(prefix)}
        used += prefix
        state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    if "layer1.0.conv1.weight" in expected and "0.weight" in state:
        parts = {name: name.partition(".") for name in state}
        state = {f"{_SEQUENTIAL.get(top, top)}.{rest}": state[name] for name, (top, _, rest) in parts.items()}
    wrapped = {f"{network}{name}" for name in expected}
    weights = {
        name.removeprefix(network) if name in wrapped else name: value for name, value in state.items()
    }
    return weights, used, left_out
