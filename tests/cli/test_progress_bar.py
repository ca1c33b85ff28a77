"""Tests of the progress bar of a run: what it shows, and that it reads nothing from the device."""

import re
from types import SimpleNamespace

import pytest
from settings import TINY

from ssl_vision.cli.progress_bar import RunBar, TrainingProgress
from ssl_vision.main import main


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_time_left_includes_all_steps_and_validations():
    clock = Clock()
    with TrainingProgress(0, 101, clock=clock) as job:
        clock.now += 60  # compiling
        job.step(1, images=8)
        for step in range(2, 12):
            clock.now += 2
            job.step(step, images=8)
        assert job.speed() == "4 images/s"
        assert job.seconds_left() == pytest.approx(90 * 2)
        clock.now += 1.5  # part of a step, which is not counted before it ends
        assert job.seconds_left() == pytest.approx(90 * 2)
        clock.now -= 1.5
        job.begin_validation()
        clock.now += 5
        assert job.speed() == "4 images/s"
        job.end_validation()
        # a validation of 5 s after 10 steps of 2 s each: 2.5 s per step
        assert job.seconds_left() == pytest.approx(90 * 2.5)
        assert job.state() == "11 %, 4 images/s, 3:45 left"


def test_progress_of_resumed_run_includes_earlier_steps():
    clock = Clock()
    with TrainingProgress(50, 100, clock=clock) as job:
        for step in (51, 52, 53):
            clock.now += 1
            job.step(step, images=8)
        assert job.state() == "53 %, 8 images/s, 0:47 left"


def test_final_line_counts_steps_since_resuming(capsys):
    clock = Clock()
    with TrainingProgress(50, 54, clock=clock) as job:
        for step in (51, 52, 53, 54):
            clock.now += 1
            job.step(step, images=8)
    assert "4 steps in 0:04" in capsys.readouterr().err


def test_progress_without_total_shows_no_time_left():
    clock = Clock()
    with TrainingProgress(0, None, clock=clock) as job:
        for step in (1, 2):
            clock.now += 1
            job.step(step, images=8)
        assert job.state() == "2 steps, 8 images/s"


def test_metrics_text_shows_logged_values():
    log = SimpleNamespace(latest={})
    bar = RunBar(log)
    assert bar._metrics_text() == ""
    log.latest |= {"train/loss": 4.21234, "val/knn_top1": 0.931, "train/temperature": 0.1}
    assert bar._metrics_text() == "loss 4.212, kNN 93.10 %"
    log.latest |= {"train/skipped_steps": 2.0, "val/collapsed": 1.0}
    assert bar._metrics_text() == "COLLAPSED, loss 4.212, kNN 93.10 %, 2 steps skipped"


@pytest.fixture
def states(monkeypatch):
    """Text that the bar shows at every step and validation batch, and at every step of any job."""
    recorded = []
    advance = TrainingProgress.advance

    def advance_and_record(job, count=1):
        advance(job, count)
        recorded.append(f"{job.what}: {job.state()}")

    monkeypatch.setattr(TrainingProgress, "advance", advance_and_record)
    return recorded


def run(tmp_path, *options):
    args = [f"--runs_dir={tmp_path}", "--name=run", *TINY, "--trainer.enable_progress_bar=true", *options]
    return main(["fit", *args])


def test_bar_shows_epoch_validation_speed_and_metrics(states, tmp_path):
    assert run(tmp_path) == 0
    steps = [state for state in states if state.startswith("epoch")]
    assert [re.match(r"epoch \d/2: \d+ %", state)[0] for state in steps] == [
        f"epoch {1 + step // 4}/2: {100 * (1 + step) / 8:.0f} %" for step in range(8)
    ]
    assert "loss" not in steps[0]
    assert "kNN" not in steps[3]
    assert all(re.search(r"images/s, 0:\d\d left, loss \d+\.\d{3}, kNN \d+\.\d\d %$", s) for s in steps[4:])
    validations = [state for state in states if state.startswith("validation")]
    assert [state.split(":")[0] for state in validations] == [
        f"validation {batch}/4" for _ in range(2) for batch in range(1, 5)
    ]


def test_bar_does_not_read_trainer_metrics(tmp_path, monkeypatch):
    def fail(self):
        raise AssertionError("asked for tensors")

    for name in ("callback_metrics", "progress_bar_metrics", "logged_metrics"):
        monkeypatch.setattr(f"pytorch_lightning.Trainer.{name}", property(fail))
    assert run(tmp_path, "--trainer.max_epochs=1") == 0


def test_bar_of_resumed_run_continues_step_count(states, tmp_path):
    assert run(tmp_path, "--trainer.max_epochs=1") == 0
    states.clear()
    assert run(tmp_path, "--ckpt_path=last") == 0
    assert states[0].startswith("epoch 2/2: 62 %")


def test_validate_has_a_bar_of_its_own(tmp_path, monkeypatch):
    assert run(tmp_path, "--trainer.max_epochs=1") == 0
    jobs = []
    original_open = RunBar._open
    monkeypatch.setattr(RunBar, "_open", lambda bar, job: jobs.append(job) or original_open(bar, job))
    args = [f"--runs_dir={tmp_path}", "--name=run", *TINY, "--trainer.enable_progress_bar=true"]
    assert main(["validate", *args, "--ckpt_path=last"]) == 0
    assert [(job.what, job.done, job.total) for job in jobs] == [("validation", 4, 4)]
