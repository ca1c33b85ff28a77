"""Checks of the parts of a method before training, which name the option to change."""

import inspect
from collections.abc import Mapping
from typing import Any

from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from ssl_vision.data.module import ImageData
from ssl_vision.encoders import Encoder, Timm, measure_num_features
from ssl_vision.errors import InputError
from ssl_vision.objectives import as_objective
from ssl_vision.objectives.gather import is_distributed


def check_objective(method: Any) -> None:
    """Have the objective of a method compare the method's pairs, and check its inputs.

    Raises:
        InputError: the objective compares other pairs, does not accept two embeddings, or requires an input
            that the method does not have.
    """
    module, own = method.objective, type(method).__name__
    objective, name = as_objective(module), type(module).__name__
    try:
        objective.embedding_objective.use_pairs(method.pairs)
    except ValueError as error:
        raise InputError(f"{name} in {own}: {error}") from error
    if missing := set(objective.required_inputs).difference(method.available_inputs):
        needed = ", ".join(sorted(missing))
        raise InputError(f"{name} needs {needed}, which {own} does not have")
    signature = inspect.signature(module.forward)
    try:
        signature.bind(0, 0, **dict.fromkeys(objective.required_inputs))
        if list(signature.parameters)[1:2] == ["labels"]:
            raise TypeError
    except TypeError as error:
        raise InputError(
            f"{name} is not an objective: its forward does not accept the embeddings of two views"
        ) from error


def prepare_objective(method: Any, data: ImageData | None, *, shallow: int | None) -> None:
    """Prepare the objective of a method for training, and warn if it does not gather embeddings.

    Args:
        method: the method.
        data: its data module, if there is one.
        shallow: width of the encoder's third stage, if the objective requires it.

    Raises:
        InputError: the objective cannot be trained with these sizes.
    """
    objective, name = as_objective(method.objective), type(method.objective).__name__
    try:
        objective.prepare(
            images=None if data is None else len(data.split("pretrain")),
            embeddings=method.output_dim,
            features=method.backbone.num_features,
            shallow=shallow,
        )
    except ValueError as error:
        raise InputError(f"model.objective: {error}") from error
    if "indices" in objective.required_inputs:
        # DistributedDataParallel would broadcast the memory of the images at every step, although it is
        # equal in all processes.
        names = [f"objective.{name}" for name, _ in method.objective.named_buffers()]
        method._ddp_params_and_buffers_to_ignore = names
    if is_distributed() and not objective.gather:
        rank_zero_warn(
            f"{name} does not state that it gathers the embeddings of all processes (gather is False): "
            "each process may use only the negatives of its own batch"
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
