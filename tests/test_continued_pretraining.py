"""Tests of runs that start from given weights: their start as a baseline, the alarm and the verdict."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import warnings

import pytest
import torch
import yaml
from PIL import Image
from settings import TINY

from ssl_vision.data import Digits, Views
from ssl_vision.evaluation.features import embed
from ssl_vision.evaluation.results import Row
from ssl_vision.main import main
from ssl_vision.metrics import AccuracyDifference, knn_table
from ssl_vision.pretrained.backbones import load_encoder
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.record import StartRecord
from ssl_vision.runs.registry import Run

OPTIONS = [*TINY, "--model.encoder.width=8"]
HIGH = "--model.optimizer.lr=0.03"


def fit(folder, name, *options):
    assert main(["fit", *OPTIONS, f"--runs_dir={folder}", f"--name={name}", *options]) == 0
    return folder / name


def state(run):
    return read_checkpoint(run).state


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("continued")


@pytest.fixture(scope="module")
def base(folder):
    """A run with a mean that is not that of its data set."""
    options = ["--trainer.max_epochs=5", "--trainer.limit_train_batches=1.0"]
    return fit(folder, "base", "--data.views.mean=[0.4,0.4,0.4]", *options)


@pytest.fixture(scope="module")
def harmed(folder, base):
    """A run that continues from the other one, which makes it worse."""
    run = fit(folder, "harmed", f"--initial_checkpoint={base}", HIGH)
    assert main(["evaluate", str(run)]) == 0
    return run


def test_start_is_validated_before_the_first_step(base, harmed):
    with open(harmed / "metrics.csv", newline="") as file:
        first, second, *_ = csv.DictReader(file)
    assert (first["step"], first["epoch"], second["step"], second["epoch"]) == ("-1", "-1", "0", "0")
    for metric in ("val/knn_top1", "val/uniformity_projector"):
        assert float(first[metric]) == pytest.approx(Run(base).last(metric), abs=1e-6)


def test_training_is_the_same_without_validation_of_start(folder, base, harmed, monkeypatch):
    monkeypatch.setattr(StartRecord, "on_train_start", lambda *args: None)
    other = fit(folder, "without", f"--initial_checkpoint={base}", HIGH)
    assert all(torch.equal(value, state(other)[name]) for name, value in state(harmed).items())
    rows = (harmed / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + len((other / "metrics.csv").read_text().splitlines())


def test_training_that_harms_is_reported(folder, base, capsys):
    with pytest.warns(UserWarning, match="training harms: kNN accuracy minus that of the initial"):
        fit(folder, "again", f"--initial_checkpoint={base}", HIGH)
    assert "below start    at 2 of 2 validations, the last one among them\n" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "training harms")
        fit(folder, "unharmed", f"--initial_checkpoint={base}", "--model.optimizer.lr=1e-6")
    assert "below start    no\n" in capsys.readouterr().out


def test_continued_run_compares_with_the_start_of_the_first_process(folder, base, harmed):
    stopped = fit(
        folder,
        "stopped",
        f"--initial_checkpoint={base}",
        HIGH,
        "--trainer.max_epochs=1",
    )
    with pytest.warns(UserWarning, match="training harms"):
        assert main(["fit", str(stopped), "--trainer.max_epochs=2"]) == 0
    assert (stopped / "metrics.csv").read_text() == (harmed / "metrics.csv").read_text()


def test_run_without_given_weights_has_no_start(base):
    assert not (base / "start.ckpt").exists()
    assert min(row["step"] for row in Run(base).history) == 0


def test_recipe_that_freezes_the_encoder_warns_of_random_weights(folder):
    with pytest.warns(UserWarning, match="freeze_epochs, but no weights are given"):
        fit(folder, "frozen", "--model.optimizer.freeze_epochs=1")


def test_weights_are_given_only_once(folder, base, capsys):
    twice = [f"--initial_checkpoint={base}", "--model.encoder=Timm", "--model.encoder.name=resnet18"]
    options = [*TINY, *twice, "--model.encoder.pretrained=true", f"--runs_dir={folder}"]
    assert main(["fit", *(option for option in options if "width" not in option)]) == 2
    assert "--initial_checkpoint or --model.encoder.pretrained true, not both" in capsys.readouterr().err


def test_start_without_labels_is_not_checked(tmp_path, folder, base, caplog):
    for number in range(80):
        Image.new("RGB", (8, 8), (number, 100, 100)).save(tmp_path / f"{number}.png")
    data = ["--data=ImageFolder", f"--data.root={tmp_path}", "--data.image_size=8", "--data.views.size=8"]
    options = [*data, *OPTIONS, f"--runs_dir={folder}", f"--initial_checkpoint={base}"]
    assert main(["fit", *options]) == 0
    assert "not checked against the initial weights: validation has no labelled images" in caplog.text


def test_images_are_normalised_as_the_initial_weights_expect(folder, base, harmed):
    assert main(["export", str(base)]) == 0
    exported = fit(folder, "exported", f"--initial_checkpoint={base}/backbone.safetensors")
    stated = fit(folder, "stated", f"--initial_checkpoint={base}", "--data.views.mean=[0.5,0.5,0.5]")
    means = {run.name: Run(run).setting("data.views.mean") for run in (harmed, exported, stated)}
    assert means == {"harmed": [0.4] * 3, "exported": [0.4] * 3, "stated": [0.5] * 3}


def test_gain_is_the_paired_difference_to_the_start(base, harmed, capsys):
    assert main(["evaluate", str(base), f"--output={base}/rows.json"]) == 0
    value_of = {
        (row["features"], row["layer"], row["metric"]): row["value"]
        for row in json.loads((base / "rows.json").read_text())
    }
    rows = [Row.read(row) for row in json.loads((harmed / "evaluation.json").read_text())]
    starts = {row.metric: row.value for row in rows if row.features == "start"}
    assert starts.keys() >= {"knn_top1", "linear_top1", "alignment"}
    assert starts == pytest.approx({metric: value_of["trained", "backbone", metric] for metric in starts})
    gains = {row.metric: row for row in rows if row.gain}
    assert gains.keys() == {"knn_top1"}  # the linear probe of these small features is not trained
    for metric, row in gains.items():
        assert (row.features, row.layer) == ("trained", "backbone")
        assert row.gain.value == pytest.approx(row.value - starts[metric])
        assert row.gain.low < row.gain.value < row.gain.high < 0


def test_interval_of_gain_is_that_of_the_votes(harmed):
    run, data, correct = open_run(harmed), Digits(), {}
    views = Views(**run.config["data"]["init_args"]["views"])
    for name, network in (("trained", run.trained()), ("start", load_encoder(harmed / "start.ckpt"))):
        bank, queries = (embed(network, data.split(split), views)["backbone"] for split in ("train", "test"))
        labels, truth = (data.split(split).labels for split in ("train", "test"))
        (score,) = knn_table(queries, truth, bank, labels, num_classes=10, ks=(5,), temperatures=(0.1,))
        correct[name] = score.correct
    gain = AccuracyDifference.of(correct["trained"], correct["start"])
    row = Run(harmed).evaluated("knn_top1")
    assert tuple(gain) == pytest.approx(
        [row[key] for key in ("gain", "gain_low", "gain_high", "test_images")]
    )


def test_verdict_is_printed_and_in_the_report(harmed, capsys, tmp_path):
    assert main(["evaluate", str(harmed)]) == 0
    printed = capsys.readouterr().out
    gain = Row.read(Run(harmed).evaluated("knn_top1")).gain
    assert f"trained − start, kNN %: {gain}: {gain.verdict}\n" in printed
    names = [line.split()[:2] for line in printed.splitlines()]
    assert names.index(["trained", "backbone"]) < names.index(["start", "backbone"])
    assert names.index(["start", "backbone"]) < names.index(["untrained", "backbone"])
    assert main(["report", str(harmed), f"--output={tmp_path}/page.html", "--embed=false"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert f"kNN top-1 minus that of the start: {gain}: {gain.verdict}." in page


def test_one_group_of_runs_is_compared_with_its_start(folder, base, harmed, capsys):
    other = fit(folder, "seed1", f"--initial_checkpoint={base}", HIGH, "--seed_everything=1")
    assert main(["evaluate", str(other)]) == 0
    capsys.readouterr()
    assert main(["compare", str(harmed), str(other), f"--output={folder}/compared.json"]) == 0
    assert "start - InfoNCE" in capsys.readouterr().out
    record = json.loads((folder / "compared.json").read_text())
    (pair,) = record["pairs"]
    gains = [-100 * Run(run).evaluated("knn_top1")["gain"] for run in (harmed, other)]
    assert pair["differences"] == pytest.approx(gains)
    assert main(["compare", str(harmed), str(other), "--baseline=start"]) == 0


def test_start_is_removed_with_the_run_that_it_belongs_to(folder, harmed, tmp_path):
    shutil.copytree(harmed, tmp_path / "harmed")
    fit(tmp_path, "harmed", "--overwrite=true", "--trainer.max_epochs=1")
    assert not (tmp_path / "harmed" / "start.ckpt").exists()
    assert yaml.safe_load((tmp_path / "harmed" / "config.yaml").read_text())["initial_checkpoint"] is None


def test_batch_norm_keeps_the_statistics_of_the_initial_weights(folder, base, harmed):
    start, trained = state(harmed / "start.ckpt"), state(harmed)
    names = [name for name in start if name.startswith("backbone.") and "running_" in name]
    assert names
    assert all(torch.equal(start[name], trained[name]) for name in names)
    updated = fit(folder, "updated", f"--initial_checkpoint={base}", "--model.encoder_statistics=batch")
    assert not any(torch.equal(start[name], state(updated)[name]) for name in names)
    assert Run(base).setting("model.encoder_statistics") == "batch"


MODULE = """
import os
import signal

