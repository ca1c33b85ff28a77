"""Tests of the progress bar of a run: what it shows, and that it reads nothing from the device."""

import itertools
import math
import re
from types import SimpleNamespace

import pytest
import torch
from settings import TINY

from ssl_vision import progress
from ssl_vision.cli.progress_bar import RunBar
from ssl_vision.main import main
from ssl_vision.progress import Progress


def test_metrics_text_shows_logged_values():
    log = SimpleNamespace(latest={})
    bar = RunBar(log)
    assert bar._metrics_text() == ""
    log.latest |= {"train/loss": 4.21234, "val/knn_top1": 0.931, "train/temperature": 0.1}
    assert bar._metrics_text() == "loss 4.212, kNN 93.10 %"
    log.latest |= {"train/skipped_steps": 2.0, "val/collapsed": 1.0}
    assert bar._metrics_text() == "COLLAPSED, loss 4.212, kNN 93.10 %, 2 steps skipped"


LABELS = torch.zeros(3)


@pytest.mark.parametrize("batch", [((torch.zeros(3, 2), LABELS), LABELS), {"x": LABELS}, [LABELS], LABELS])
@pytest.mark.parametrize(("steps", "total"), [(4, "/24"), (-1, ""), (math.inf, "")])
def test_bar_counts_images_of_any_loader(steps, total, batch):
    trainer = SimpleNamespace(
        world_size=2, estimated_stepping_batches=steps, accumulate_grad_batches=1, global_step=1,
        max_epochs=3, current_epoch=0,
    )  # fmt: skip
    bar = RunBar(SimpleNamespace(latest={}))
    bar.on_train_start(trainer, None)
    bar.on_train_batch_end(trainer, None, None, batch, 0)
    assert bar._job.state().startswith(f"6{total} images")
    bar.on_train_end(trainer, None)


@pytest.fixture
def states(monkeypatch):
    """Text that the bar shows at every step and validation batch, and at every step of any job."""
    recorded = []
    advance = Progress.advance

    def advance_and_record(job, count=1):
        advance(job, count)
        recorded.append(f"{job.task}: {job.state()}")

    monkeypatch.setattr(Progress, "advance", advance_and_record)
    return recorded


def run(tmp_path, *options):
    args = [f"--runs_dir={tmp_path}", "--name=run", *TINY, "--trainer.enable_progress_bar=true", *options]
    return main(["fit", *args])


def test_bar_shows_epoch_validation_speed_and_metrics(states, tmp_path):
    assert run(tmp_path) == 0
    steps = [state for state in states if state.startswith("epoch")]
    assert [re.match(r"epoch \d/2: \d+/512 images", state)[0] for state in steps] == [
        f"epoch {1 + step // 4}/2: {64 * (1 + step)}/512 images" for step in range(8)
    ]
    assert "loss" not in steps[0]
    assert "kNN" not in steps[3]
    shown = r"images, [\d,.]+/s, 0:\d\d left, loss \d+\.\d{3}, kNN \d+\.\d\d %$"
    assert all(re.search(shown, state) for state in steps[4:])
    validations = [state for state in states if state.startswith("validation")]
    assert [state.split(":")[0] for state in validations] == [
        f"validation {batch}/4" for _ in range(2) for batch in range(1, 5)
    ]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_bar_and_final_line_count_images_of_first_step(accumulated, states, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(progress, "monotonic", itertools.count().__next__)
    assert run(tmp_path, f"--trainer.accumulate_grad_batches={accumulated}") == 0
    assert [state for state in states if state.startswith("epoch")][-1].startswith(
        "epoch 2/2: 512/512 images"
    )
    assert "\ntraining: 512 images in " in capsys.readouterr().err


def test_bar_does_not_read_trainer_metrics(tmp_path, monkeypatch):
    def fail(self):
        raise AssertionError("asked for tensors")

    for name in ("callback_metrics", "progress_bar_metrics", "logged_metrics"):
        monkeypatch.setattr(f"pytorch_lightning.Trainer.{name}", property(fail))
    assert run(tmp_path, "--trainer.max_epochs=1") == 0


def test_bar_of_resumed_run_continues_image_count(states, tmp_path):
    assert run(tmp_path, "--trainer.max_epochs=1") == 0
    states.clear()
    assert run(tmp_path, "--ckpt_path=last") == 0
    assert states[0].startswith("epoch 2/2: 320/512 images")
