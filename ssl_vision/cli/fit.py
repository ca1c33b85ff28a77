"""The Lightning command line: ``fit`` and ``validate``."""

import pydoc
import signal
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import Namespace
from jsonargparse.typing import register_type
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
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
from ssl_vision.cli.classes import expanded  # imports that make the short names of classes known
from ssl_vision.cli.early_check import checked
from ssl_vision.cli.fit_summary import nothing_left, summary, validated
from ssl_vision.cli.import_paths import class_paths, local_modules
from ssl_vision.cli.parser import ArgumentParser, one_line
from ssl_vision.cli.progress_bar import RunBar
from ssl_vision.cli.resume import check_config, checkpoint_at, knows_images, place_to_continue
from ssl_vision.cli.run_options import add_run_options, check_callbacks, check_trainer
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError, Interrupted
from ssl_vision.quiet import quiet, without_noise
from ssl_vision.runs.checkpoint import AtomicCheckpointIO, Checkpoint
from ssl_vision.runs.checkpoint_schedule import ResumeCheckpoint, remove_requeued
from ssl_vision.runs.config import below_home, derived_name
from ssl_vision.runs.encoder_weights import start_from
from ssl_vision.runs.folder import RunFolder, run_path
from ssl_vision.runs.log import RunLog
from ssl_vision.runs.record import RunRecord, check_images, early_stopping
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.wandb import mirror, mirror_ends, mirror_mode
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


class _Parser(ArgumentParser, LightningArgumentParser):
    pass


class FitCLI(LightningCLI):
    """The parsed options of ``fit`` or ``validate``; nothing is built before the run directory is checked."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the run directory, of logging and of metrics."""
        add_run_options(parser)

    def instantiate_classes(self) -> None:
        """Build nothing."""


class Outcome(NamedTuple):
    """Result of ``fit`` or ``validate``: the run, a text to print, and the arguments of its report."""

    folder: RunFolder
    message: str = ""
    page: dict[str, Any] | None = None


class _Start(NamedTuple):
    """What a run starts from.

    Args:
        cli: parsed options.
        recorded: config as it is recorded.
        folder: run directory.
        checkpoint: checkpoint to continue from or to validate, without its weights.
        check: function that raises if the run cannot use the directory.
    """

    cli: FitCLI
    recorded: dict[str, Any]
    folder: RunFolder
    checkpoint: Checkpoint | None
    check: Callable[[], None]


def parsed(args: Sequence[str]) -> FitCLI:
    """Parse the options of ``fit`` or ``validate``, the first of ``args``, and their config files.

    Raises:
        InputError: an option or a config file is not usable.
    """
    command, *options = args
    with without_noise():
        try:
            return FitCLI(
                pl.LightningModule,
                pl.LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                seed_everything_default=0,
                save_config_callback=None,
                auto_configure_optimizers=False,
                parser_class=_Parser,
                parser_kwargs={"prog": f"ssl-vision {command}"},
                run=False,
                args=options,
            )
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"--seed_everything: {error}") from error


def check_options(args: Sequence[str]) -> None:
    """Check the names and types of the options of ``fit``, the first of ``args``, and its config files.

    Raises:
        InputError: an option or a config file is not usable.
    """
    command, *options = args
    with local_modules(options):
        parsed([command, *checked(options)])


def executed(args: Sequence[str]) -> Outcome:
    """Run ``fit`` or ``validate``, the first of ``args``, with `checked` options; print no summary.

    Raises:
        InputError: an option, a config file, the data or the checkpoint is not usable.
        Interrupted: a signal ended the run, whose state is saved.
    """
    with without_noise(), mirror_ends():
        try:
            start = _start(args[0], parsed(args))
            return _validate(start) if args[0] == "validate" else _fit(start)
        except MisconfigurationException as error:
            raise InputError(one_line(str(error))) from error
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # how Lightning ends after Ctrl-C
                raise error.__context__ from None
            if isinstance(error, SIGTERMException):  # in a validation
                raise SystemExit(128 + signal.SIGTERM) from error
            raise


