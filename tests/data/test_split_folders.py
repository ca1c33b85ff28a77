"""Tests of folders named like splits: which split they are, and how they are checked before decoding."""

import pytest
from PIL import Image

from ssl_vision.data import Digits, ImageFolder
from ssl_vision.data.datasets import image_folder as module
from ssl_vision.errors import InputError


def images(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (len(name), 0, 0)).save(path)
    return root


def folder(root, **options):
    return ImageFolder(root=root, **{"image_size": 8, "batch_size": 2} | options)


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [
        ("train", "val", "test"),
        ("Training", "Validation", "Testing"),
        ("TRAIN", "valid", "TEST"),
        ("training", "VAL", "testing"),
    ],
)
def test_known_names_are_splits_and_never_classes(tmp_path, train, val, test):
    for split in (train, val, test):
        images(tmp_path / split, "ant/1.png", "cat/1.png", "cat/2.png")
    data = folder(tmp_path)
    for split, name in (("train", train), ("val", val), ("test", test)):
        assert data.folder_of(split) == tmp_path / name
        assert data.split(split).classes == ("ant", "cat")
        assert data.split(split).labels.tolist() == [0, 1, 1]
    assert (data.val_split, data.eval_split) == ("val", "test")


@pytest.mark.parametrize("name", ["val", "Valid", "VALIDATION", "test", "Testing"])
def test_root_without_train_folder_excludes_other_splits(tmp_path, name):
    images(tmp_path, "b/1.png", "a/1.png", "a/2.png", f"{name}/a/1.png", f"{name}/b/1.png")
    train = folder(tmp_path).split("train")
    assert train.classes == ("a", "b")
    assert len(train) == 3


@pytest.mark.parametrize("spelling", ["hold", "absolute", "a/../hold", "link"])
@pytest.mark.parametrize("option", ["val_folder", "test"])
def test_chosen_split_is_excluded_from_root_however_it_is_written(tmp_path, monkeypatch, spelling, option):
    monkeypatch.chdir(tmp_path)
    root = images(tmp_path / "set", "b/1.png", "a/1.png", "hold/a/1.png", "hold/b/1.png")
    (root / "link").symlink_to("hold")
    if spelling != "link":
        (root / "link").unlink()
    chosen = str(root / "hold") if spelling == "absolute" else spelling
    train = folder("set", **{option: chosen}).split("train")
    assert (train.classes, len(train)) == (("a", "b"), 2)


def test_every_folder_inside_a_split_is_a_class(tmp_path):
    images(tmp_path, "train/test/1.png", "train/val/1.png", "train/train/1.png")
    data = folder(tmp_path)
    assert data.split("train").classes == ("test", "train", "val")
    assert (data.val_split, data.eval_split) == ("train", "test")


def test_options_override_known_folder_names(tmp_path):
    for split in ("train", "val", "test", "first", "second", "third"):
        images(tmp_path / split, f"{split}-class/1.png")
    data = folder(tmp_path, train="first", val_folder="second", test="third")
    assert data.split("train").classes == ("first-class",)
    assert [data.folder_of(split).name for split in ("train", "val", "test")] == ["first", "second", "third"]


def test_default_folder_name_wins_and_other_ambiguities_raise_error(tmp_path):
    images(tmp_path, "train/a/1.png", "val/a/1.png", "Validation/a/1.png", "Test/a/1.png", "testing/a/1.png")
    data = folder(tmp_path)
    assert data.folder_of("val") == tmp_path / "val"
    message = "Test and testing could each be the test split; choose one with --data.test FOLDER"
    with pytest.raises(InputError, match=message):
        data.split("test")
    assert folder(tmp_path, test="Test").split("test").labels.tolist() == [0]


def sizes(data):
    return [len(loader.data) for loader in data.val_dataloader()]


def test_validation_queries_come_from_validation_split(tmp_path):
    images(tmp_path, *(f"train/{label}/{number:02}.png" for label in "ab" for number in range(10)))
    images(tmp_path, *(f"val/{label}/{number}.png" for label in "ab" for number in range(3)), "val/loose.png")
    assert sizes(folder(tmp_path)) == [6, 20]  # queries with a label, and all of train
    assert sizes(folder(tmp_path, val="val")) == [6, 20]
    assert sizes(folder(tmp_path, val="train")) == [2, 18]


def test_validation_split_of_unlabelled_train_split_has_no_bank(tmp_path):
    images(tmp_path, *(f"train/{number:02}.png" for number in range(20)), "val/a/1.png", "val/a/2.png")
    data = folder(tmp_path)
    assert sizes(data) == [2]
    assert not data.split("val").labelled.any()  # classes that the train split does not have are ignored


def test_unlabelled_validation_split_error_suggests_train_split(tmp_path):
    images(tmp_path, "train/a/1.png", "train/b/1.png", "val/1.png", "val/2.png")
    with pytest.raises(InputError, match=r"the val split leaves 0 queries .*; --data\.val train uses"):
        folder(tmp_path).val_dataloader()


def test_missing_split_error_names_option_and_existing_folders(tmp_path):
    images(tmp_path, "train/a/1.png", "holdout/a/1.png")
    existing = r"\(folders: holdout and train\)"
    for split, option, title in (("val", "val_folder", "validation"), ("test", "test", "test")):
        with pytest.raises(InputError, match=rf"{title} split in .*--data\.{option} FOLDER {existing}"):
            folder(tmp_path).split(split)
        with pytest.raises(
            InputError, match=rf"no folder .*no for the {title} split: .*{option} FOLDER {existing}"
        ):
            folder(tmp_path, **{option: "no"}).split(split)
    with pytest.raises(
        InputError, match=rf"no folder .*trian for the train split: set it with --data\.train .*{existing}"
    ):
        folder(tmp_path, train="trian").split("train")
    # Train images are never held out silently instead.
    with pytest.raises(InputError, match=r"no folder .*no for the validation split"):
        folder(tmp_path, val_folder="no").setup("fit")
    with pytest.raises(InputError, match="Digits has no val split"):
        Digits(val="val").setup("fit")


def test_root_without_train_images_raises_error_naming_option(tmp_path):
    images(tmp_path, "val/a/1.png", "test/a/1.png")
    with pytest.raises(InputError, match=r"no images in .* outside test and val: .*--data\.train FOLDER"):
        folder(tmp_path).split("train")


def test_folders_and_classes_are_checked_before_anything_is_decoded(tmp_path, monkeypatch):
    def decode(*_, **__):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(module, "squares", decode)
    images(tmp_path, "train/a/1.png", "val/z/1.png", "test/a/1.png")
    unknown = r"val/z is a class that the train split does not have"
    for options, message in (
        ({}, unknown),
        ({"val": "test", "test": "no"}, "no folder .*no for the test split"),
    ):
        with pytest.raises(InputError, match=message):
            folder(tmp_path, **options).setup("fit")
    with pytest.raises(InputError, match=unknown):
        folder(tmp_path).split("val")


@pytest.mark.parametrize(("there", "split"), [(("val", "test"), "test"), (("val",), "val"), ((), "test")])
def test_evaluation_uses_test_split_or_else_validation_split(tmp_path, there, split):
    images(tmp_path, "train/a/1.png", *(f"{name}/a/1.png" for name in there))
    assert folder(tmp_path).eval_split == split
