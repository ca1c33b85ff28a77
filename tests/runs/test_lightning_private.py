"""Tests that Lightning and argparse still have every private attribute that this package uses."""

import ast
from argparse import ArgumentParser
from operator import attrgetter
from pathlib import Path

import pytest
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel
from pytorch_lightning.loggers import WandbLogger

from ssl_vision import lightning_private
from ssl_vision.cli.parser import actions
from ssl_vision.lightning_private import (
    epochs_done,
    progress_before_validation,
    remove_anonymous,
    replace_progress,
    take_sigterm,
)

ATTRIBUTES = [
    "_signal_connector.received_sigterm",
    "_val_check_time_interval",
    "check_val_every_n_epoch",
    "fit_loop._can_stop_early",
    "fit_loop.epoch_loop._batches_that_stepped",
    "fit_loop.epoch_loop.batch_progress.current.ready",
    "fit_loop.epoch_loop.manual_optimization.optim_step_progress.increment_completed",
    "fit_loop.epoch_loop.manual_optimization.optim_step_progress.increment_ready",
    "fit_loop.restarted_mid_epoch",
    "fit_loop.setup_data",
    "fit_loop.state_dict",
    "val_check_batch",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer after two epochs of two batches."""
    trainer = pl.Trainer(
        max_epochs=2, limit_train_batches=2, limit_val_batches=1, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path_factory.mktemp("boring"),
    )  # fmt: skip
    trainer.fit(BoringModel())
    return trainer


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_lightning_has_attribute(path, trained):
    attrgetter(path)(trained)


def test_checkpoint_holds_progress(trained):
    checkpoint = trained._checkpoint_connector.dump_checkpoint()
    assert epochs_done(checkpoint) == 2
    progress = progress_before_validation(trained)
    batches = progress["epoch_loop.val_loop.batch_progress"]["total"]
    assert batches["started"] == batches["ready"] > 0
    replace_progress(checkpoint, progress | {"mark": 1})
    assert checkpoint["loops"]["fit_loop"]["mark"] == 1


def test_signal_is_taken_once(trained):
    trained._signal_connector.received_sigterm = True
    assert take_sigterm(trained)
    assert not take_sigterm(trained)


def test_setting_about_which_wandb_warns_is_removed(tmp_path):
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    remove_anonymous(logger)
    assert "anonymous" not in logger._wandb_init


def test_argparse_lists_the_actions_of_a_parser():
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--name", "-n")
    assert [action.option_strings for action in actions(parser)] == [["--name", "-n"]]


def test_private_attributes_are_used_in_one_place():
    package = Path(lightning_private.__file__).parent
    private = ("fit_loop", "_signal_connector", "_wandb_init", "_actions")
    users = {
        (str(file.relative_to(package)), node.attr)
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in private
    }
    places = [*["lightning_private.py"] * 3, "cli/parser.py"]
    assert users == set(zip(places, private, strict=True))
