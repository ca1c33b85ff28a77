"""Model and data of a run, built again from what its checkpoint says."""

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentParser

from ssl_vision.errors import InputError
from ssl_vision.models import SimCLR
from ssl_vision.runs.checkpoint import Checkpoint
from ssl_vision.runs.complaint import one_line


def untrained_model(config: Mapping[str, Any]) -> SimCLR:
    """The model of a run's config, with the weights that its seed draws.

    Raises:
        InputError: the config describes no model that can be built.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(pl.LightningModule, "model", required=True)
    try:
        parsed = parser.parse_object({"model": dict(config["model"])})
        if parsed.model.init_args.seed is None:
            parsed.model.init_args.seed = config["seed_everything"]
        model: SimCLR = parser.instantiate(parsed).model
    except Exception as error:  # of any class that the config names
        raise InputError(f"the run's config describes no model: {one_line(str(error))}") from error
    return model


def trained_model(checkpoint: Checkpoint) -> SimCLR:
    """The model with the checkpoint's weights.

    Raises:
        InputError: the weights do not fit the network that the checkpoint's config describes.
    """
    try:
        with torch.device("meta"):  # a network that the weights do not fit is refused before it takes memory
            untrained_model(checkpoint.config).load_state_dict(checkpoint.state, assign=True)
        model = untrained_model(checkpoint.config)
        model.load_state_dict(checkpoint.state)
    except InputError as error:
        raise InputError(f"{checkpoint.path}: {error}") from error
    except RuntimeError as error:
        _, *found = str(error).splitlines()
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise InputError(
            f"{checkpoint.path}: its weights do not fit its config ({' '.join(found[0].split())}{more})"
        ) from error
    return model
