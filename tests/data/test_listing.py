import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ssl_vision.data import ImageFolder
from ssl_vision.data.loading import listing as module
from ssl_vision.data.loading.listing import Names, list_images
from ssl_vision.errors import InputError

NAMES = ["a/1.jpg", "a/b/é.PNG", "a.jpg", "a-b/\udcff.gif", "z/10.jpg", "z/9.jpg", "b.c/x.webp", "b/x.jpg"]


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for number, name in enumerate([*NAMES, "a/notes.txt", ".ssl_vision_cache/c.jpg"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * number)
    age(root)
    return root


def age(root):
    """Makes the folders look as if they had last changed long ago."""
    for folder, *_ in os.walk(root):
        os.utime(folder, ns=(1, int(time.time() - 1000) * 10**9))


@pytest.fixture
def reads(monkeypatch):
    """The folders of images that are read."""
    paths = []
    scandir = os.scandir

    def recorded(path):
        if Path(path).name not in ("place", ".ssl_vision_cache"):
            paths.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", recorded)
    monkeypatch.setattr(module, "_STORED", 1)
    return paths


def test_names_are_packed_and_unpacked():
    names = ["", "é", "\udcff", "a/b"]
    packed = Names.of(names)
    assert list(packed) == names
    assert (len(packed), packed[-1], packed[1:3]) == (4, "a/b", ["é", "\udcff"])
    with pytest.raises(IndexError):
        packed[4]
    assert list(Names.of([])) == []


def test_files_are_sorted_by_the_parts_of_their_paths(tree):
    listing = list_images(tree)
    names = sorted(NAMES, key=lambda name: name.split("/"))
    assert list(listing.names) == names
    assert listing.sizes.tolist() == [NAMES.index(name) for name in names]
    assert listing.modified.tolist() == [os.stat(tree / name).st_mtime_ns for name in names]
    assert listing.classes == ("a", "a-b", "b", "b.c", "z")
    labels = [listing.classes[label] if label >= 0 else "" for label in listing.labels]
    assert labels == [name.rpartition("/")[0].partition("/")[0] for name in names]


def test_a_link_without_a_target_has_no_size(tree):
    (tree / "b" / "y.jpg").symlink_to("nothing")
    listing = list_images(tree)
    assert listing.sizes[list(listing.names).index("b/y.jpg")] == -1


@pytest.mark.parametrize("but", [(), ("z",)])
def test_a_stored_listing_is_read_without_its_folders(tree, tmp_path, reads, but):
    options = {"place": tmp_path / "place", "but": [tree / name for name in but]}
    first = list_images(tree, **options)
    assert len(reads) == 7 - len(but)
    again = list_images(tree, **options)
    assert len(reads) == 7 - len(but)
    assert list(again.names) == list(first.names)
    assert again.classes == first.classes
    assert again.digest() == first.digest()
    assert again.digest(times=False) == first.digest(times=False)
    for column in ("sizes", "modified", "labels"):
        assert np.array_equal(getattr(again, column), getattr(first, column))


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "folder"])
def test_a_stored_listing_is_replaced_when_a_folder_changes(tree, tmp_path, reads, change):
    place = tmp_path / "place"
    before = list(list_images(tree, place=place).names)
    if change == "added":
        (tree / "a" / "b" / "new.jpg").touch()
    elif change == "removed":
        (tree / "z" / "9.jpg").unlink()
    elif change == "renamed":
        (tree / "z" / "9.jpg").rename(tree / "z" / "8.jpg")
    else:
        (tree / "new").mkdir()
        (tree / "new" / "x.jpg").touch()
    listed = list(list_images(tree, place=place).names)
    assert listed == list(list_images(tree).names) != before


def test_a_folder_that_has_just_changed_is_read_again(tree, tmp_path, reads):
    place = tmp_path / "place"
    os.utime(tree / "z")
    list_images(tree, place=place)
    first = len(reads)
    list_images(tree, place=place)
    assert len(reads) == 2 * first


def test_a_stored_listing_inside_the_folder_does_not_change_it(tree, reads):
    place = tree / ".ssl_vision_cache"
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    age(tree)
    list_images(tree, place=place)
    first = len(reads)
    list_images(tree, place=place)
    assert len(reads) == first


@pytest.mark.parametrize("content", [b"", b"no listing", None])
def test_a_damaged_listing_is_made_again(tree, tmp_path, reads, content):
    place = tmp_path / "place"
    first = list_images(tree, place=place)
    (file,) = place.iterdir()
    file.write_bytes(file.read_bytes()[:1000] if content is None else content)
    assert list(list_images(tree, place=place).names) == list(first.names)


def test_an_unwritable_place_is_not_needed(tree, tmp_path, reads):
    (tmp_path / "place").write_text("no folder")
    assert len(list_images(tree, place=tmp_path / "place").names) == len(NAMES)


def test_small_folders_are_always_read(tmp_path):
    (tmp_path / "train").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "x.png")
    age(tmp_path)
    data = ImageFolder(root=tmp_path, stream=True)
    data.split("train")
    assert not (tmp_path / ".ssl_vision_cache").exists()


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no images in .*: looked for \.bmp"):
        list_images(tmp_path)