def _start(command: str, cli: FitCLI) -> _Start:
    """Determine the run directory and the checkpoint to continue from, before anything is built."""
    config = cli.config
    check_trainer(config.trainer)
    if config.seed_everything is False:
        raise InputError("--seed_everything false: a run without a seed cannot be compared or continued")
    if config.metrics.k is None:
        config.metrics.k = knn_k(config.data.class_path)
    plain = yaml.safe_load(cli.parser.dump(config, skip_unset=False, skip_validation=True))
    others = [key for key in plain if key not in (*_FIRST, *_NOT_RECORDED)]
    recorded: dict[str, Any] = below_home({key: plain[key] for key in (*_FIRST, *others)})
    recorded["name"] = config.name or derived_name(recorded)
    for key in ("model", "data", "trainer"):
        config[key] = expanded(config[key])
    folder = RunFolder(run_path(config.runs_dir, recorded["name"]))
    if command == "validate":
        config.ckpt_path = config.ckpt_path or "last"
    elif config.ckpt_path is not None and config.overwrite:
        raise InputError("--ckpt_path continues a run and --overwrite replaces it: give one of them")
    elif config.ckpt_path is None:
        online = mirror_mode(config.wandb) == "online" and config.wandb_artifacts != "none"
        if place := place_to_continue(folder, online=online):
            config.ckpt_path, config.overwrite = place, False
    checkpoint = None
    if config.ckpt_path is not None:
        checkpoint = checkpoint_at(config.ckpt_path, folder, command)
    if checkpoint is not None:
        check_config(checkpoint, recorded, command)
    check = partial(
        folder.check,
        recorded,
        resume=config.ckpt_path is not None,
        overwrite=config.overwrite,
        moved=knows_images(checkpoint),
    )
    if command == "fit" and _first_process():
        check()
        remove_requeued(folder)
    return _Start(cli, recorded, folder, checkpoint, check)


def _first_process() -> bool:
    return bool(vars(rank_zero_only)["rank"] == 0)


def _build(start: _Start, add: Callable[[_Start, Namespace], dict[str, Any]]) -> tuple[Namespace, pl.Trainer]:
    """Return the objects of the config and the trainer; ``add`` returns arguments for the trainer.

    Raises:
        InputError: a constructor refuses a value.
    """
    try:
        objects = start.cli.parser.instantiate(start.cli.config)
        return objects, pl.Trainer(**{**objects.trainer, **add(start, objects)})
    except InputError:
        raise
    except (
        ValueError, TypeError, RuntimeError, OverflowError, MemoryError, ImportError,
        MisconfigurationException,
    ) as error:  # fmt: skip
        raise InputError(one_line(str(error)) or type(error).__name__) from error


def _validate(start: _Start) -> Outcome:
    """Measure the checkpoint as during training, without a logger."""
    assert start.checkpoint is not None
    objects, trainer = _build(start, _arguments_of_validation)
    trainer.validate(objects.model, objects.data, ckpt_path=start.checkpoint.path, verbose=False)
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return Outcome(start.folder, validated(start.checkpoint, values) if trainer.is_global_zero else "")


def _arguments_of_validation(start: _Start, objects: Namespace) -> dict[str, Any]:
    """Return arguments of a trainer without loggers, checkpoints and callbacks of the config."""
    bar = [] if objects.trainer.enable_progress_bar is False else [RunBar()]
    return {"logger": False, "enable_checkpointing": False, "callbacks": [*bar, objects.metrics]}


