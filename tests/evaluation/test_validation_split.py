"""Tests that images without a test split are evaluated on their validation split, as the rows state."""

import json

import numpy as np
import pytest
from PIL import Image

from ssl_vision.main import main


@pytest.fixture
def images(tmp_path):
    for number in range(12):
        for split in ("Training", "Validation"):
            path = tmp_path / "images" / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    return tmp_path / "images"


def evaluate(run, images, output, *options):
    data = ["--data=ImageFolder", f"--data.root={images}", "--data.image_size=8", *options]
    quick = ["--probe.epochs=1", "--baselines=false", "--cache=false", "--report=false", "--device=cpu"]
    return main(["evaluate", str(run), *data, *quick, f"--output={output}"])


def test_validation_split_replaces_missing_test_split(tiny_run, images, tmp_path, capsys):
    output = tmp_path / "evaluation.json"
    assert evaluate(tiny_run, images, output) == 0
    header = "ImageFolder: validation split, as there is no test split (12 images) against 12 labelled train"
    assert header in capsys.readouterr().out
    assert {row["split"] for row in json.loads(output.read_text())} == {"val"}


def test_unknown_test_folder_must_be_named_by_option(tiny_run, images, tmp_path, capsys):
    (images / "Validation").rename(images / "held")
    assert evaluate(tiny_run, images, tmp_path / "e.json") == 2
    assert "set it with --data.test FOLDER (folders: Training and held)" in capsys.readouterr().err
    flat = images / "held" / "a"
    assert evaluate(tiny_run, flat, tmp_path / "e.json") == 2
    assert "hence no labels; give a folder of labelled images with --data Ima" in capsys.readouterr().err
    assert evaluate(tiny_run, images, tmp_path / "e.json", "--data.test=held") == 0
    assert {row["split"] for row in json.loads((tmp_path / "e.json").read_text())} == {"test"}
