"""The Lightning command line: ``fit`` and ``validate``."""

import importlib
import signal
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse.typing import register_type
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_info, rank_zero_only
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
from ssl_vision.cli.classes import class_paths, expanded  # imports that make the short names of classes known
from ssl_vision.cli.fit_summary import nothing_left, summary, validated
from ssl_vision.cli.import_paths import local_modules
from ssl_vision.cli.parser import ArgumentParser, one_line
from ssl_vision.cli.progress_bar import RunBar
from ssl_vision.cli.recipes import with_recipes
from ssl_vision.cli.resume import (
    StartObserver,
    check_config,
    knows_images,
    last_checkpoint,
    place_to_continue,
)
from ssl_vision.cli.run_options import add_run_options, check_callbacks, check_trainer, with_data
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError, Interrupted
from ssl_vision.quiet import quiet, without_noise
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint, remove_requeued
from ssl_vision.runs.checkpoint_io import AtomicCheckpointIO
from ssl_vision.runs.checkpointing import ResumeCheckpoint
from ssl_vision.runs.folder import RunFolder, below_home, derived_name, run_path
from ssl_vision.runs.images_file import check_images
from ssl_vision.runs.log import RunLog
from ssl_vision.runs.record import RunRecord, early_stopping
from ssl_vision.runs.registry import Run
from ssl_vision.runs.weights import start_from
from ssl_vision.tracking.artifacts import SCHEME, fetched_checkpoint
from ssl_vision.tracking.wandb import mirror, mirror_ends, mirror_mode
from ssl_vision.tracking.wandb_callback import WandbCallback

_RECORDED = (
    "name",
    "seed_everything",
    "model",
    "data",
    "trainer",
    "metrics",
    "gradients",
    "initial_checkpoint",
    "online_probe",
    "patience",
    "runs_dir",
    "save_every_n_epochs",
    "save_every_n_steps",
    "wandb_artifacts",
    "wandb_media",
    "wandb",
)


register_type(torch.device, fail_already_registered=False)  # so that configs can be read back
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, value: dumper.represent_data(value.value))

_ADVICE = (
    ("`val_check_", "--trainer.val_check_interval exceeds the number of training batches in an epoch"),
    ("Early stopping conditioned on metric", ""),
    ("SyncBatchNorm layers only work with GPU", "--trainer.sync_batchnorm works on GPUs only"),
)
"""Texts in errors about options, with messages that replace the errors; an empty one keeps the error."""


class _Parser(ArgumentParser, LightningArgumentParser):
    pass


