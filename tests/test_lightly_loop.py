"""Tests of benchmarks/lightly_loop.py: interrupted seeds resume to the same weights, and no row is lost."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scripts import import_script
from torch.testing import assert_close

pytestmark = pytest.mark.docs

FILE = Path(__file__).parent.parent / "benchmarks" / "lightly_loop.py"


class Images:
    """Eight noise images that replace CIFAR-10."""

    def __init__(self, root, train, transform):
        self.transform = transform

    def __len__(self):
        return 8

    def __getitem__(self, index):
        pixels = np.random.default_rng(index).integers(0, 256, (32, 32, 3), np.uint8)
        return self.transform(Image.fromarray(pixels)), 0


@pytest.fixture
def lightly_loop(monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    module = import_script(FILE)
    monkeypatch.setattr(module, "CIFAR10", Images)
    return module


def test_interrupted_seed_resumes_to_same_weights(lightly_loop, monkeypatch, tmp_path):
    def options(folder):
        return Namespace(data=tmp_path, batch=4, width=4, epochs=2, runs_dir=tmp_path / folder, name="rows")

    epochs = []

    def stop(line, flush):
        epochs.append(line.partition(":")[0])
        if len(epochs) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(lightly_loop, "print", stop, raising=False)
    with pytest.raises(KeyboardInterrupt):
        lightly_loop.train(options("stopped"), seed=3)
    continued, seconds = lightly_loop.train(options("stopped"), seed=3)
    assert epochs == ["seed 3, epoch 1", "seed 3, epoch 2"]
    stopped_at = torch.load(tmp_path / "stopped" / "rows-2-3.pt")
    assert stopped_at["epochs"] == 2
    assert stopped_at["seconds"] == seconds
    whole, _ = lightly_loop.train(options("whole"), seed=3)
    assert len(epochs) == 4
    assert_close(continued.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_row_added_by_another_process_during_training_is_kept(lightly_loop, monkeypatch, tmp_path):
    file = tmp_path / "rows.json"

    def row(options, seed):
        file.write_text(json.dumps([{"seed": 2, "epochs": 1}]))
        return {"seed": seed, "epochs": options.epochs}

    monkeypatch.setattr("rows.RESULTS", tmp_path)
    monkeypatch.setattr(lightly_loop, "row", row)
    monkeypatch.setattr("sys.argv", ["", "--data=data", "--epochs=1", "--name=rows", "--seeds", "1", "2"])
    lightly_loop.main()
    assert [each["seed"] for each in json.loads(file.read_text())] == [2, 1]
