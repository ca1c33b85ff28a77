"""Tests that a run is not resumed on changed images unless the user allows it."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from settings import TINY

from ssl_vision.data import Digits, ImageFolder
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.config import derived_name, differences
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.record import check_images, read_images, write_images
from ssl_vision.runs.registry import Run

FOLDER = ["--data.image_size=8", "--data.views.size=8", "--data.eval_batch_size=8"]


def save(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


def fit(here: Path, *options: str, images: str = "images") -> int:
    data = ["--data=ImageFolder", f"--data.root={here / images}", *FOLDER]
    training = ["--data.batch_size=8", "--trainer.limit_train_batches=1", *options]
    return main(["fit", f"--runs_dir={here}", "--name=run", *data, *TINY, *training])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with images and a run trained on them for one epoch."""
    here = tmp_path_factory.mktemp("here")
    for number in range(24):
        save(here / "images" / "train" / "ab"[number % 2] / f"{number:02}.png", number)
    (here / "images" / "train" / "a" / "bad.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="skipped 1 of 25"):
        assert fit(here, "--trainer.max_epochs=1") == 0
    return here


@pytest.fixture
def here(trained, tmp_path) -> Path:
    """A copy of that folder in which the images have other modification times."""
    folder = shutil.copytree(trained, tmp_path / "here")
    for path in (folder / "images").rglob("*.png"):
        os.utime(path, ns=(1, 1))
    return folder


def check_resume(here: Path, **options) -> None:
    """Check the images as a resumed fit does."""
    data = ImageFolder(root=here / "images", image_size=8, **options)
    check_images(data, read_checkpoint(here / "run"))


def test_run_stores_image_digest_in_checkpoint_and_list_in_folder(trained):
    images = read_images(trained / "run" / "images.csv")
    assert len(images) == 24
    assert "train/a/bad.png" not in images
    image = trained / "images" / "train" / "a" / "00.png"
    assert images["train/a/00.png"] == hashlib.sha256(image.read_bytes()).hexdigest()[:16]
    content = torch.load(trained / "run" / "checkpoints" / "last.ckpt", weights_only=True)["ssl_vision"]
    assert len(content["images"]) == 16
    assert "00.png" not in repr(content)


def test_modification_times_do_not_count_as_changes(here):
    check_resume(here)


def test_image_list_of_earlier_version_is_read(tmp_path):
    file = tmp_path / "images.csv"
    file.write_text("path,size,modified,content,decoded\na/1.png,9,5,0123,1\na/2.png,9,5,4567,0\n")
    assert read_images(file) == {"a/1.png": "0123"}


def test_removed_corrupt_image_does_not_count_as_change(here):
    (here / "images" / "train" / "a" / "bad.png").unlink()
    check_resume(here)


def test_changed_images_are_refused_by_name(here):
    train = here / "images" / "train"
    for number in (0, 2, 4):
        (train / "a" / f"{number:02}.png").unlink()
    save(train / "b" / "01.png", 99)
    expected = (
        rf"^{here}/run/checkpoints/last\.ckpt: the images have changed since it was written: "
        r"3 were removed \(such as train/a/00\.png\) and 1 was changed \(train/b/01\.png\); "
        r"restore them, or continue with --data\.changed allow$"
    )
    with pytest.raises(InputError, match=expected):
        check_resume(here)
    with pytest.warns(UserWarning, match=r"3 were removed .* training continues on the current images"):
        check_resume(here, changed="allow")


@pytest.mark.parametrize("damage", [None, b"", b"path,size\n\xff,x\n"])
def test_digest_detects_changes_without_image_list(here, damage):
    (here / "images" / "train" / "a" / "bad.png").unlink()
    file = here / "run" / "images.csv"
    file.unlink() if damage is None else file.write_bytes(damage)
    check_resume(here)
    (here / "images" / "train" / "a" / "00.png").unlink()
    with pytest.raises(InputError, match=r": the run's images\.csv does not list the changes; restore"):
        check_resume(here)


def test_checkpoint_without_image_digest_is_accepted(here):
    (here / "images" / "train" / "a" / "00.png").unlink()
    checkpoint = read_checkpoint(here / "run")._replace(images=None)
    check_images(ImageFolder(root=here / "images"), checkpoint)


def test_changed_pixels_of_built_in_dataset_are_refused(tmp_path):
    checkpoint = Checkpoint(tmp_path / "last.ckpt", {}, 1, {}, images=Digits().fingerprint())
    check_images(Digits(), checkpoint)
    data = Digits()
    data.split("train").store[5] ^= 1
    with pytest.raises(
        InputError, match=r"last\.ckpt: the images have changed .*: images or labels of Digits differ"
    ):
        check_images(data, checkpoint)


def test_fit_refuses_changed_images_unless_allowed(here, capfd, monkeypatch):
    """The refusal comes first, to show that it changes no file of the run."""
    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)
    (here / "images").rename(here / "moved")
    (here / "moved" / "train" / "a" / "00.png").unlink()
    resume = ["--trainer.max_epochs=2", "--ckpt_path=last"]
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    assert fit(here, *resume, images="moved") == 2
    error = capfd.readouterr().err
    assert "1 was removed (train/a/00.png); restore them, or continue with --data.changed allow\n" in error
    assert before == {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    with pytest.warns(UserWarning, match=r"1 was removed \(train/a/00\.png\); training continues"):
        assert fit(here, *resume, "--data.changed=allow", images="moved") == 0
    images = read_images(here / "run" / "images.csv")
    assert len(images) == 23
    assert read_checkpoint(here / "run").images != digest_of(before, here)
    assert Run(here / "run").config["data"]["init_args"]["root"] == str(here / "moved")
    moved_images = ImageFolder(root=here / "moved", image_size=8)
    check_images(moved_images, read_checkpoint(here / "run"))


def digest_of(before: dict[Path, bytes], here: Path) -> str:
    """Return the image digest of the checkpoint among the earlier file contents."""
    (here / "before.ckpt").write_bytes(before[RunFolder(here / "run").last])
    return str(read_checkpoint(here / "before.ckpt").images)


def test_image_list_preserves_unusual_paths(tmp_path):
    data = tmp_path / "images"
    for name in ("a,b/ü 图.png", 'q"q/\n.png', os.fsdecode(b"bytes\xff/x.png")):
        save(data / name, 1)
    files = ImageFolder(root=data, image_size=8).contents
    write_images(tmp_path / "images.csv", files)
    assert read_images(tmp_path / "images.csv") == files


def test_config_differences_ignore_changed_option():
    def config(**options):
        data = {"class_path": "ssl_vision.data.ImageFolder", "init_args": {"root": "a"} | options}
        return {"data": data, "seed_everything": 0}

    old, new = config(val="auto"), config(val="auto", changed="allow")
    assert differences(old, new) == []
    assert derived_name(old) == derived_name(new)
    assert differences(new, config(val="test")) != []
    moved = config(root="b", val="auto")
    assert differences(new, moved) == ["data.init_args.root: a there, b here"]
    assert differences(new, moved, moved=True) == []


def test_objective_memory_refuses_another_number_of_images(here, capfd):
    options = ["--model.objective=RECLAIM", "--model.objective.k=3", "--data.changed=allow"]
    shutil.rmtree(here / "run")
    with pytest.warns(UserWarning, match="skipped 1 of 25"):
        assert fit(here, "--trainer.max_epochs=1", *options) == 0
    (here / "images" / "train" / "a" / "00.png").unlink()
    with pytest.warns(UserWarning, match="training continues on the current images"):
        assert fit(here, "--trainer.max_epochs=2", "--ckpt_path=last", *options) == 2
    assert "train on as many images as before" in capfd.readouterr().err
