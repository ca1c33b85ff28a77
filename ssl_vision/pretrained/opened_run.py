"""A run opened by its directory or by one of its checkpoints: its files, and its networks and data."""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytorch_lightning as pl
import torch
from torch import nn

from ssl_vision.cli.config_objects import built, resolved
from ssl_vision.errors import InputError
from ssl_vision.methods import Method
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.folder import RunFolder, owned
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.wandb import SCHEME, fetched_checkpoint

Network = TypeVar("Network", bound=nn.Module)

ROOT_NEEDED = "--data.root"
"""The data root of another user's run until one is given."""


class OpenedRun(NamedTuple):
    """A checkpoint, and the run that it belongs to."""

    checkpoint: Checkpoint
    folder: RunFolder
    """The run directory, or the checkpoint's own directory outside a run."""
    owned: bool
    """True if the directory and the checkpoint belong to the current user and were not downloaded."""
    allow_class: Collection[str] = ()
    """Classes outside this package that the config may name."""

    @property
    def config(self) -> dict[str, Any]:
        """Config of the run, from the checkpoint."""
        return self.checkpoint.config

    @property
    def is_last_epoch(self) -> bool:
        """True if the run directory has a config and was trained no longer than the checkpoint."""
        return self.folder.config_file.exists() and self.checkpoint.epoch == Run(self.folder.path).epoch

    def untrained(self) -> Method:
        """Build the model with its initial weights, which depend on the seed.

        Raises:
            InputError: the config names a class that is not allowed.
        """
        path, allow_class = self.checkpoint.path, self.allow_class
        model: Method = built(pl.LightningModule, "model", self.config, where=path, allow_class=allow_class)
        return model

    def trained(self) -> Method:
        """Build the model with the weights of the checkpoint.

        Raises:
            InputError: the config names a class that is not allowed, or the weights do not match its network.
        """
        try:
            return with_weights(self.untrained, self.checkpoint.state)
        except RuntimeError as error:
            mismatch = str(error).splitlines()[1].strip()
            raise InputError(
                f"{self.checkpoint.path}: its weights do not fit its config ({mismatch})"
            ) from error

    def data_section(self, section: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the data section of the config, or another one, as `safe_data` does."""
        config = self.config if section is None else {**self.config, "data": section}
        return safe_data(config, where=self.checkpoint.path, owned=self.owned, allow_class=self.allow_class)


def open_run(path: str | Path, *, allow_class: Collection[str] = ()) -> OpenedRun:
    """Open a run by its directory, one of its checkpoints, or the ``wandb://`` address of a checkpoint.

    Args:
        path: run directory, for its last checkpoint, or checkpoint, or address.
        allow_class: classes outside this package that the config may name.

    Raises:
        InputError: as `read_checkpoint`, or the checkpoint cannot be downloaded.
    """
    remote = str(path).startswith(SCHEME)
    checkpoint = read_checkpoint(fetched_checkpoint(str(path)) if remote else path)
    parent = checkpoint.path.parent
    folder = RunFolder(os.path.normpath(parent / ".."))
    if not folder.config_file.exists():
        folder = RunFolder(parent)
    own = not remote and owned(folder.path, checkpoint.path)
    return OpenedRun(checkpoint, folder, own, allow_class)


def with_weights(build: Callable[[], Network], state: Mapping[str, torch.Tensor]) -> Network:
    """Build a network and load its weights, without a change of random number generators.

    Raises:
        RuntimeError: the weights do not match the network.
    """
    with torch.random.fork_rng(devices=[]):
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
