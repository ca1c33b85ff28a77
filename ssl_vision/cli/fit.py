"""``fit`` on Lightning's command line: options, run directory, trainer and result."""

import json
import os
import pydoc
import shlex
import signal
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import Namespace
from jsonargparse.typing import register_type
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from pytorch_lightning.utilities.exceptions import SIGTERMException

from ssl_vision.callbacks import (
    GradientDiagnostics,
    Memory,
    ObjectiveStatistics,
    OnlineProbe,
    SkipNonFiniteSteps,
    StepSeeds,
    Times,
    WeightHistogram,
)
from ssl_vision.cli.fit_summary import summary
from ssl_vision.cli.import_paths import class_paths
from ssl_vision.cli.parser import ArgumentParser, expanded, one_line
from ssl_vision.cli.progress_bar import RunBar
from ssl_vision.cli.run_options import (
    DEFAULTS,
    add_run_options,
    check_callbacks,
    check_trainer,
    set_options_for_weights,
    starts_from_weights,
)
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError, Interrupted
from ssl_vision.progress import epochs_text, quiet, without_noise
from ssl_vision.runs.checkpoint import AtomicCheckpointIO, Checkpoint, read_checkpoint
from ssl_vision.runs.checkpoint_schedule import ResumeCheckpoint, remove_requeued
from ssl_vision.runs.config import below_home, derived_name, differences, listed
from ssl_vision.runs.encoder_weights import start_from
from ssl_vision.runs.folder import RunFolder, run_path
from ssl_vision.runs.log import RunLog
from ssl_vision.runs.record import RunRecord, StartRecord, check_images, early_stopping
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.wandb import SCHEME, fetched_checkpoint, requeued_by_agent, wandb_logger, wandb_mode
from ssl_vision.tracking.wandb_callback import WandbCallback

_FIRST = ("name", "seed_everything", "model", "data", "trainer")
"""First keys of config.yaml, which all other recorded options follow."""

_NOT_RECORDED = ("ckpt_path", "overwrite", "report")

register_type(torch.device, fail_already_registered=False)  # so that configs can be read back
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, value: dumper.represent_data(value.value))

_INPUT_ERRORS = (
    "`val_check_",
    "Early stopping conditioned on metric",
    "SyncBatchNorm layers only work with GPU",
)
"""Texts in errors of Lightning about options that only training can check."""

_INVALID = (ValueError, TypeError, RuntimeError, OverflowError, MemoryError, ImportError)
"""Errors of a constructor that refuses a value of an option."""


class _Parser(ArgumentParser, LightningArgumentParser):
    pass


class Outcome(NamedTuple):
    """Result of ``fit``: the run, a text to print, and the arguments of its report."""

    folder: RunFolder
    message: str = ""
    page: dict[str, Any] | None = None


