"""Tests of the summary at the end of a run, from hand-written run directories and from real runs."""

import re
import time
from functools import partial

import numpy as np
import pytest
import yaml
from PIL import Image
from pytorch_lightning.callbacks import Timer
from scipy import stats
from settings import TINY

from ssl_vision.cli.fit_summary import summary, validations
from ssl_vision.data import Dataset
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.registry import Run


def wilson(accuracy):
    return stats.binomtest(round(40 * accuracy), 40).proportion_ci(method="wilson")


CONFIG = {
    "seed_everything": 3,
    "model": {
        "class_path": "ssl_vision.methods.SimCLR",
        "init_args": {"objective": {"class_path": "ssl_vision.objectives.MACL"}},
    },
    "data": {"class_path": "ssl_vision.data.Digits", "init_args": {"batch_size": 64}},
    "trainer": {"max_epochs": 3},
}
METRICS = """step,epoch,train/loss,train/skipped_steps,val/collapsed,val/knn_top1,val/rankme
3,0,5.5,,1,0.25,1.25
7,1,4.25,,,,
11,2,4.125,2,{last},0.75,20.5
"""
TIMES = """step,epoch,time/train_batches,time/train_seconds,time/val_seconds,\
memory/process_mb,memory/device_mb
3,0,4,40,2,900,
7,1,4,10,,950,{device}
11,2,4,20,3.6,1000,{device}
"""


@pytest.fixture
def folder(tmp_path):
    """Function that writes a run of three epochs, the second without a validation."""

    def write_run(*, last="", device=""):
        path = tmp_path / "a run"
        path.mkdir()
        (path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
        (path / "metrics.csv").write_text(METRICS.format(last=last))
        (path / "times.csv").write_text(TIMES.format(device=device))
        return path

    return write_run


def test_summary_lists_time_speed_memory_and_validation(folder):
    path = folder(device="3072")
    assert summary(Run(path), images=250) == (
        "a run: 3 epochs in 1:16 (MACL on Digits, seed 3)\n"
        f"  written to     {path}\n"
        "  speed          50 images/s, without validation\n"  # of the median epoch
        "  peak memory    1,000 MiB on the host, 3,072 MiB on the device\n"
        "  last loss      4.125\n"
        "  skipped steps  2\n"
        "  collapsed      at 1 of 2 validations, not at the last one\n"
        "  validation on held-out train images\n"
        "                epoch 1  epoch 3\n"
        "  val/knn_top1  25.00 %  75.00 %\n"
        "  val/rankme       1.25     20.5\n"
        f"next: ssl-vision evaluate '{path}'   kNN and a linear probe\n"
        f"next: ssl-vision report '{path}'     an HTML report with a map of the images"
    )


def test_summary_suggests_commands_that_allow_the_users_classes(folder):
    path = folder()
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["model"]["class_path"] = "mine.Method"
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    assert all("--allow_class mine.Method " in line for line in summary(Run(path)).splitlines()[-2:])


def test_summary_states_collapsed_end(folder):
    text = summary(Run(folder(last="1")))
    assert "  collapsed      at 2 of 2 validations, the last one among them\n" in text
    assert "1,000 MiB on the host\n" in text
    assert "speed" not in text


def test_summary_states_k_only_if_knn_accuracy_was_measured(folder):
    path = folder()
    (path / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"metrics": {"k": 9}}))
    assert "validation on held-out train images, kNN with k = 9\n" in summary(Run(path))
    metrics = path / "metrics.csv"  # of images without labels
    metrics.write_text(metrics.read_text().replace("knn_top1", "uniformity"))
    assert "validation on held-out train images\n" in summary(Run(path))


