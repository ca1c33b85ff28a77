"""Checks of the parts of a method, which name the option to change."""

import inspect
from collections.abc import Collection, Mapping, Sequence

from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from ssl_vision.data.module import ImageData
from ssl_vision.encoders import Encoder, Timm, measure_num_features
from ssl_vision.errors import InputError
from ssl_vision.objectives import Objective, as_objective
from ssl_vision.objectives.gather import is_distributed


def check_objective(
    module: nn.Module, *, method: str, available: Collection[str], pairs: Sequence[str]
) -> None:
    """Have an objective compare the pairs of a method, and check its inputs.

    Args:
        module: the objective.
        method: name of the method's class, for the message.
        available: inputs that the method can give in addition to the embeddings.
        pairs: the ``pairs`` that the method supports, its default first.

    Raises:
        InputError: the module compares other pairs, does not accept two embeddings, or requires an input that
            is not available.
    """
    objective, name = as_objective(module), type(module).__name__
    try:
        objective.embedding_objective.use_pairs(pairs)
    except ValueError as error:
        raise InputError(f"{name} in {method}: {error}") from error
    if missing := set(objective.required_inputs).difference(available):
        needed = ", ".join(sorted(missing))
        raise InputError(f"{name} needs {needed}, which {method} does not have")
    signature = inspect.signature(module.forward)
    try:
        signature.bind(0, 0, **dict.fromkeys(objective.required_inputs))
        if list(signature.parameters)[1:2] == ["labels"]:
            raise TypeError
    except TypeError as error:
        raise InputError(
            f"{name} is not an objective: its forward does not accept the embeddings of two views"
        ) from error


def check_gathers(objective: Objective, *, name: str) -> None:
    """Warn about an objective that does not gather the embeddings of several processes.

    Args:
        objective: the objective.
        name: name of its class, for the message.
    """
    if is_distributed() and not objective.gather:
        rank_zero_warn(
            f"{name} does not state that it gathers the embeddings of all processes (gather is False): "
            "each process may use only the negatives of its own batch"
        )


def checked_loss(loss: Tensor, *, method: str, objective: str) -> Tensor:
    """Return a loss after a check that it can be trained with.

    Args:
        loss: the loss of a batch.
        method: name of the method's class, for the message.
        objective: name of the objective's class, for the message.

    Raises:
        InputError: the loss is not a scalar, or does not depend on the weights.
    """
    if loss.numel() == 1 and loss.requires_grad:
        return loss
    problem = "has no gradient" if loss.numel() == 1 else f"has shape {tuple(loss.shape)}"
    raise InputError(
        f"the loss of {method} with {objective} {problem}: it must be a scalar that depends on the embeddings"
    )


def check_images(encoder: Encoder, data: ImageData) -> None:
    """Check that an encoder accepts images of the sizes and the number of channels of the views.

    Raises:
        InputError: the encoder does not accept them.
    """
    size, channels = data.views.size, data.views.channels
    if channels != encoder.in_channels:
        raise InputError(
            f"views.mean has {channels} numbers, but the encoder has {encoder.in_channels} "
            f"channels: set --model.encoder.in_channels {channels}"
        )
    try:
        measure_num_features(encoder, size, channels)
    except ValueError as error:
        fixed = isinstance(encoder, Timm) and "match model" in str(error)
        advice = f"; add --model.encoder.img_size {size}" if fixed else ""
        raise InputError(f"data.views.size {size}: {error}{advice}") from error
    for smaller in data.progressive_resizing.values():
        try:
            measure_num_features(encoder, smaller, channels)
        except ValueError as error:
            raise InputError(f"data.progressive_resizing to {smaller}: {error}") from error


def check_shapes(stored: Mapping[str, Tensor], own: Mapping[str, Tensor], *, method: str) -> None:
    """Check that the shapes of a checkpoint's tensors are those of a model.

    Args:
        stored: tensors of the checkpoint.
        own: tensors of the model.
        method: name of the method's class, for the message.

    Raises:
        InputError: a shape differs, such as that of a memory bank if the number of images has changed.
    """
    for name, tensor in stored.items():
        if name in own and own[name].shape != tensor.shape:
            memory = name.startswith("objective.") and len(own[name]) != len(tensor)
            raise InputError(
                f"the checkpoint's {name} has shape {tuple(tensor.shape)}, the model's "
                f"{tuple(own[name].shape)}: "
                + (
                    "train on as many images as before"
                    if memory
                    else "give the encoder and the sizes with which it was trained, as in "
                    f"{method}.load_from_checkpoint(FILE, encoder=…)"
                )
            )