def _fit(start: _Start) -> Outcome:
    """Train, or continue the training of the checkpoint, and summarise the run."""
    folder, checkpoint = start.folder, start.checkpoint
    try:
        objects, trainer = _build(start, _arguments_of_fit)
        model, data = objects.model, objects.data
        if checkpoint is None and objects.initial_checkpoint is not None:
            rank_zero_info(start_from(model, objects.initial_checkpoint))
        if checkpoint is not None and _first_process() and isinstance(data, ImageData):
            check_images(data, checkpoint)
        trainer.fit(model, datamodule=data, ckpt_path=None if checkpoint is None else checkpoint.path)
    except Interrupted as error:
        error.run = folder.path
        raise
    except (ValueError, RuntimeError) as error:
        if any(text in str(error) for text in _INPUT_ERRORS):
            raise InputError(one_line(str(error))) from error
        raise
    finally:
        continued = checkpoint is not None and not folder.lock.taken  # training takes it
        folder.lock.release()
    if not trainer.is_global_zero:
        return Outcome(folder)
    page = None
    if objects.report:
        allow_class = list(class_paths(start.recorded))  # all named in the user's own command
        page = {"path": folder.path, "data": data, "allow_class": allow_class}
    if quiet():
        return Outcome(folder, str(folder.path), page)
    text = ""
    if continued and checkpoint is not None:
        done = {"epochs": checkpoint.epoch, "steps": trainer.global_step}
        text = nothing_left(start.recorded, **done, early=early_stopping(trainer)) + "\n"
    known = data if isinstance(data, ImageData) else None
    images = None if known is None else known.batch_size * trainer.world_size
    text += summary(Run(folder.path), images=images, data=known, report=page is not None)
    return Outcome(folder, text, page)


def _arguments_of_fit(start: _Start, objects: Namespace) -> dict[str, Any]:
    """Return the run's loggers, callbacks and plugins together with those of the config."""
    folder, config = start.folder, objects.trainer
    log = RunLog(folder.metrics_file, folder.lock.verify)
    loggers: list[Any] = [log, *(_listed(config.logger) if not isinstance(config.logger, bool) else [])]
    tracking: list[pl.Callback] = []
    if mode := mirror_mode(objects.wandb):
        wandb = mirror(folder, start.recorded, mode=mode, fresh=start.checkpoint is None)
        loggers.append(wandb)
        tracking.append(WandbCallback(wandb, folder, artifacts=objects.wandb_artifacts))
    own_callbacks = _listed(config.callbacks)
    check_callbacks(own_callbacks)
    has_objective = "objective" in dict(objects.model.named_children())
    files = AtomicCheckpointIO(folder.last, folder.previous, folder.lock.verify)
    callbacks: list[pl.Callback] = [*own_callbacks, objects.metrics]
    callbacks += [StepSeeds(torch.initial_seed()), Times(), Memory()]
    callbacks += [ObjectiveStatistics(), WeightHistogram(log)] if has_objective else []
    callbacks += [SkipNonFiniteSteps(objects.patience, objective="objective" if has_objective else None)]
    callbacks += [OnlineProbe()] if objects.online_probe else []
    callbacks += [GradientDiagnostics()] if objects.gradients else []
    checkpoint = None if start.checkpoint is None else start.checkpoint.path
    callbacks += [
        RunRecord(folder, start.recorded, checkpoint=checkpoint, check=start.check),
        ResumeCheckpoint(
            folder,
            files,
            every_n_epochs=objects.save_every_n_epochs,
            every_n_steps=objects.save_every_n_steps,
        ),
        *tracking,
    ]
    shown = config.enable_progress_bar is not False
    if shown and not any(isinstance(callback, ProgressBar) for callback in own_callbacks):
        callbacks.append(RunBar(log))
    return {
        "logger": loggers,
        "callbacks": callbacks,
        "plugins": [*_listed(config.plugins), files],
        "default_root_dir": str(folder.path),
    }


def _listed(value: Any) -> list[Any]:
    """Return the items of an option that takes one object, a list of them, or null."""
    return value if isinstance(value, list) else [] if value is None else [value]


def knn_k(class_path: str) -> int:
    """Return the default number of neighbours of a data set."""
    data = pydoc.locate(class_path)
    return data.knn_k if isinstance(data, type) and issubclass(data, ImageData) else ImageData.knn_k