from pytorch_lightning import Callback, LightningDataModule
from torch.utils.data import DataLoader

from ssl_vision.data import Digits

class Plain(LightningDataModule):
    def __init__(self, batch_size: int = 8):
        super().__init__()
        images = Digits().split("train").images[:16].float() / 255
        self.pairs = [((image, image), 0) for image in images]

    def train_dataloader(self):
        return DataLoader(self.pairs, batch_size=8)

class Record(Callback):
    def on_validation_end(self, trainer, pl_module):
        trainer.logger.log_metrics({"val/own": 1.0}, step=trainer.global_step)

class Kill(Callback):
    def on_validation_batch_start(self, trainer, *args):
        if trainer.global_step == 0 and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    "options",
    [
        ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=train/loss"],
        ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val/knn_top1",
         "--trainer.callbacks.mode=max", "--trainer.callbacks.stopping_threshold=0.1"],
        ["--trainer.callbacks=start_callbacks.Record"],
    ],
    ids=["metric of training", "threshold", "own log"],
)  # fmt: skip
def test_callbacks_of_the_config_accept_the_validation_of_the_start(tmp_path, base, options, monkeypatch):
    (tmp_path / "start_callbacks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = fit(tmp_path, "run", f"--initial_checkpoint={base}", "--trainer.max_epochs=1", *options)
    assert Run(run).epoch == 1


@pytest.mark.long
def test_signal_in_the_validation_of_the_start_ends_all_processes(tmp_path, base):
    (tmp_path / "start_callbacks.py").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "ssl_vision",
        "fit",
        *OPTIONS,
        f"--initial_checkpoint={base}",
        "--name=run",
    ]
    processes = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    killed = subprocess.run([*command, *processes, "--trainer.callbacks=start_callbacks.Kill"], cwd=tmp_path)
    assert killed.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "runs" / "run" / "checkpoints" / "last.ckpt").exists()


