"""Tests of benchmarks/adaptation.py: the images, the rows of runs, and the sweeps."""

import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from scripts import import_script

from ssl_vision.main import main
from ssl_vision.runs.registry import Run

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent


@pytest.fixture
def adaptation(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = import_script(ROOT / "benchmarks" / "adaptation.py")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_images_are_split_by_class_and_by_label(adaptation, tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    meta = {
        "fine_label_names": ["rocket", "rose", "oak"],
        "coarse_label_names": ["vehicles", "flowers", "trees"],
    }
    contents: dict[str, object] = {"meta": meta}
    for split, count in (("train", 30), ("test", 9)):
        labels = [number % 3 for number in range(count)]
        pixels = np.repeat(np.arange(count, dtype=np.uint8)[:, None], 3072, axis=1)
        pixels[:, :1024] += 100  # red
        contents[split] = {"data": pixels, "fine_labels": labels, "coarse_labels": labels}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
    monkeypatch.setattr(adaptation, "LABELLED", 2)
    monkeypatch.setattr(adaptation, "WITHOUT_LABELS", 3)
    adaptation.images(tmp_path, tmp_path / "garden", tmp_path / "others")
    files = [*(tmp_path / "garden").rglob("*.png"), *(tmp_path / "others").rglob("*.png")]
    assert Counter(str(file.parent.relative_to(tmp_path)) for file in files) == {
        "garden/train/rose": 2, "garden/train/oak": 2, "garden/train": 6,
        "garden/test/rose": 3, "garden/test/oak": 3, "others/train": 10,
    }  # fmt: skip
    for file in files:
        assert Image.open(file).getpixel((5, 7)) == (int(file.stem) + 100, int(file.stem), int(file.stem))
    names = sorted(int(file.stem) for file in files if file.parent == tmp_path / "garden" / "train")
    assert names == [7, 8, 10, 11, 13, 14]


def save_run(folder, *, protocols):
    """Save a run of two epochs, the second below the start, and rows of two of its evaluations."""
    folder.mkdir(parents=True)
    encoder = {"class_path": "ssl_vision.encoders.Timm", "init_args": {"name": "tf_efficientnet_lite0"}}
    model = {"class_path": "SimCLR", "init_args": {"encoder": encoder, "encoder_statistics": "fixed"}}
    data = {"class_path": "ImageFolder", "init_args": {"views": {"size": 32}}}
    config = {"seed_everything": 1, "model": model, "data": data, "trainer": {"max_epochs": 20}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.csv").write_text(
        "step,epoch,val/knn_top1,val/below_start\n-1,-1,0.5,\n9,0,0.5,\n19,1,0.3,1\n"
    )
    (folder / "times.csv").write_text("step,epoch,time/train_seconds,time/epochs\n9,0,3.0,1\n19,1,4.0,2\n")
    rows = []
    for epoch, value in ((1, 0.6), (2, 0.4)):
        for protocol, metric in protocols.items():
            fields = {"layer": "backbone", "metric": metric, "split": "test", "protocol": protocol, "k": 20}
            gain = {
                "gain": value - 0.5,
                "gain_low": value - 0.6,
                "gain_high": value - 0.4,
                "test_images": 100,
            }
            rows += [
                {"features": "trained", "epoch": epoch, "value": value} | fields | gain,
                {"features": "start", "epoch": 0, "value": 0.5} | fields,
                {"features": "trained", "epoch": epoch, "value": 0.1} | fields | {"layer": "projector"},
            ]
    (folder / "evaluation.json").write_text(json.dumps(rows))


def test_evaluated_runs_are_collected_once(adaptation, tmp_path, capsys):
    both = {"macl": "linear_top1", "knn20": "knn_top1"}
    name = "config=benchmarks_adapt_naive.yaml,seed_everything=1-0123ab"
    save_run(tmp_path / "sweep" / name, protocols=both)
    save_run(tmp_path / "sweep" / "size=32", protocols={"macl": "linear_top1"})
    for _ in range(2):
        adaptation.collect([tmp_path / "sweep"], commit="abc1234")
        assert "left out: sweep/size=32" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "adaptation.json").read_text())
    accuracy = {"value": 0.4, "epoch": 2, "test_images": 100, "start": 0.5}
    assert row["knn"].items() >= accuracy.items()
    assert row["linear"].items() >= accuracy.items()
    assert [row["knn"][name] for name in ("gain", "gain_low")] == pytest.approx([-0.1, -0.2])
    expected = {
        "sweep": "sweep", "run": name, "arm": "naive", "encoder": "Timm", "seed": 1, "size": 32, "epochs": 2,
        "encoder_name": "tf_efficientnet_lite0", "encoder_statistics": "fixed", "validations": 2,
        "below_start": 1, "seconds": 7.0, "commit": "abc1234",
        "command": "ssl-vision sweep benchmarks/sweep.yaml",
    }  # fmt: skip
    assert row.items() >= expected.items()


def test_run_from_random_weights_has_no_gain(adaptation, tmp_path):
    save_run(tmp_path / "random", protocols={"macl": "linear_top1"})
    run = Run(tmp_path / "random")
    keys = ("features", "epoch", "value", "layer", "metric", "split", "protocol")
    rows = [{key: row[key] for key in keys} for row in run.evaluation if row["features"] == "trained"]
    (tmp_path / "random" / "evaluation.json").write_text(json.dumps(rows))
    accuracy = adaptation.accuracy(Run(tmp_path / "random"), adaptation.MEASUREMENTS["linear"])
    assert (accuracy["value"], accuracy["gain"], accuracy["start"]) == (0.4, None, None)


@pytest.mark.parametrize("encoder", ["efficientnet", "resnet"])
def test_sweep_has_three_arms_and_three_seeds(adaptation, encoder, tmp_path, monkeypatch, capsys):
    for name in ("configs", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", f"benchmarks/adapt_{encoder}.yaml", "--dry_run"]) == 0
    trials = capsys.readouterr().out.splitlines()[-9:]
    arms = Counter(
        adaptation.arm(f"config={word.partition('=')[2].replace('/', '_')},seed_everything=0")
        for trial in trials
        for word in trial.split()
        if word.startswith("--config")
    )
    assert arms == {"adapt": 3, "naive": 3, "random": 3}
