"""Tests of fingerprints, which tell changed images from copied ones and name the changed files."""

import hashlib
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from ssl_vision.data import CIFAR10, STL10, Digits, ImageFolder
from ssl_vision.data.loading import fingerprint as module
from ssl_vision.data.loading.fingerprint import changes, digest_of_splits


def save(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="bmp")  # all files have the same size


@pytest.fixture
def photos(tmp_path):
    for number in range(6):
        save(tmp_path / "photos" / "train" / "ab"[number % 2] / f"{number}.bmp", number)
    save(tmp_path / "photos" / "test" / "a" / "9.bmp", 9)
    (tmp_path / "photos" / "train" / "a" / "bad.bmp").write_bytes(b"no image")
    return tmp_path / "photos"


def folder(root, **options):
    return ImageFolder(root=root, **{"image_size": 4, "cache": "never"} | options)


def decoded(root, **options):
    """Return a data module that has decoded its images."""
    data = folder(root, **options)
    with pytest.warns(UserWarning, match="skipped 1"):
        data.setup("fit")
    return data


@pytest.mark.parametrize("cache", ["never", "always"])
def test_contents_are_those_of_decodable_files(photos, cache):
    files = [f"train/{'ab'[number % 2]}/{number}.bmp" for number in range(6)]
    expected = {file: hashlib.sha256((photos / file).read_bytes()).hexdigest()[:16] for file in files}
    text = "".join(f"{file}\0{content}\n" for file, content in sorted(expected.items()))
    for _ in range(2):  # the second time from the cache
        data = decoded(photos, cache=cache)
        assert data.contents == expected
        assert data.fingerprint() == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_copy_with_other_modification_times_has_same_digest(photos, tmp_path):
    copy = shutil.copytree(photos, tmp_path / "copy")
    for path in copy.rglob("*.bmp"):
        os.utime(path, ns=(1, 1))
    assert decoded(copy).fingerprint() == decoded(photos).fingerprint()


CHANGES = {
    "removed": (lambda train: (train / "a/0.bmp").unlink(), "1 was removed (train/a/0.bmp)"),
    "added": (lambda train: save(train / "b/x.bmp", 7), "1 was added (train/b/x.bmp)"),
    "replaced": (lambda train: save(train / "a/2.bmp", 7), "1 was changed (train/a/2.bmp)"),
    "a class removed": (
        lambda train: shutil.rmtree(train / "b"),
        "3 were removed (such as train/b/1.bmp)",
    ),
    "moved": (
        lambda train: (train / "a/0.bmp").rename(train / "b/0.bmp"),
        "1 was removed (train/a/0.bmp) and 1 was added (train/b/0.bmp)",
    ),
    "repaired": (lambda train: save(train / "a/bad.bmp", 7), "1 was added (train/a/bad.bmp)"),
}


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES)
def test_changed_files_change_digest_and_are_named(photos, change, said):
    before = decoded(photos)
    change(photos / "train")
    now = folder(photos)
    assert now.fingerprint() != before.fingerprint()
    assert changes(before.contents, now.contents) == said


def test_digest_depends_only_on_files_of_the_splits_in_use(photos):
    before = decoded(photos).fingerprint()
    (photos / "train" / "a" / "bad.bmp").unlink()
    save(photos / "test" / "a" / "9.bmp", 10)
    (photos / "train" / "notes.txt").write_text("no image")
    after = folder(photos)
    after.split("test")
    assert after.fingerprint() == before
    assert digest_with_test_validation(photos) != digest_with_test_validation(photos, 11)


def digest_with_test_validation(root, seed=None):
    """Return the digest with the test split as queries. A seed replaces the image of that split first."""
    if seed is not None:
        save(root / "test" / "a" / "9.bmp", seed)
    return folder(root, val="test").fingerprint()


def test_fingerprint_of_built_in_dataset_depends_on_labels_and_pixels():
    digits = Digits().split("train")
    digest = digest_of_splits({"train": digits})
    assert Digits().fingerprint() == Digits(batch_size=8, seed=3).fingerprint()
    assert Digits().contents == {}
    labels, pixels = digits.labels.clone(), digits.images.clone()
    labels[700] = (labels[700] + 1) % 10
    pixels[700, 1, 3, 3] ^= 1
    for images, others in ((digits.images, labels), (pixels, digits.labels)):
        assert digest_of_splits({"train": type(digits)(images, others, digits.classes)}) != digest
    assert Digits(val="test").fingerprint() != Digits().fingerprint()


def test_digest_of_large_split_uses_evenly_spaced_images(monkeypatch):
    digits = Digits().split("train")
    monkeypatch.setattr(module, "_SAMPLE", 10 * digits.images[:1].nbytes)
    digest = digest_of_splits({"train": digits})
    changed = []
    for row in (0, len(digits) // 2 + 50, len(digits) * 9 // 10):
        pixels = digits.images.clone()
        pixels[row] ^= 1
        images = type(digits)(pixels, digits.labels, digits.classes)
        changed.append(digest_of_splits({"train": images}) != digest)
    assert changed == [True, False, True]


def test_replaced_stl10_file_changes_fingerprint(tmp_path):
    root = tmp_path / "stl10_binary"
    root.mkdir()
    for name in ("train_X", "unlabeled_X"):
        (root / f"{name}.bin").write_bytes(bytes(4 * 3 * 96 * 96))
    (root / "train_y.bin").write_bytes(bytes([1, 2, 1, 2]))
    (root / "class_names.txt").write_text("\n".join("abcdefghij"))
    before = STL10(root=tmp_path).fingerprint()
    assert STL10(root=tmp_path).fingerprint() == before
    (root / "unlabeled_X.bin").write_bytes(bytes(4 * 3 * 96 * 96 - 1) + b"\1")
    assert STL10(root=tmp_path).fingerprint() != before


@pytest.mark.realdata
def test_fingerprint_of_cifar10_covers_all_images(data_root):
    data = CIFAR10(root=data_root)
    train = data.split("train")
    assert train.images.nbytes <= module._SAMPLE
    train.images[31_415, 0, 0, 0] ^= 1
    digest = data.fingerprint()
    train.images[31_415, 0, 0, 0] ^= 1
    assert digest != data.fingerprint()
