"""Model and data of a run, rebuilt from its checkpoint."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from torch import nn

from ssl_vision.cli.classes import built, resolved
from ssl_vision.errors import InputError
from ssl_vision.methods import Method
from ssl_vision.runs.checkpoint import Checkpoint

Network = TypeVar("Network", bound=nn.Module)

ROOT_NEEDED = "--data.root"
"""The data root of another user's run until one is given."""


def untrained_model(
    config: Mapping[str, Any], *, where: object = "config", allow_class: Collection[str] = ()
) -> Method:
    """Build the model of a run with its initial weights, which depend on the seed.

    Args:
        config: config of the run.
        where: file of the config, for error messages.
        allow_class: classes outside this package that the config may name.

    Raises:
        InputError: the config names another class.
    """
    model: Method = built(pl.LightningModule, "model", config, where=where, allow_class=allow_class)
    return model


def trained_model(checkpoint: Checkpoint, *, allow_class: Collection[str] = ()) -> Method:
    """Build the model of a run with the weights of a checkpoint.

    Args:
        checkpoint: checkpoint of the run.
        allow_class: classes outside this package that its config may name.

    Raises:
        InputError: the config names another class, or the weights do not match its network.
    """
    build = partial(untrained_model, checkpoint.config, where=checkpoint.path, allow_class=allow_class)
    try:
        return with_weights(build, checkpoint.state)
    except RuntimeError as error:
        _, *mismatches = str(error).splitlines()
        more = f" and {len(mismatches) - 1} more" if len(mismatches) > 1 else ""
        raise InputError(
            f"{checkpoint.path}: its weights do not fit its config ({' '.join(mismatches[0].split())}{more})"
        ) from error


def with_weights(build: Callable[[], Network], state: Mapping[str, torch.Tensor]) -> Network:
    """Build a network and load its weights, which are checked before memory is allocated.

    The state of random number generators does not change.

    Raises:
        RuntimeError: the weights do not match the network.
    """
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            try:
                sketch = build()
            except Exception:  # for example, an encoder that computes with its weights in its constructor
                sketch = None
        if sketch is not None:
            sketch.load_state_dict(state, assign=True)
        network = build()
    network.load_state_dict(state)
    return network


def safe_data(
    config: Mapping[str, Any], *, where: object, owned: bool, allow_class: Collection[str] = ()
) -> dict[str, Any]:
    """Return the data section of a run without downloads and, for another user's run, without its paths.

    Args:
        config: config of the run.
        where: file of the config, for error messages.
        owned: True if the run belongs to the user. Otherwise ``root`` becomes `ROOT_NEEDED`, and ``cache``
            and ``cache_dir`` have their defaults.
        allow_class: classes outside this package that the config may name.

    Raises:
        InputError: the config names another class.
    """
    section = resolved(pl.LightningDataModule, "data", config, where=where, allow_class=allow_class)
    for options in (section["init_args"], section.get("dict_kwargs") or {}):
        if "download" in options:
            options["download"] = False
        if not owned:
            options |= {"root": ROOT_NEEDED} if "root" in options else {}
            for key in ("cache", "cache_dir"):
                options.pop(key, None)
    return section