def test_summary_states_number_of_validation_images_and_intervals(folder):
    path = folder()
    times = path / "times.csv"
    times.write_text(
        re.sub("$", ",time/val_images,time/leave_one_out", times.read_text(), count=1, flags=re.M)
        .replace("11,2,4,20,3.6,1000,", "11,2,4,20,3.6,1000,,40,1")
    )  # fmt: skip
    lines = summary(Run(path)).splitlines()
    assert "  validation on labelled train images, leaving one out" in lines
    half = [50 * (high - low) for low, high in map(wilson, (0.25, 0.75))]
    shown = f"25.00 % ± {half[0]:.1f} (40 images)  75.00 % ± {half[1]:.1f} (40 images)"
    assert f"  val/knn_top1  {shown}" in lines
    assert [line.split() for line in lines if "val/rankme" in line] == [["val/rankme", "1.25", "20.5"]]


def test_fit_of_few_labelled_images_validates_on_all_of_them(tmp_path, capsys):
    generator = np.random.default_rng(0)
    for number in range(24):
        file = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    options = [f"--data.root={tmp_path / 'images'}", "--data.image_size=8", "--data.views.size=8"]
    run = partial(fit, tmp_path, *options, "--data.batch_size=8", data="ImageFolder")
    assert run() == 0
    printed = capsys.readouterr().out
    assert "validation on labelled train images, leaving one out, kNN with k = 5" in printed
    assert "(24 images)" in printed
    assert run("--online_probe=true", "--data.val_share=0.25", "--metrics.k=50", "--overwrite=true") == 0
    printed = capsys.readouterr().out
    assert "(6 images)" in printed
    assert "kNN with k = 18\n" in printed  # as many as the bank has


def test_summary_of_single_validation_has_one_column(folder):
    path = folder()
    rows = (path / "metrics.csv").read_text().splitlines()
    header, first = rows[0].split(","), next(row for row in rows if ",0.25," in f"{row},")
    (path / "metrics.csv").write_text("\n".join([",".join(header), first, ""]))
    lines = summary(Run(path)).splitlines()
    assert [line.split() for line in lines if "epoch 1" in line or "val/knn" in line][-2:] == [
        ["epoch", "1"],
        ["val/knn_top1", "25.00", "%"],
    ]


def fit(tmp_path, *options, data="Digits"):
    return main(["fit", f"--runs_dir={tmp_path}", "--name=run", f"--data={data}", *TINY, *options])


def test_fit_prints_summary_and_quiet_prints_only_folder(tmp_path, capsys):
    assert fit(tmp_path) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("run: 2 epochs in 0:")
    assert "images/s" in printed
    assert len(printed.splitlines()) <= 20
    assert fit(tmp_path, "--overwrite=true", "--quiet", "--trainer.enable_progress_bar=true") == 0
    assert capsys.readouterr() == (f"{tmp_path / 'run'}\n", "")


@pytest.mark.parametrize(
    ("options", "length"),
    [
        (["--trainer.max_steps=1"], "0.25 epochs"),
        (["--trainer.max_steps=2", "--trainer.log_every_n_steps=9"], "0.5 epochs"),
    ],
)
def test_summary_of_partial_epoch_states_length_and_speed(tmp_path, capsys, monkeypatch, options, length):
    """1 or 2 of 4 batches of 0.6 seconds each give at most 64 / 0.6 images/s, not 4 * 64 / 0.6."""
    step = SimCLR.training_step

    def slow(self, *args, **kwargs):
        time.sleep(0.6)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(SimCLR, "training_step", slow)
    assert fit(tmp_path, *options, "--trainer.limit_val_batches=0") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"run: {length} in ")
    speed = float(re.search(r"([\d.,]+) images/s", printed)[1].replace(",", ""))
    assert 0 < speed <= 64 / 0.6
    run = Run(tmp_path / "run")
    assert run.epoch == 0
    assert run.status == ("finished" if "max_steps" in options[0] else "stopped")


