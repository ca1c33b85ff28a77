"""A run is not continued on other images than its checkpoint was trained on, unless that is asked for."""

import os
import re
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
from ssl_vision.runs.changed_images import check_images
from ssl_vision.runs.checkpoint import Checkpoint, read_checkpoint
from ssl_vision.runs.folder import RunFolder, derived_name, differences
from ssl_vision.runs.images_file import read_images, write_images
from ssl_vision.runs.registry import Run

FOLDER = ["--data.image_size=8", "--data.views.size=8", "--data.eval_batch_size=8"]


def save(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)


def fit(here: Path, *options: str, images: str = "images") -> int:
    data = ["--data=ImageFolder", f"--data.root={here / images}", *FOLDER]
    own = ["--data.batch_size=8", "--trainer.limit_train_batches=1", *options]
    return main(["fit", f"--runs_dir={here}", "--name=run", *data, *TINY, *own])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with images, and a run on them of one epoch."""
    here = tmp_path_factory.mktemp("here")
    for number in range(24):
        save(here / "images" / "train" / "ab"[number % 2] / f"{number:02}.png", number)
    (here / "images" / "train" / "a" / "bad.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="skipped 1 of 25"):
        assert fit(here, "--trainer.max_epochs=1") == 0
    return here


@pytest.fixture
def here(trained, tmp_path) -> Path:
    """A copy of it; the images have other modification times."""
    copy = shutil.copytree(trained, tmp_path / "here")
    for path in (copy / "images").rglob("*.png"):
        os.utime(path, ns=(1, 1))
    return copy


def checked(here: Path, **options) -> None:
    """What a continued fit does before it decodes anything."""
    data = ImageFolder(root=here / "images", image_size=8, **options)
    data.read = None  # nothing is to be decoded
    check_images(data, read_checkpoint(here / "run"))


def test_the_run_keeps_a_digest_in_the_checkpoint_and_the_list_in_its_folder(trained):
    images = read_images(trained / "run" / "images.csv")
    assert len(images) == 25
    assert [path for path, file in images.items() if not file.decoded] == ["train/a/bad.png"]
    image = trained / "images" / "train" / "a" / "00.png"
    assert images["train/a/00.png"][:2] == (image.stat().st_size, image.stat().st_mtime_ns)
    content = torch.load(trained / "run" / "checkpoints" / "last.ckpt", weights_only=True)["ssl_vision"]
    assert len(content["images"]) == 16
    assert "00.png" not in repr(content)


def test_images_with_other_times_are_the_same_images(here):
    checked(here)


def test_a_corrupt_file_may_go(here):
    (here / "images" / "train" / "a" / "bad.png").unlink()
    checked(here)


def test_changed_images_are_refused_by_name_before_anything_is_decoded(here):
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
        checked(here)
    with pytest.warns(UserWarning, match=r"3 were removed .* training continues on the current images"):
        checked(here, changed="allow")


@pytest.mark.parametrize("damage", [None, b"", b"path,size\n\xff,x\n"])
def test_without_the_list_the_digest_still_decides(here, damage):
    (here / "images" / "train" / "a" / "bad.png").unlink()
    file = here / "run" / "images.csv"
    file.unlink() if damage is None else file.write_bytes(damage)
    checked(here)
    (here / "images" / "train" / "a" / "00.png").unlink()
    with pytest.raises(InputError, match=r": the run's images\.csv does not list the changes; restore"):
        checked(here)


def test_a_checkpoint_of_an_earlier_version_is_continued(here):
    (here / "images" / "train" / "a" / "00.png").unlink()
    checkpoint = read_checkpoint(here / "run")._replace(images=None)
    check_images(ImageFolder(root=here / "images"), checkpoint)


def test_built_in_images_are_compared_too(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "last.ckpt", {}, 1, {}, images=Digits().fingerprint().digest)
    check_images(Digits(), checkpoint)
    data = Digits()
    data.split("train").store[5] ^= 1
    with pytest.raises(
        InputError, match=r"last\.ckpt: the images have changed .*: pixels or labels of Digits differ"
    ):
        check_images(data, checkpoint)


def test_fit_refuses_and_goes_on_when_asked_to(here, capfd, monkeypatch):
    """From the command line, in an order that shows that a refusal changes nothing."""
    monkeypatch.setattr("warnings.showwarning", lambda *_, **__: None)
    (here / "images").rename(here / "moved")
    (here / "moved" / "train" / "a" / "00.png").unlink()
    resumed = ["--trainer.max_epochs=2", "--ckpt_path=last"]
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    assert fit(here, *resumed, images="moved") == 2
    error = capfd.readouterr().err
    assert "1 was removed (train/a/00.png); restore them, or continue with --data.changed allow\n" in error
    assert before == {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    with pytest.warns(UserWarning, match=r"1 was removed \(train/a/00\.png\); training continues"):
        assert fit(here, *resumed, "--data.changed=allow", images="moved") == 0
    images = read_images(here / "run" / "images.csv")
    assert len(images) == 24
    assert read_checkpoint(here / "run").images != content_of(before, here)
    assert Run(here / "run").config["data"]["init_args"]["root"] == str(here / "moved")
    checked_now = ImageFolder(root=here / "moved", image_size=8)
    check_images(checked_now, read_checkpoint(here / "run"))


def content_of(before: dict[Path, bytes], here: Path) -> str:
    """The digest in the checkpoint as it was."""
    (here / "before.ckpt").write_bytes(before[RunFolder(here / "run").last])
    return str(read_checkpoint(here / "before.ckpt").images)


def test_paths_of_every_kind_survive_the_list(tmp_path):
    data = tmp_path / "images"
    for name in ("a,b/ü 图.png", 'q"q/\n.png', os.fsdecode(b"bytes\xff/x.png")):
        save(data / name, 1)
    files = ImageFolder(root=data, image_size=8).fingerprint().files
    write_images(tmp_path / "images.csv", files)
    assert read_images(tmp_path / "images.csv") == files


def test_how_the_images_are_checked_is_no_part_of_what_a_run_is():
    def config(**options):
        data = {"class_path": "ssl_vision.data.ImageFolder", "init_args": {"root": "a"} | options}
        return {"data": data, "seed_everything": 0}

    old, new = config(val="train"), config(val="auto", val_folder="val", changed="refuse")
    assert differences(old, new) == []
    assert derived_name(old) == derived_name(new) == derived_name(new | config(val="auto", changed="allow"))
    assert differences(new, config(val="auto", val_folder="other")) != []
    assert differences(new, config(val="test")) != []
    moved = config(root="b", val="auto", val_folder="val")
    assert differences(new, moved) == ["data.init_args.root: a there, b here"]
    assert differences(new, moved, moved=True) == []


def test_runs_from_before_views_were_compiled_by_default_can_be_continued():
    before, now, chosen = (
        {"data": {"class_path": "Digits", "init_args": {"views": {"compile": value}}}, "seed_everything": 0}
        for value in (False, "auto", True)
    )
    assert differences(before, now) == []
    assert derived_name(before) == derived_name(now)
    assert differences(now, chosen) == ["data.init_args.views.compile: False there, True here"]


def test_a_memory_of_the_images_is_not_continued_on_another_number_of_them(here, capfd):
    options = ["--model.objective=RECLAIM", "--model.objective.k=3", "--data.changed=allow"]
    shutil.rmtree(here / "run")
    with pytest.warns(UserWarning, match="skipped 1 of 25"):
        assert fit(here, "--trainer.max_epochs=1", *options) == 0
    (here / "images" / "train" / "a" / "00.png").unlink()
    with pytest.warns(UserWarning, match="training continues on the current images"):
        assert fit(here, "--trainer.max_epochs=2", "--ckpt_path=last", *options) == 2
    assert re.search(
        r"^ssl-vision fit: the checkpoint's objective\.\S+ has shape \(24.*\), the model's \(23.*\): "
        r"train on as many images as before$",
        capfd.readouterr().err,
        re.MULTILINE,
    )
