"""Tests of training, resuming, evaluating and embedding every kind of dataset on the command line."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from settings import TINY

from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.registry import Run

MODULE = """
import torch

class Shades(torch.utils.data.Dataset):
    classes = ["dark", "bright"]

    def __init__(self, count: int = 40, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randint(0, 128, (count, 3, 12, 12), generator=generator, dtype=torch.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index] + 127 * (index % 2), index % 2
"""


def torchvision(folder):
    fake = {"size": 40, "image_size": [3, 12, 12], "num_classes": 2}
    return ["--data=Torchvision", "--data.name=FakeData", f"--data.arguments={json.dumps(fake)}"], []


def own(folder):
    (folder / "shades_module.py").write_text(MODULE)
    test = {"class_path": "shades_module.Shades", "init_args": {"count": 20, "seed": 1}}
    data = ["--data=Dataset", "--data.dataset=shades_module.Shades", "--data.dataset.count=48"]
    return [*data, f"--data.test_dataset={json.dumps(test)}"], ["--allow_class=shades_module.Shades"]


def hugging_face(folder):
    pytest.importorskip("datasets")
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 20)):
        images = []
        for _ in range(count):
            file = io.BytesIO()
            Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(file, "PNG")
            images.append({"bytes": file.getvalue(), "path": None})
        labels = [("cat", "dog")[row % 2] for row in range(count)]
        (folder / "set.v1").mkdir(exist_ok=True)
        pq.write_table(pa.table({"image": images, "label": labels}), folder / "set.v1" / f"{split}.parquet")
    return ["--data=HuggingFace", "--data.path=set.v1"], []


def jpeg(seed):
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def streamed(folder):
    for split, count in (("train", 40), ("test", 20)):
        for row in range(count):
            path = folder / "photos" / split / ("cat", "dog")[row % 2] / f"{row}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(row))
    options = ["--data.stream=true", "--data.workers=1", "--data.image_size=12"]
    return ["--data=ImageFolder", "--data.root=photos", *options], []


def shards(folder):
    (folder / "shards").mkdir()
    for split, count in (("train", 40), ("test", 20)):
        with tarfile.open(folder / "shards" / f"{split}-0.tar", "w") as tar:
            for row in range(count):
                for suffix, content in (("jpg", jpeg(row)), ("cls", b"%d" % (row % 2))):
                    member = tarfile.TarInfo(f"{row:04}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return ["--data=Shards", "--data.root=shards", "--data.image_size=12", "--data.workers=1"], []


@pytest.mark.parametrize(
    "source", [torchvision, own, hugging_face, pytest.param(streamed, marks=pytest.mark.long), shards]
)
def test_a_run_is_trained_resumed_evaluated_and_embedded(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data, allowed = source(tmp_path)
    args = [*data, "--runs_dir=.", "--name=r", *TINY, "--data.views.size=12", "--data.batch_size=16"]
    online = ["--online_probe=true"]
    assert main(["fit", *args, *online, "--trainer.max_epochs=1"]) == 0
    assert main(["fit", *args, *online, "--trainer.max_epochs=2", "--ckpt_path=last"]) == 0
    assert main(["fit", *args, *online, "--trainer.max_epochs=2", "--name=whole"]) == 0
    resumed, uninterrupted = (
        read_checkpoint(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("r", "whole")
    )
    for name, weight in resumed.state.items():
        assert torch.equal(weight, uninterrupted.state[name])
    assert len(Run(tmp_path / "r").curve("val/knn_top1")) == 2
    (tmp_path / "p.yaml").write_text("measurements: [knn: {k: 3}]")
    assert main(["evaluate", "r", "--baselines=false", "--protocol=p.yaml", *allowed]) == 0
    (row,) = json.loads((tmp_path / "r" / "evaluation.json").read_text())
    assert (row["metric"], row["split"]) == ("knn_top1", "test")
    assert main(["evaluate", "r", "--baselines=false", "--protocol=p.yaml", *allowed]) == 0
    assert len(json.loads((tmp_path / "r" / "evaluation.json").read_text())) == 1
    assert main(["report", "r", *allowed]) == 0
    assert (tmp_path / "r" / "report.html").is_file()
    (tmp_path / "images").mkdir()
    Image.new("RGB", (20, 14)).save(tmp_path / "images" / "x.png")
    assert main(["embed", "images", "--weights=r", "--output=f.npz", *allowed]) == 0
    with np.load(tmp_path / "f.npz") as file:
        assert file["features"].shape[0] == 1