def test_options_stated_as_yaml_take_precedence_over_those_of_the_weights(folder, base):
    run = fit(folder, "yaml", f"--initial_checkpoint={base}", '--data.views={"mean": [0.5, 0.5, 0.5]}')
    assert Run(run).setting("data.views.mean") == [0.5] * 3


def test_unknown_pretrained_tag_is_an_input_error(tmp_path, capsys):
    encoder = [
        "--model.encoder=Timm",
        "--model.encoder.name=resnet18.nonsense",
        "--model.encoder.pretrained=true",
    ]
    assert main(["fit", *TINY[1:], f"--runs_dir={tmp_path}", *encoder]) == 2
    assert "resnet18.nonsense" in capsys.readouterr().err


def test_collapse_of_the_start_is_not_counted(folder, base, capsys):
    fit(folder, "floor", f"--initial_checkpoint={base}", "--metrics.rank_floor=100")
    assert "collapsed      at 2 of 2 validations" in capsys.readouterr().out


def test_start_without_validation_data_is_kept_but_not_validated(tmp_path, base, monkeypatch):
    (tmp_path / "start_callbacks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "start_callbacks", raising=False)
    options = ["--data=start_callbacks.Plain", *OPTIONS, f"--initial_checkpoint={base}", "--name=plain"]
    assert main(["fit", *options, "--trainer.max_epochs=1"]) == 0
    run = Run(tmp_path / "runs" / "plain")
    assert run.folder.start.exists()
    assert not run.curve("val/knn_top1")
