"""The Lightning command line: ``fit`` and ``validate``."""

import importlib
import logging
import os
import shlex
import signal
import warnings
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import Namespace
from jsonargparse.typing import register_type
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import Logger
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
from ssl_vision.cli.classes import class_paths, expanded  # imports that make the short names of classes known
from ssl_vision.cli.default_data import with_data
from ssl_vision.cli.fit_summary import nothing_left, summary, validated
from ssl_vision.cli.import_paths import local_modules
from ssl_vision.cli.parser import ArgumentParser, one_line
from ssl_vision.cli.progress_bar import RunBar
from ssl_vision.cli.run_options import add_run_options
from ssl_vision.cli.start_observer import StartObserver
from ssl_vision.cli.trainer_options import check_callbacks, check_trainer
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError, Interrupted
from ssl_vision.quiet import quiet
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint, remove_requeued
from ssl_vision.runs.checkpoint_io import AtomicCheckpointIO
from ssl_vision.runs.checkpointing import ResumeCheckpoint
from ssl_vision.runs.folder import (
    RunFolder,
    as_yaml,
    below_home,
    derived_name,
    differences,
    listed,
    run_path,
)
from ssl_vision.runs.images_file import check_images
from ssl_vision.runs.log import RunLog
from ssl_vision.runs.reading import parse_yaml
from ssl_vision.runs.record import RunRecord, early_stopping
from ssl_vision.runs.registry import Run
from ssl_vision.runs.settings import named_settings
from ssl_vision.runs.weights import start_from
from ssl_vision.tracking.artifacts import SCHEME, fetched_checkpoint, requeued_checkpoint
from ssl_vision.tracking.wandb import mirror, mirror_ends, mirror_mode, requeued_by_agent
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


_CONTINUED = "SSL_VISION_CONTINUED"
"""Environment variable with the checkpoint that the first process continues from."""


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
        self.plain_config = self._plain(config)
        _check_text(self.plain_config)
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
            if place := _place_to_continue(self.folder, online=online):
                config.ckpt_path, config.overwrite = place, False
        if self.subcommand == "validate":
            config.ckpt_path, config.verbose = config.ckpt_path or "last", False
        resume = config.ckpt_path is not None
        if config.ckpt_path == "last":
            self.checkpoint, config.ckpt_path = self._last(), None
        elif config.ckpt_path:
            remote = config.ckpt_path.startswith(SCHEME)
            file = fetched_checkpoint(config.ckpt_path) if remote else config.ckpt_path
            self.checkpoint = read_checkpoint(file, verify=True)
        if self.checkpoint is not None:
            self.checkpoint = self.checkpoint._replace(state={})
            config.ckpt_path = str(self.checkpoint.path)
            self._refuse_other_config(self.checkpoint)
        self.check = partial(
            self.folder.check,
            self.plain_config,
            recorded=lambda: Run(self.folder.path).config,
            resume=resume,
            overwrite=config.overwrite,
            moved=_knows_images(self.checkpoint),
        )
        if self.subcommand == "fit":
            if resume and config.overwrite:
                raise InputError("--ckpt_path continues a run and --overwrite replaces it: give one of them")
            if getattr(rank_zero_only, "rank", 0) == 0:
                self.check()
                remove_requeued(self.folder)
        self.wandb_mode = mirror_mode(config.wandb)

    def _plain(self, config: Namespace) -> dict[str, Any]:
        """Return the config to record, as plain dicts and lists."""
        text = self._parser(self.subcommand).dump(config, skip_unset=False, skip_validation=True)
        plain = yaml.safe_load(text)
        recorded: dict[str, Any] = below_home({key: plain[key] for key in _RECORDED})
        return recorded

    def _last(self) -> Checkpoint | None:
        """Return the run's last readable checkpoint, or None if training has not written one yet."""
        candidates = [file for file in (self.folder.last, self.folder.previous) if file.exists()]
        while candidates:
            file = candidates.pop(0)
            try:
                checkpoint = read_checkpoint(file, verify=True)
            except InputError as error:
                if not candidates:
                    raise
                rank_zero_warn(f"{error}: falling back to {candidates[0]}")
                continue
            rank_zero_info(f"continuing from {file}")
            return checkpoint
        if self.subcommand != "fit" or any(self.folder.checkpoints.glob("*.ckpt")):
            run = f"ssl-vision {self.subcommand} RUN"
            advice = "" if self.folder.config_file.exists() else f"; give the run directory: {run}"
            raise InputError(f"{self.folder.last}: no such checkpoint{advice}")
        if self.folder.results():
            raise InputError(
                f"{self.folder.path} has results, but no checkpoint to continue from: "
                "--overwrite true replaces the run"
            )
        rank_zero_info(f"no checkpoint in {self.folder.checkpoints}: starting from the beginning")
        return None

    def _refuse_other_config(self, checkpoint: Checkpoint) -> None:
        """Refuse to continue another run, or to validate another network."""
        other = differences(checkpoint.config, self.plain_config, moved=_knows_images(checkpoint))
        if self.subcommand != "fit":
            trained = ("model.init_args.objective", "model.init_args.optimizer")
            other = [key for key in other if key.startswith("model.") and not key.startswith(trained)]
        if other:
            run = RunFolder(checkpoint.path.parent.parent)
            command = f"ssl-vision {self.subcommand} {shlex.quote(str(run.path))}"
            advice = f"; use that config with {command}" if run.config_file.exists() else ""
            raise InputError(f"{checkpoint.path} was made with another config ({listed(other)}){advice}")

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
        fresh = config.ckpt_path is None
        tracking: list[pl.Callback] = []
        if self.wandb_mode:
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


