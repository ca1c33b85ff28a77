"""Tests of a backbone on data sets other than its own."""

import json
import shutil

import pytest
import timm
import torch
from PIL import Image
from settings import TINY

from ssl_vision.data import Digits, ImageFolder
from ssl_vision.evaluation.features import embed
from ssl_vision.main import main
from ssl_vision.metrics import KNNAccuracy
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.registry import Run

KNN = "measurements: [knn: {k: 5}]"


@pytest.fixture
def run(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "tiny")


@pytest.fixture
def folder(tmp_path):
    """Images of 24 x 30 pixels in two classes."""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 12), ("test", 6)):
        for number in range(2 * count):
            bright = 60 * (number % 2)
            pixels = torch.randint(bright, bright + 190, (24, 30, 3), generator=generator, dtype=torch.uint8)
            path = tmp_path / "folder" / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.numpy()).save(path)
    return tmp_path / "folder"


@pytest.mark.parametrize(("options", "size"), [([], 16), (["--data.views.size=12"], 12)])
def test_other_data_set_uses_image_size_and_normalisation_of_run(run, folder, tmp_path, options, size):
    before = sorted(path.name for path in run.iterdir())
    (tmp_path / "mine.yaml").write_text(KNN)
    args = ["--baselines=false", "--cache=false", f"--protocol={tmp_path / 'mine.yaml'}"]
    other = ["--data=ImageFolder", f"--data.root={folder}", "--data.image_size=24", *options]
    assert main(["evaluate", str(run), *args, *other]) == 0
    assert sorted(path.name for path in run.iterdir()) == sorted([*before, "evaluation.json"])
    (row,) = json.loads((run / "evaluation.json").read_text())
    assert (row["data"], row["root"], row["folder"]) == ("ImageFolder", str(folder.resolve()), "test")
    assert ("views.size 12" in row["settings"]) == (size == 12)
    own = Digits().views
    data, model = ImageFolder(root=folder, image_size=24), open_run(run).trained()
    views = type(own)(size=size, mean=own.mean, std=own.std)
    knn = KNNAccuracy(num_classes=2, k=5)
    for split, role in (("train", "bank"), ("test", "query")):
        images = data.split(split)
        knn.update(embed(model, images, views)["backbone"], images.labels, role)
    assert row["value"] == pytest.approx(float(knn.compute()))


@pytest.mark.parametrize(("options", "size"), [([], 128), (["--data.image_size=20"], 20)])
def test_timm_model_gets_files_decoded_to_its_size(folder, tmp_path, options, size):
    network = timm.create_model("test_vit.r160_in1k", num_classes=0, img_size=128)
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "mine.yaml").write_text(KNN)
    command = ["--encoder=timm/test_vit.r160_in1k", "--encoder.img_size=128", "--baselines=false"]
    command += [f"--weights={tmp_path / 'weights.pth'}", f"--protocol={tmp_path / 'mine.yaml'}"]
    out = tmp_path / "rows.json"
    command += ["--data=ImageFolder", f"--data.root={folder}", *options, f"--output={out}"]
    assert main(["evaluate", *command]) == 0
    assert f"image_size {size}" in json.loads(out.read_text())[0]["settings"]


def test_rows_of_other_folders_and_protocols_are_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    other = shutil.copytree(folder, tmp_path / "Other one")
    shutil.copytree(folder / "test", folder / "second")
    small = ["--data.image_size=16", "--trainer.max_epochs=1", "--data.batch_size=8"]
    args = [f"--runs_dir={tmp_path}", "--name=r", "--data=ImageFolder", f"--data.root={folder}"]
    assert main(["fit", *args, *TINY, *small]) == 0
    (tmp_path / "mine.yaml").write_text(KNN)
    (tmp_path / "other.yaml").write_text("measurements: [linear: {epochs: 1}]")
    measure = ["evaluate", str(tmp_path / "r"), "--baselines=false", f"--protocol={tmp_path / 'mine.yaml'}"]
    steps = [
        [f"--data.test={folder / 'second'}"],
        [f"--data.root={other}"],
        [],
        ["--data.views.size=8"],
        [f"--protocol={tmp_path / 'other.yaml'}"],
    ]
    conditions = []
    for step in [*steps, []]:
        assert main([*measure, *step]) == 0
        rows = json.loads((tmp_path / "r" / "evaluation.json").read_text())
        conditions = [(row["protocol"], row["root"], row["folder"], row.get("settings")) for row in rows]
        assert len(set(conditions)) == len(conditions)
    own = "~/folder"
    assert set(conditions) == {
        ("mine", own, "~/folder/second", None), ("mine", "~/Other one", "test", None),
        ("mine", own, "test", None), ("mine", own, "test", "views.size 8"), ("other", own, "test", None),
    }  # fmt: skip
    row = Run(tmp_path / "r").evaluated("knn_top1")
    assert (row["root"], row["folder"], row.get("settings")) == (own, "test", None)


def test_metrics_undefined_for_single_image_classes_have_no_row(run, folder, tmp_path):
    for name in "ab":
        for extra in sorted((folder / "test" / name).iterdir())[1:]:
            extra.unlink()
    (tmp_path / "mine.yaml").write_text("measurements: [geometry: {}]")
    args = ["--baselines=false", "--cache=false", f"--protocol={tmp_path / 'mine.yaml'}"]
    assert main(["evaluate", str(run), *args, "--data=ImageFolder", f"--data.root={folder}"]) == 0
    text = (run / "evaluation.json").read_text()
    metrics = {row["metric"] for row in json.loads(text)}
    assert "NaN" not in text
    assert {"different_cosine", "uniformity", "alignment"} <= metrics
    assert not {"same_cosine"} & metrics


def test_rows_name_data_set_of_run(run, tmp_path):
    (tmp_path / "mine.yaml").write_text(KNN)
    args = ["--baselines=false", "--cache=false", f"--protocol={tmp_path / 'mine.yaml'}", "--data=Digits"]
    assert main(["evaluate", str(run), *args]) == 0
    assert [row["data"] for row in json.loads((run / "evaluation.json").read_text())] == ["Digits"]


@pytest.mark.long
@pytest.mark.realdata
def test_cifar10_backbone_beats_chance_on_other_data(data_root, tmp_path, capsys):
    args = [f"--runs_dir={tmp_path}", "--name=c", "--data=CIFAR10", f"--data.root={data_root}", *TINY]
    assert main(["fit", *args, "--trainer.limit_train_batches=2", "--trainer.max_epochs=1"]) == 0
    (tmp_path / "mine.yaml").write_text(KNN)
    for data, classes in (("CIFAR100", 100), ("STL10", 10), ("Digits", 10)):
        options = ["--baselines=false", f"--protocol={tmp_path / 'mine.yaml'}", f"--data={data}"]
        assert main(["evaluate", str(tmp_path / "c"), *options]) == 0
        assert f"{data}: test split" in capsys.readouterr().out
        row = json.loads((tmp_path / "c" / "evaluation.json").read_text())[-1]
        assert row["data"] == data
        assert row["value"] > 1.5 / classes