class FitCLI(LightningCLI):
    """``fit``: options, run directory, model, data and trainer.

    Args:
        args: its options, which are `checked`.

    Raises:
        InputError: an option, a config file, the run directory or the checkpoint is not usable.
    """

    args: list[str]
    """Options as they are given."""
    folder: RunFolder
    """Run directory."""
    recorded: dict[str, Any]
    """Config as it is recorded."""
    checkpoint: Checkpoint | None = None
    """Checkpoint to continue from, without its weights."""

    def __init__(self, args: Sequence[str]) -> None:
        self.args = list(args)
        super().__init__(
            datamodule_class=pl.LightningDataModule,
            subclass_mode_data=True,
            save_config_callback=None,
            auto_configure_optimizers=False,
            parser_class=_Parser,
            parser_kwargs={"prog": "ssl-vision fit"},
            run=False,
            args=self.args,
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Leave the option of the seed to `add_run_options`."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the run directory, of logging and of metrics."""
        add_run_options(parser)

    def before_instantiate_classes(self) -> None:
        """Determine the run directory and the checkpoint to continue from."""
        config = self.config
        optimizer = config.model.get("init_args", {}).get("optimizer")
        check_trainer(config.trainer)
        if config.metrics.k is None:
            config.metrics.k = knn_k(config.data.class_path)
        if starts_from_weights(config):
            model = f"--model={json.dumps(DEFAULTS['model'])}"  # whose classes have the other options
            given = self.parser.parse_args([model, *self.args], defaults=False)
            set_options_for_weights(config, given=given)
        elif isinstance(optimizer, Namespace) and optimizer.get("freeze_epochs"):
            rank_zero_warn(
                "freeze_epochs, but no weights are given by --initial_checkpoint or encoder.pretrained"
            )
        plain = yaml.safe_load(self.parser.dump(config, skip_unset=False, skip_validation=True))
        others = [key for key in plain if key not in (*_FIRST, *_NOT_RECORDED)]
        self.recorded = below_home({key: plain[key] for key in (*_FIRST, *others)})
        self.recorded["name"] = config.name or derived_name(self.recorded)
        for key in ("model", "data", "trainer"):
            config[key] = expanded(config[key])
        self.folder = RunFolder(run_path(config.runs_dir, self.recorded["name"]))
        if config.ckpt_path is not None and config.overwrite:
            raise InputError("--ckpt_path continues a run and --overwrite replaces it: give one of them")
        if config.ckpt_path is None and is_requeued(self.folder):
            config.ckpt_path, config.overwrite = "last", False
        if config.ckpt_path is not None:
            self.checkpoint = checkpoint_at(config.ckpt_path, self.folder)
        if self.checkpoint is not None:
            check_config(self.checkpoint, self.recorded)
        self.check = partial(
            self.folder.check,
            self.recorded,
            resume=config.ckpt_path is not None,
            overwrite=config.overwrite,
            moved=knows_images(self.checkpoint),
        )
        rank_zero_only(self.check)()
        rank_zero_only(remove_requeued)(self.folder)

    def instantiate_classes(self) -> None:
        """Build the model, the data and the trainer."""
        try:
            super().instantiate_classes()
        except InputError:
            raise
        except (*_INVALID, MisconfigurationException) as error:
            raise InputError(one_line(str(error)) or type(error).__name__) from error

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Add the run's loggers, callbacks and plugins to those of the config."""
        objects, config = self.config_init, self.config_init.trainer
        folder = self.folder
        log = RunLog(folder.metrics_file, folder.lock.verify)
        loggers: list[Any] = [log, *(_listed(config.logger) if not isinstance(config.logger, bool) else [])]
        tracking: list[pl.Callback] = []
        if mode := wandb_mode(objects.wandb):
            wandb = wandb_logger(folder, self.recorded, mode=mode, fresh=self.checkpoint is None)
            loggers.append(wandb)
            tracking.append(WandbCallback(wandb, folder, artifacts=objects.wandb_artifacts))
        own_callbacks = _listed(config.callbacks)
        check_callbacks(own_callbacks)
        has_objective = "objective" in dict(self.model.named_children())
        files = AtomicCheckpointIO(folder.last, folder.previous, folder.lock.verify)
        callbacks: list[pl.Callback] = [*own_callbacks, objects.metrics]
        callbacks += [StepSeeds(torch.initial_seed()), Times(), Memory()]
        callbacks += [ObjectiveStatistics(), WeightHistogram(log)] if has_objective else []
        callbacks += [SkipNonFiniteSteps(objects.patience)]
        callbacks += [OnlineProbe()] if objects.online_probe else []
        callbacks += [GradientDiagnostics()] if objects.gradients else []
        epochs, steps = objects.save_every_n_epochs, objects.save_every_n_steps
        callbacks += [
            RunRecord(folder, self.recorded, checkpoint=self._file, check=self.check),
            ResumeCheckpoint(folder, files, every_n_epochs=epochs, every_n_steps=steps),
            *([StartRecord(folder)] if self.checkpoint is None and starts_from_weights(self.config) else []),
            *tracking,
        ]
        shows_bar = config.enable_progress_bar is not False
        if shows_bar and not any(isinstance(callback, ProgressBar) for callback in own_callbacks):
            callbacks.append(RunBar(log))
        kwargs |= {"logger": loggers, "callbacks": callbacks, "plugins": [*_listed(config.plugins), files]}
        return super().instantiate_trainer(default_root_dir=str(folder.path), **kwargs)

    @property
    def _file(self) -> Path | None:
        return None if self.checkpoint is None else self.checkpoint.path

    def fit(self) -> Outcome:
        """Train, or continue the training of the checkpoint, and summarise the run."""
        folder, checkpoint, trainer, data = self.folder, self.checkpoint, self.trainer, self.datamodule
        try:
            if checkpoint is None and self.config.initial_checkpoint is not None:
                by_order = self.config.weights_by_order
                rank_zero_info(start_from(self.model, self.config.initial_checkpoint, by_order=by_order))
            if checkpoint is not None and isinstance(data, ImageData):
                rank_zero_only(check_images)(data, checkpoint)
            trainer.fit(self.model, datamodule=data, ckpt_path=self._file)
        except Interrupted as error:
            error.run = folder.path
            raise
        except (ValueError, RuntimeError) as error:
            if any(text in str(error) for text in _INPUT_ERRORS):
                raise InputError(one_line(str(error))) from error
            raise
        finally:
            trained = folder.lock.taken
            folder.lock.release()
        if not trainer.is_global_zero:
            return Outcome(folder)
        page = None
        if self.config.report:
            allow_class = list(class_paths(self.recorded))  # all named in the user's own command
            page = {"path": folder.path, "data": data, "allow_class": allow_class}
        if quiet():
            return Outcome(folder, str(folder.path), page)
        text = ""
        if checkpoint is not None and not trained:
            done = f"{epochs_text(checkpoint.epoch)} and {trainer.global_step} steps are done"
            if self.recorded["trainer"]["max_time"]:
                done += f" within --trainer.max_time {self.recorded['trainer']['max_time']}"
            text = f"nothing was left to train: {early_stopping(trainer) or done}\n"
        known = data if isinstance(data, ImageData) else None
        images = None if known is None else known.batch_size * trainer.world_size
        text += summary(Run(folder.path), images=images, data=known, report=page is not None)
        return Outcome(folder, text, page)


def executed(args: Sequence[str]) -> Outcome:
    """Run ``fit`` with `checked` options; print no summary.

    Raises:
        InputError: an option, a config file, the data or the checkpoint is not usable.
        Interrupted: a signal ended the run, whose state is saved.
    """
    with without_noise():
        try:
            return FitCLI(args).fit()
        except MisconfigurationException as error:
            raise InputError(one_line(str(error))) from error
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # how Lightning ends after Ctrl-C
                raise error.__context__ from None
            if isinstance(error, SIGTERMException):
                raise SystemExit(128 + signal.SIGTERM) from error
            raise


def is_requeued(folder: RunFolder) -> bool:
    """Return True for a run that SLURM or ``wandb agent`` has started again, which continues."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0 or requeued_by_agent(folder)


def checkpoint_at(place: str, folder: RunFolder) -> Checkpoint | None:
    """Return a checkpoint without its weights, or None if training has not written one yet.

    Args:
        place: path, W&B artifact or run directory; ``last`` is the last readable checkpoint of the run.
        folder: run directory.

    Raises:
        InputError: there is no readable checkpoint, but results that training would overwrite.
    """
    if place != "last":
        file = fetched_checkpoint(place) if place.startswith(SCHEME) else place
        return read_checkpoint(file, verify=True)._replace(state={})
    files = [file for file in (folder.last, folder.previous) if file.exists()]
    for file, fallback in zip_longest(files, files[1:]):
        try:
            checkpoint = read_checkpoint(file, verify=True)
        except InputError as error:
            if fallback is None:
                raise
            rank_zero_warn(f"{error}: falling back to {fallback}")
        else:
            rank_zero_info(f"continuing from {file}")
            return checkpoint._replace(state={})
    if any(folder.checkpoints.glob("*.ckpt")):
        raise InputError(f"{folder.last}: no such checkpoint")
    if folder.results():
        raise InputError(
            f"{folder.path} has results, but no checkpoint to continue from: "
            "--overwrite true replaces the run"
        )
    rank_zero_info(f"no checkpoint in {folder.checkpoints}: starting from the beginning")
    return None


def check_config(checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    """Check that ``fit`` continues the same run.

    Args:
        checkpoint: the checkpoint.
        config: config of the command.

    Raises:
        InputError: the checkpoint was made with another config.
    """
    other = differences(checkpoint.config, config, moved=knows_images(checkpoint))
    if other:
        run = RunFolder(checkpoint.path.parent.parent)
        message = f"{checkpoint.path} was made with another config ({listed(other)})"
        if run.config_file.exists():
            message += f"; use that config with ssl-vision fit {shlex.quote(str(run.path))}"
        raise InputError(message)


def knows_images(checkpoint: Checkpoint | None) -> bool:
    """Return True if a checkpoint has a digest of its images, which may then have moved to another folder."""
    return checkpoint is not None and checkpoint.images is not None


def _listed(value: Any) -> list[Any]:
    """Return the items of an option that takes one object, a list of them, or null."""
    return value if isinstance(value, list) else [] if value is None else [value]


def knn_k(class_path: str) -> int:
    """Return the default number of neighbours of a data set."""
    data = pydoc.locate(class_path)
    return data.knn_k if isinstance(data, type) and issubclass(data, ImageData) else ImageData.knn_k
