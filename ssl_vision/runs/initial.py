"""Initial weights from another run, or from an encoder of another library."""

from pathlib import Path

from torch import nn

from ssl_vision.errors import InputError
from ssl_vision.hub import local_file
from ssl_vision.methods import Method
from ssl_vision.runs.weights import load_encoder_weights, read_weights

_OPTION = "--initial_checkpoint"


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
        raise InputError(f"{_OPTION} requires a method of ssl_vision, not {type(model).__name__}")
    with local_file(path) as file:
        file = file.expanduser()
        state = read_weights(file, option=_OPTION)
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
