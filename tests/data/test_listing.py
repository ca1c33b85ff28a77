import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ssl_vision.data.loading.file_listing import list_images
from ssl_vision.errors import InputError

NAMES = ["a/1.jpg", "a/b/é.PNG", "a.jpg", "a-b/\udcff.gif", "z/10.jpg", "z/9.jpg", "b.c/x.webp", "b/x.jpg"]


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for number, name in enumerate([*NAMES, "a/notes.txt", ".ssl_vision_cache/c.jpg"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * number)
    return root


def test_listing_has_sorted_names_sizes_times_and_labels(tree):
    listing = list_images(tree)
    names = sorted(NAMES, key=lambda name: name.split("/"))
    assert listing.names == names
    assert listing.sizes.tolist() == [NAMES.index(name) for name in names]
    assert listing.modified.tolist() == [os.stat(tree / name).st_mtime_ns for name in names]
    assert listing.classes == ("a", "a-b", "b", "b.c", "z")
    labels = [listing.classes[label] if label >= 0 else "" for label in listing.labels]
    assert labels == [name.rpartition("/")[0].partition("/")[0] for name in names]


def test_hidden_folders_are_left_out(tree):
    for name in (".ipynb_checkpoints/1.png", "__MACOSX/a/2.jpg", "a/.thumbnails/3.jpg"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"x")
    listing = list_images(tree)
    assert sorted(listing.names) == sorted(NAMES)
    assert listing.classes == ("a", "a-b", "b", "b.c", "z")


def test_overwritten_file_changes_digest_of_next_listing(tree):
    before = list_images(tree)
    (tree / "z" / "9.jpg").write_bytes(b"overwritten in place")
    after = list_images(tree)
    assert after.names == before.names
    assert after.digest(times=False) != before.digest(times=False)


def test_images_of_types_that_are_not_read_are_counted(tree):
    for name in ("a/1.heic", "a/2.HEIC", "z/3.svg", "z/4.jfif", "5.avif"):
        (tree / name).write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"left out, as their type is not read: 2 \.heic, 1 \.svg$"):
        listing = list_images(tree)
    assert sorted(listing.names) == sorted([*NAMES, "z/4.jfif", "5.avif"])


def test_dangling_link_has_no_size(tree):
    (tree / "b" / "y.jpg").symlink_to("nothing")
    listing = list_images(tree)
    assert listing.sizes[listing.names.index("b/y.jpg")] == -1


def test_link_to_itself_has_no_size_and_is_not_followed(tree):
    (tree / "b" / "y.jpg").symlink_to("y.jpg")
    (tree / "b" / "z").symlink_to("z")
    listing = list_images(tree)
    assert listing.sizes[listing.names.index("b/y.jpg")] == -1
    assert len(listing.names) == len(NAMES) + 1


def test_circular_links_are_followed_once(tree):
    (tree / "a" / "to_b").symlink_to(tree / "b")
    (tree / "b" / "to_a").symlink_to(tree / "a")
    names = list_images(tree).names
    assert "a/to_b/x.jpg" in names
    assert "b/to_a/1.jpg" in names
    assert not any("to_a/to_b" in name or "to_b/to_a" in name for name in names)


def test_folders_may_be_deeper_than_the_recursion_limit(tmp_path):
    working_directory, limit = os.getcwd(), sys.getrecursionlimit()
    try:
        os.chdir(tmp_path)
        for _ in range(350):
            os.mkdir("d")
            os.chdir("d")
        Path("x.jpg").touch()
        sys.setrecursionlimit(300)
        assert list_images(tmp_path).names == ["d/" * 350 + "x.jpg"]
    finally:
        sys.setrecursionlimit(limit)
        os.chdir(working_directory)
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_unreadable_folder_raises_one_line_input_error(tree, monkeypatch):
    scandir = os.scandir

    def failing_scandir(path):
        if str(path).rstrip("/").endswith("b"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing_scandir)
    with pytest.raises(InputError, match=r"^.*b/ cannot be read \(Permission denied\)$"):
        list_images(tree)


def test_folder_without_images_raises_input_error(tmp_path):
    with pytest.raises(InputError, match=r"no images in .*: looked for \.apng"):
        list_images(tmp_path)