def test_summary_without_validation_shows_no_metrics(tmp_path, capsys):
    assert fit(tmp_path, "--trainer.limit_val_batches=0", "--trainer.max_epochs=1") == 0
    printed = capsys.readouterr().out
    assert "collapsed      not measured\n" in printed
    assert "val/" not in printed


@pytest.mark.parametrize(
    ("ended", "longer", "done", "code"),
    [
        (["--trainer.max_epochs=1"], "--trainer.max_epochs=2", "1 epoch and 4 steps", 0),
        (["--trainer.max_steps=3"], "--trainer.max_steps=6", "0 epochs and 3 steps", 0),
        (
            ["--trainer.max_epochs=1", "--model.optimizer.schedule=cosine"],
            "--trainer.max_epochs=2",
            "1 epoch and 4 steps",
            2,
        ),
    ],
    ids=["epochs", "steps", "schedule"],
)
def test_resuming_finished_run_says_that_it_is_complete(ended, longer, done, code, tmp_path, capsys):
    assert fit(tmp_path, *ended) == 0
    assert "left to train" not in capsys.readouterr().out
    assert fit(tmp_path, *ended, "--ckpt_path=last") == 0
    assert capsys.readouterr().out.startswith(f"nothing was left to train: {done} are done\nrun: ")
    assert fit(tmp_path, *ended, "--ckpt_path=last", "--quiet") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run'}\n"
    steps = Run(tmp_path / "run").last("step")
    assert fit(tmp_path, *ended, longer, "--ckpt_path=last") == code
    assert "left to train" not in capsys.readouterr().out
    assert (Run(tmp_path / "run").last("step") > steps) == (code == 0)


def test_early_stopped_run_is_not_trained_on_when_started_again(tmp_path, capsys):
    stopping = ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=train/loss"]
    stopping += [
        "--trainer.callbacks.stopping_threshold=100",
        "--trainer.max_epochs=5",
    ]  # after the first epoch
    assert fit(tmp_path, *stopping) == 0
    assert Run(tmp_path / "run").steps == 4
    capsys.readouterr()
    assert main(["fit", str(tmp_path / "run"), "--trainer.max_epochs=9"]) == 0
    reason = "Stopping threshold reached: train/loss = "
    assert capsys.readouterr().out.startswith(f"nothing was left to train: {reason}")
    assert Run(tmp_path / "run").steps == 4


def test_run_ended_by_time_limit_says_so_when_started_again(tmp_path, capsys, monkeypatch):
    elapsed = iter([0.0] * 7)
    monkeypatch.setattr(Timer, "time_elapsed", lambda self, stage="train": next(elapsed, 99.0))
    limit = "--trainer.max_time=00:00:00:09"
    assert fit(tmp_path, "--trainer.max_epochs=50", limit) == 0
    steps = Run(tmp_path / "run").steps
    assert steps < 9
    capsys.readouterr()
    monkeypatch.undo()
    assert fit(tmp_path, "--trainer.max_epochs=50", limit, "--ckpt_path=last") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("nothing was left to train: ")
    assert first.endswith("steps are done within --trainer.max_time 00:00:00:09")
    assert Run(tmp_path / "run").steps == steps


def test_value_that_a_validation_lacks_is_left_empty(folder):
    path = folder()
    rows = "-1,-1,0.25,\n3,0,0.5,0.2\n7,1,0.75,0.4\n"
    (path / "metrics.csv").write_text(f"step,epoch,val/knn_top1,val/online_top1\n{rows}")
    assert validations(Run(path)) == [
        ["", "epoch 0", "epoch 2"],
        ["val/knn_top1", "25.00 %", "75.00 %"],
        ["val/online_top1", "", "40.00 %"],
    ]


def test_evaluation_of_a_dataset_without_test_images_is_not_suggested(folder):
    items = [(Image.new("L", (8, 8)), 0)] * 2
    data = Dataset(dataset=lambda: items, image_size=8, cache="never")
    assert "ssl-vision evaluate" not in summary(Run(folder()), data=data)
