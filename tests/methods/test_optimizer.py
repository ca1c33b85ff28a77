"""Tests of learning rates that scale with the batch size."""

import csv
import itertools

import pytest
import pytorch_lightning as pl
import torch
from settings import TINY
from torch.utils.data import DataLoader, IterableDataset

from ssl_vision.data.images import Batch
from ssl_vision.encoders import ResNet
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.methods import MoCoV3, OptimizerRule, SimCLR


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_learning_rate_scales_with_batch_size(scaling, factor):
    rule = OptimizerRule(lr=0.3, lr_scaling=scaling, reference_batch_size=128)
    assert rule.scaled(512).lr == pytest.approx(0.3 * factor)
    assert rule.scaled(128).lr == 0.3
    assert rule.scaled(512).scaled(512).lr == rule.scaled(512).lr


def test_zero_reference_batch_size_raises_value_error():
    with pytest.raises(ValueError, match="reference_batch_size must be at least 1, got 0"):
        OptimizerRule(reference_batch_size=0)


@pytest.mark.parametrize("option", ["name", "schedule", "lr_scaling"])
def test_unknown_option_value_raises_value_error(option):
    with pytest.raises(ValueError, match=f"optimizer.{option} must be .*, got 'other'"):
        OptimizerRule(**{option: "other"})


def rates(run):
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["train/lr"]) for row in csv.DictReader(file) if row["train/lr"]]


def test_scaled_rate_counts_accumulated_batches_and_is_logged(tmp_path, caplog):
    args = ["fit", *TINY, f"--runs_dir={tmp_path}", "--trainer.max_epochs=1", "--trainer.log_every_n_steps=1"]
    args += ["--data.batch_size=32", "--trainer.accumulate_grad_batches=2", "--model.optimizer.lr=0.001"]
    args += ["--model.optimizer.reference_batch_size=128"]
    caplog.set_level("INFO")
    for scaling in ("none", "linear"):
        assert main([*args, f"--name={scaling}", f"--model.optimizer.lr_scaling={scaling}"]) == 0
    assert set(rates(tmp_path / "none")) == {0.001}
    assert set(rates(tmp_path / "linear")) == {0.0005}
    assert "learning rate 0.0005: 0.001 scaled to the batch size" in caplog.text
    cosine = ["--model.optimizer.schedule=cosine", "--model.optimizer.lr_scaling=linear", "--name=cosine"]
    assert main([*args, *cosine]) == 0
    logged = rates(tmp_path / "cosine")
    assert logged[0] == pytest.approx(0.0005)
    assert logged == sorted(logged, reverse=True)


LINEAR = OptimizerRule(lr=0.4, lr_scaling="linear", reference_batch_size=16)


def batches(batch_size):
    """Return a custom loader of batches with two views of each image."""

    def collate(rows):
        images = torch.zeros(len(rows), 3, 8, 8)
        return Batch(images, torch.tensor(rows), torch.tensor(rows), torch.rand(2 * len(rows), 3, 8, 8))

    return DataLoader(range(8), batch_size=batch_size, collate_fn=collate)


def fitted(loader, rule=LINEAR, *, method=SimCLR, **length):
    method = method(encoder=lambda: ResNet(width=4), optimizer=rule)
    trainer = pl.Trainer(
        **(length or {"max_steps": 1}), accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(method, loader)
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_lr_scaling_requires_batch_size_of_custom_loader():
    for batch_size, rate in ((4, 0.1), (8, 0.2)):
        assert fitted(batches(batch_size)).optimizers[0].param_groups[0]["lr"] == pytest.approx(rate)
    with pytest.raises(InputError, match="lr_scaling needs a DataLoader with a batch_size"):
        fitted(list(batches(4)))


class Endless(IterableDataset):
    def __iter__(self):
        return (batch for _ in itertools.count() for batch in batches(4))


@pytest.mark.filterwarnings("ignore")
def test_cosine_schedule_supports_loader_of_unknown_length():
    loader = DataLoader(Endless(), batch_size=None)
    assert fitted(loader, OptimizerRule(lr=0.4, schedule="cosine")).global_step == 1
    with pytest.raises(InputError, match="warmup_epochs and freeze_epochs need a data loader"):
        fitted(loader, OptimizerRule(schedule="cosine", warmup_epochs=1))
    with pytest.raises(InputError, match=r"optimizer.schedule 'cosine' needs an end: .* of known length"):
        fitted(loader, OptimizerRule(schedule="cosine"), max_epochs=2)
    with pytest.raises(InputError, match="momentum_schedule 'cosine' needs an end"):
        fitted(loader, OptimizerRule(), method=MoCoV3, max_epochs=2)