def _check_text(config: dict[str, Any]) -> None:
    """Check that the values of a config can be read back from a file.

    Raises:
        InputError: a value contains characters that YAML cannot store.
    """
    for key, value in named_settings(config):
        if isinstance(value, str) and not value.isprintable():
            try:
                stored = parse_yaml(as_yaml({"value": value}), where=key)["value"]
            except InputError:
                stored = None
            if stored != value:
                raise InputError(f"--{key} {value!r}: contains characters that a config file cannot store")


def _knows_images(checkpoint: Checkpoint | None) -> bool:
    return checkpoint is not None and checkpoint.images is not None


def knn_k(class_path: str) -> int:
    """Return the default number of neighbours of a data set."""
    module, _, name = class_path.rpartition(".")
    data = getattr(importlib.import_module(module), name)
    return int(data.knn_k) if issubclass(data, ImageData) else ImageData.knn_k


def _place_to_continue(folder: RunFolder, *, online: bool) -> str | None:
    """Return the checkpoint from which a requeued run continues, as for ``--ckpt_path``; None for other runs.

    The first process of a machine decides for the processes that it launches, which inherit its environment.

    Args:
        folder: run directory.
        online: allow a run that ``wandb agent`` has rescheduled to download its checkpoint from W&B.
    """
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0:  # restarted with the command of the first start
        return "last"
    if int(os.environ.get("LOCAL_RANK") or 0) and _CONTINUED in os.environ:
        return os.environ[_CONTINUED] or None
    place = "last" if requeued_by_agent(folder) else None
    if place is None and online and (file := requeued_checkpoint()):
        place = str(file)
    if os.environ.get("WANDB_SWEEP_ID"):
        os.environ[_CONTINUED] = place or ""
    return place


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
    with local_modules(args):
        executed(args, _OptionsOnly)


def executed(args: Sequence[str], cli: type[RunCLI] = RunCLI) -> RunCLI:
    """Run ``fit`` or ``validate``, the first of ``args``, without printing the summary.

    Raises:
        InputError: an option, a config file, the data or the checkpoint is not usable.
        Interrupted: a signal ended the run, whose state is saved.
    """
    with warnings.catch_warnings(), mirror_ends():
        # LightningCLI warns if args are given and sys.argv is not empty; here, they are the same.
        warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings(
            "ignore", message="The number of training batches .* is smaller than the logging"
        )
        warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
        # Lightning's use of jsonargparse
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"pytorch_lightning\.cli")
        logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_is_about_the_run)
        for name in ("lightning_fabric.utilities.seed", "pytorch_lightning.accelerators.cuda"):
            logging.getLogger(name).setLevel(logging.WARNING)
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


def _is_about_the_run(record: logging.LogRecord) -> bool:
    noise = (
        "TPU available", "GPU available", "litlogger", "litmodels", "Loading `train_dataloader`",
        "Automatic Mixed Precision", "was configured so", "has Tensor Cores",
    )  # fmt: skip
    replaced = ("Restoring states", "Restored all states", "`Trainer.fit` stopped")  # the run prints its own
    return not any(word in record.getMessage() for word in (*noise, *replaced))
