"""Tests of Lightning's moving average of the weights: training, evaluation and continued runs."""

import csv
import os
import signal

import pytest
import pytorch_lightning as pl
import torch
from equal import difference, difference_of_runs, everything
from settings import TINY

from ssl_vision.main import main
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.checkpoint import read_checkpoint

AVERAGED = ["--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.9"]
MOCO = ["--model=MoCo", "--model.queue_size=40"]
ADDED = ("current_model_state", "averaging_state")


def fit(tmp_path, name, *options):
    return main(["fit", *TINY, f"--runs_dir={tmp_path}", f"--name={name}", *options])


class InterruptedValidation(pl.Callback):
    """Sends SIGTERM to its own process during the first validation."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), signal.SIGTERM)


def test_evaluation_uses_the_average_of_the_weights_and_training_does_not_change(tmp_path):
    every = ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps=1"]
    assert fit(tmp_path, "plain", *every, "--trainer.callbacks.save_top_k=-1") == 0
    assert fit(tmp_path, "run", *AVERAGED) == 0
    expected = {}
    files = sorted((tmp_path / "plain" / "plain").rglob("*.ckpt"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == 8
    for file in files:
        state = torch.load(file, weights_only=True)["state_dict"]
        expected = {
            name: 0.9 * expected.get(name, value) + 0.1 * value
            for name, value in state.items()
            if value.is_floating_point()
        }
    average = read_checkpoint(tmp_path / "run").state
    for name, value in expected.items():
        torch.testing.assert_close(average[name], value, msg=name)
    run, plain = everything(tmp_path / "run"), everything(tmp_path / "plain")
    assert difference(run["current_model_state"], plain["state_dict"]) == ""
    assert not torch.equal(average["backbone.conv1.weight"], plain["state_dict"]["backbone.conv1.weight"])
    trained = open_run(tmp_path / "run").trained().state_dict()
    assert torch.equal(trained["backbone.bn1.running_mean"], average["backbone.bn1.running_mean"])


def test_validation_measures_the_average(tmp_path):
    for name, options in (("run", AVERAGED), ("plain", [])):
        assert fit(tmp_path, name, *options, "--trainer.max_epochs=1") == 0
    last = {}
    for name in ("run", "plain"):
        with (tmp_path / name / "metrics.csv").open(newline="") as file:
            last[name] = [row for row in csv.DictReader(file) if row["val/alignment"]][-1]["val/alignment"]
    assert last["run"] != last["plain"]


@pytest.mark.parametrize("method", [[], MOCO])
def test_continued_run_with_average_equals_uninterrupted_run(method, tmp_path):
    options = [*AVERAGED, *method, "--save_every_n_steps=1"]
    assert fit(tmp_path, "whole", *options) == 0
    interruptions = {
        "first": ["interrupt_once.InterruptOnce", "--trainer.callbacks.batch=2"],
        "second": ["interrupt_once.InterruptOnce", "--trainer.callbacks.batch=6"],
        "validation": [f"{__name__}.InterruptedValidation"],
    }
    for name, (callback, *arguments) in interruptions.items():
        stop = [f"--trainer.callbacks+={callback}", f"--trainer.callbacks.marker={tmp_path}/{name}.txt"]
        assert fit(tmp_path, name, *options, *stop, *arguments) == 128 + signal.SIGTERM
        assert main(["fit", str(tmp_path / name), "--report=false"]) == 0
        assert difference_of_runs(tmp_path / "whole", tmp_path / name) == "", name
        whole, resumed = everything(tmp_path / "whole"), everything(tmp_path / name)
        for key in ADDED:
            assert difference(whole[key], resumed[key], key) == "", name


def test_finished_run_continues_from_its_current_weights(tmp_path):
    assert fit(tmp_path, "whole", *AVERAGED) == 0
    assert fit(tmp_path, "run", *AVERAGED, "--trainer.max_epochs=1") == 0
    assert main(["fit", str(tmp_path / "run"), "--trainer.max_epochs=2", "--report=false"]) == 0
    assert difference_of_runs(tmp_path / "whole", tmp_path / "run") == ""