class RunCLI(LightningCLI):
    """``LightningCLI`` in which every ``fit`` has a run directory, a metrics.csv and exact resume.

    The parent class lets hyper-parameters stored in a checkpoint replace options of the command line. This
    class uses the options as given, and refuses a checkpoint that was made with another config.
    """

    folder: RunFolder
    plain_config: dict[str, Any]
    check: Callable[[], None]
    wandb_mode: str | None
    checkpoint: Checkpoint | None = None
    message: str = ""
    page: dict[str, Any] | None = None

    def __init__(self, args: Sequence[str]) -> None:
        self.start = StartObserver()
        try:
            super().__init__(
                pl.LightningModule,
                pl.LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                seed_everything_default=0,
                save_config_callback=None,
                auto_configure_optimizers=False,
                parser_class=_Parser,
                args=list(args),
            )
        finally:
            if hasattr(self, "folder"):
                self.folder.lock.release()

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the methods of the trainer that are commands, with their arguments that are not options."""
        inherited = LightningCLI.subcommands()
        return {name: inherited[name] for name in ("fit", "validate")}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the run directory, of logging and of metrics."""
        add_run_options(parser)

    def _set_seed(self) -> None:
        """Seed the generators, after checking that the seed is valid for all of them."""
        seed = self.config[self.subcommand].seed_everything
        if not 0 <= seed < 2**32:
            raise InputError(f"--seed_everything must lie in 0..{2**32 - 1}, not {seed}")
        super()._set_seed()

    def _parse_ckpt_path(self) -> None:
        """Do not read options from the checkpoint."""

    def before_instantiate_classes(self) -> None:
        """Determine the run directory and the checkpoint to continue from, before anything is built."""
        config = self.config[self.subcommand]
        if config.metrics.k is None:
            config.metrics.k = knn_k(config.data.class_path)
        text = self._parser(self.subcommand).dump(config, skip_unset=False, skip_validation=True)
        plain = yaml.safe_load(text)
        self.plain_config = below_home({key: plain[key] for key in _RECORDED})
        for key, value in list(config.items()):
            if key.startswith(("model.", "data.", "trainer.")):
                config[key] = expanded(value)
        name = config.name or derived_name(self.plain_config)
        self.folder = RunFolder(run_path(config.runs_dir, name))
        self.plain_config["name"] = name
        check_trainer(config.trainer)
        if config.seed_everything is False:
            raise InputError("--seed_everything false: a run without a seed cannot be compared or continued")
        if config.ckpt_path is None and self.subcommand == "fit":
            online = mirror_mode(config.wandb) == "online" and config.wandb_artifacts != "none"
            if place := place_to_continue(self.folder, online=online):
                config.ckpt_path, config.overwrite = place, False
        if self.subcommand == "validate":
            config.ckpt_path, config.verbose = config.ckpt_path or "last", False
        resume = config.ckpt_path is not None
        if config.ckpt_path == "last":
            self.checkpoint, config.ckpt_path = last_checkpoint(self.folder, str(self.subcommand)), None
        elif config.ckpt_path:
            remote = config.ckpt_path.startswith(SCHEME)
            file = fetched_checkpoint(config.ckpt_path) if remote else config.ckpt_path
            self.checkpoint = read_checkpoint(file, verify=True)
        if self.checkpoint is not None:
            self.checkpoint = self.checkpoint._replace(state={})
            config.ckpt_path = str(self.checkpoint.path)
            check_config(self.checkpoint, self.plain_config, str(self.subcommand))
        self.check = partial(
            self.folder.check,
            self.plain_config,
            recorded=lambda: Run(self.folder.path).config,
            resume=resume,
            overwrite=config.overwrite,
            moved=knows_images(self.checkpoint),
        )
        if self.subcommand == "fit":
            if resume and config.overwrite:
                raise InputError("--ckpt_path continues a run and --overwrite replaces it: give one of them")
            if getattr(rank_zero_only, "rank", 0) == 0:
                self.check()
                remove_requeued(self.folder)
        self.wandb_mode = mirror_mode(config.wandb)

    def instantiate_classes(self) -> None:
        """Build model, data and trainer; report values that a constructor refuses as errors in the input."""
        try:
            super().instantiate_classes()
        except InputError:
            raise
        except (
            ValueError, TypeError, RuntimeError, OverflowError, MemoryError, ImportError,
            MisconfigurationException,
        ) as error:  # fmt: skip
            raise InputError(one_line(str(error)) or type(error).__name__) from error

    def _run_subcommand(self, subcommand: str) -> None:
        """Run the trainer; report problems with an option or a checkpoint as errors in the input."""
        try:
            super()._run_subcommand(subcommand)
        except Interrupted as error:
            error.run = self.folder.path
            raise
        except (InputError, MisconfigurationException, OSError):
            raise
        except Exception as error:
            for text, advice in _ADVICE:
                if text in str(error):
                    raise InputError(advice or one_line(str(error))) from error
            path = self.config_init[subcommand].ckpt_path
            if path is None or self.start.started:
                raise
            raise InputError(f"{path}: cannot be restored ({one_line(str(error))})") from error

    def before_fit(self) -> None:
        """Load initial weights, or check that the images are those of the checkpoint."""
        config = self.config_init["fit"]
        if self.checkpoint is not None:
            if getattr(rank_zero_only, "rank", 0) == 0 and isinstance(self.datamodule, ImageData):
                check_images(self.datamodule, self.checkpoint)
        elif config.initial_checkpoint is not None:
            rank_zero_info(start_from(self.model, config.initial_checkpoint))

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Return the trainer, with the run's loggers and callbacks added to those of the config."""
        config = self.config_init[self.subcommand]
        if self.subcommand == "validate":
            bar = [] if config.trainer.enable_progress_bar is False else [RunBar()]
            return super().instantiate_trainer(
                logger=False, enable_checkpointing=False, callbacks=[self.start, *bar], **kwargs
            )
        logger = config.trainer.logger
        log = RunLog(self.folder.metrics_file, self.folder.lock.verify)
        loggers: list[Logger] = [log]
        loggers += logger if isinstance(logger, list) else [logger] if isinstance(logger, Logger) else []
        tracking: list[pl.Callback] = []
        if self.wandb_mode:
            fresh = config.ckpt_path is None
            wandb = mirror(self.folder, self.plain_config, mode=self.wandb_mode, fresh=fresh)
            loggers.append(wandb)
            tracking.append(WandbCallback(wandb, self.folder, artifacts=config.wandb_artifacts))
        record = RunRecord(
            self.folder,
            self.plain_config,
            checkpoint=None if self.checkpoint is None else self.checkpoint.path,
            check=self.check,
        )
        callbacks: list[pl.Callback] = [self.start, StepSeeds(torch.initial_seed()), Times(), Memory()]
        has_objective = "objective" in dict(self.model.named_children())
        callbacks += [ObjectiveStatistics(), WeightHistogram(log)] if has_objective else []
        callbacks += [SkipNonFiniteSteps(config.patience, objective="objective" if has_objective else None)]
        callbacks += [OnlineProbe()] if config.online_probe else []
        callbacks += [GradientDiagnostics()] if config.gradients else []
        files = AtomicCheckpointIO(self.folder.last, self.folder.previous, self.folder.lock.verify)
        callbacks += [
            record,
            ResumeCheckpoint(
                self.folder,
                files,
                every_n_epochs=config.save_every_n_epochs,
                every_n_steps=config.save_every_n_steps,
            ),
            *tracking,
        ]
        user_callbacks = config.trainer.callbacks
        user_callbacks = user_callbacks if isinstance(user_callbacks, list) else [user_callbacks]
        check_callbacks(user_callbacks)
        shown = config.trainer.enable_progress_bar is not False
        if shown and not any(isinstance(callback, ProgressBar) for callback in user_callbacks):
            callbacks.append(RunBar(log))
        self.trainer_defaults["callbacks"] = callbacks
        plugins = config.trainer.plugins
        plugins = [*(plugins if isinstance(plugins, list) else [plugins] if plugins else []), files]
        return super().instantiate_trainer(
            logger=loggers, plugins=plugins, default_root_dir=str(self.folder.path), **kwargs
        )

    def after_validate(self) -> None:
        """Set the message to the metrics of the checkpoint."""
        if self.trainer.is_global_zero and self.checkpoint is not None:
            values = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            self.message = validated(self.checkpoint, values)

    def after_fit(self) -> None:
        """Set the message about the run (when quiet, its directory) and the arguments of its report."""
        if not self.trainer.is_global_zero:
            return
        if self.config_init["fit"].report:
            allow_class = list(class_paths(self.plain_config))  # all named in the user's own command
            self.page = {"path": self.folder.path, "data": self.datamodule, "allow_class": allow_class}
        if quiet():
            self.message = str(self.folder.path)
            return
        if self.checkpoint is not None and not self.folder.lock.taken:  # training takes it
            done = {"epochs": self.checkpoint.epoch, "steps": self.trainer.global_step}
            self.message = nothing_left(self.plain_config, **done, early=early_stopping(self.trainer)) + "\n"
        data = self.datamodule if isinstance(self.datamodule, ImageData) else None
        images = None if data is None else data.batch_size * self.trainer.world_size
        self.message += summary(Run(self.folder.path), images=images, data=data, report=self.page is not None)


class _OptionsOnly(RunCLI):
    """Parses the options, and neither builds nor runs anything."""

    def before_instantiate_classes(self) -> None:
        """Leave the run directory alone."""

    def instantiate_classes(self) -> None:
        """Build nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


def knn_k(class_path: str) -> int:
    """Return the default number of neighbours of a data set."""
    module, _, name = class_path.rpartition(".")
    data = getattr(importlib.import_module(module), name)
    return int(data.knn_k) if issubclass(data, ImageData) else ImageData.knn_k


def run(args: Sequence[str]) -> dict[str, Any] | None:
    """Run ``fit`` or ``validate``, the first of ``args``, with the options that follow; print a summary.

    Returns:
        Arguments of the report of a run that was trained, on the first process.
    """
    cli = executed(args)
    if cli.message:
        print(cli.message)
    return cli.page


def check_options(args: Sequence[str]) -> None:
    """Check the names and types of the options of ``fit``, the first of ``args``, and its config files.

    Raises:
        InputError: an option or a config file is not usable.
    """
    args = with_recipes(args)
    with local_modules(args):
        executed(args, _OptionsOnly)


def executed(args: Sequence[str], cli: type[RunCLI] = RunCLI) -> RunCLI:
    """Run ``fit`` or ``validate``, the first of ``args``, without printing the summary.

    Raises:
        InputError: an option, a config file, the data or the checkpoint is not usable.
        Interrupted: a signal ended the run, whose state is saved.
    """
    with without_noise(), mirror_ends():
        try:
            return cli(with_data(args))
        except MisconfigurationException as error:
            raise InputError(one_line(str(error))) from error
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # how Lightning ends after Ctrl-C
                raise error.__context__ from None
            if isinstance(error, SIGTERMException):  # in a validation
                raise SystemExit(128 + signal.SIGTERM) from error
            raise
