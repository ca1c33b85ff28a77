import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ssl_vision.data import ImageFolder
from ssl_vision.data.loading import file_listing as module
from ssl_vision.data.loading.file_listing import Names, list_images, load_arrays, store_arrays
from ssl_vision.errors import InputError

NAMES = ["a/1.jpg", "a/b/é.PNG", "a.jpg", "a-b/\udcff.gif", "z/10.jpg", "z/9.jpg", "b.c/x.webp", "b/x.jpg"]


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for number, name in enumerate([*NAMES, "a/notes.txt", ".ssl_vision_cache/c.jpg"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * number)
    backdate_folders(root)
    return root


def backdate_folders(root):
    """Make the folders look as if they last changed long ago."""
    for folder, *_ in os.walk(root):
        os.utime(folder, ns=(1, int(time.time() - 1000) * 10**9))


@pytest.fixture
def reads(monkeypatch, tmp_path):
    """Paths of this test's image folders that are read. Listings of any size are stored."""
    paths = []
    scandir = os.scandir

    def recording_scandir(path):
        # threads of an earlier test's failed listing may still read
        if Path(path).is_relative_to(tmp_path) and Path(path).name not in ("place", ".ssl_vision_cache"):
            paths.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", recording_scandir)
    monkeypatch.setattr(module, "_STORED", 1)
    return paths


def test_names_are_packed_and_unpacked():
    names = ["", "é", "\udcff", "a/b"]
    packed = Names.of(names)
    assert list(packed) == names
    assert (len(packed), packed[-1], packed[-4]) == (4, "a/b", "")
    with pytest.raises(IndexError):
        packed[4]
    assert list(Names.of([])) == []


def test_listing_has_sorted_names_sizes_times_and_labels(tree):
    listing = list_images(tree)
    names = sorted(NAMES, key=lambda name: name.split("/"))
    assert list(listing.names) == names
    assert listing.sizes.tolist() == [NAMES.index(name) for name in names]
    assert listing.modified.tolist() == [os.stat(tree / name).st_mtime_ns for name in names]
    assert listing.classes == ("a", "a-b", "b", "b.c", "z")
    labels = [listing.classes[label] if label >= 0 else "" for label in listing.labels]
    assert labels == [name.rpartition("/")[0].partition("/")[0] for name in names]


def test_hidden_folders_are_left_out_with_a_warning(tree):
    for name in (".ipynb_checkpoints/1.png", "__MACOSX/a/2.jpg", "a/.thumbnails/3.jpg", ".git/notes.txt"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"x")
    (tree / ".ssl_vision_cache" / "c.jpg").unlink()
    message = "3 images below .* are left out, in hidden folders: .git, .ipynb_checkpoints, .ssl_vision_cache"
    with pytest.warns(UserWarning, match=f"{message}, .thumbnails, __MACOSX$"):
        listing = list_images(tree)
    assert sorted(listing.names) == sorted(NAMES)
    assert listing.classes == ("a", "a-b", "b", "b.c", "z")


def test_images_of_types_that_are_not_read_are_counted(tree):
    for name in ("a/1.heic", "a/2.HEIC", "z/3.svg", "z/4.jfif", "5.avif"):
        (tree / name).write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"left out, as their type is not read: 2 \.heic, 1 \.svg$"):
        listing = list_images(tree)
    assert sorted(listing.names) == sorted([*NAMES, "z/4.jfif", "5.avif"])


def test_dangling_link_has_no_size(tree):
    (tree / "b" / "y.jpg").symlink_to("nothing")
    listing = list_images(tree)
    assert listing.sizes[list(listing.names).index("b/y.jpg")] == -1


def test_link_to_itself_has_no_size_and_is_not_followed(tree):
    (tree / "b" / "y.jpg").symlink_to("y.jpg")
    (tree / "b" / "z").symlink_to("z")
    listing = list_images(tree)
    assert listing.sizes[list(listing.names).index("b/y.jpg")] == -1
    assert len(listing.names) == len(NAMES) + 1


def test_circular_links_are_followed_once(tree):
    (tree / "a" / "to_b").symlink_to(tree / "b")
    (tree / "b" / "to_a").symlink_to(tree / "a")
    names = list(list_images(tree).names)
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
        assert list(list_images(tmp_path).names) == ["d/" * 350 + "x.jpg"]
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
    with pytest.raises(InputError, match=r"^.*a/b/ cannot be read \(Permission denied\)$"):
        list_images(tree)


def test_folders_with_same_name_have_separate_listings(tree, tmp_path, reads):
    place = tmp_path / "place"
    for name in ("a", "z"):
        (tree / name / "train").mkdir()
        (tree / name / "train" / f"{name}.jpg").touch()
    backdate_folders(tree)
    reads.clear()
    for _ in range(2):
        for name in ("a", "z"):
            assert list(list_images(tree / name / "train", place=place).names) == [f"{name}.jpg"]
    assert len(reads) == 2


@pytest.mark.parametrize("but", [(), ("z",)])
def test_stored_listing_is_used_without_reading_folders(tree, tmp_path, reads, but):
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


def test_a_folder_that_has_just_changed_is_read_again(tree, tmp_path, reads, monkeypatch):
    place = tmp_path / "place"
    monkeypatch.setattr(module, "_RECENT", 10**15)
    os.utime(tree / "z")
    list_images(tree, place=place)
    first = len(reads)
    list_images(tree, place=place)
    assert len(reads) == 2 * first


def test_listing_stored_inside_image_folder_stays_valid(tree, reads):
    place = tree / ".ssl_vision_cache"
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    backdate_folders(tree)
    list_images(tree, place=place)
    first = len(reads)
    list_images(tree, place=place)
    assert len(reads) == first


@pytest.mark.parametrize("content", [b"", b"no listing", None])
def test_damaged_stored_listing_is_rebuilt(tree, tmp_path, reads, content):
    place = tmp_path / "place"
    first = list_images(tree, place=place)
    (file,) = place.iterdir()
    file.write_bytes(file.read_bytes()[:1000] if content is None else content)
    before = len(reads)
    assert list(list_images(tree, place=place).names) == list(first.names)
    after = len(reads)
    assert after > before
    list_images(tree, place=place)
    assert len(reads) == after


def test_stored_listing_is_used_only_for_streamed_images(tree, reads):
    (tree / "z" / "9.jpg").write_bytes(b"before")
    backdate_folders(tree)
    for _ in range(2):
        listings = {
            stream: ImageFolder(root=tree, stream=stream).listing("train") for stream in (True, False)
        }
        sizes = {stream: each.sizes[list(each.names).index("z/9.jpg")] for stream, each in listings.items()}
        (tree / "z" / "9.jpg").write_bytes(b"overwritten in place")
    assert sizes == {True: len(b"before"), False: len(b"overwritten in place")}


def test_any_corrupted_byte_of_stored_listing_leaves_result_unchanged(tree, tmp_path, reads):
    place = tmp_path / "place"
    first = list_images(tree, place=place)
    (file,) = place.iterdir()
    content = file.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 150)):
        changed = bytearray(content)
        changed[position] ^= 0x55
        file.write_bytes(changed)
        again = list_images(tree, place=place)
        assert list(again.names) == list(first.names)
        assert np.array_equal(again.labels, first.labels)


def test_concurrent_writers_leave_one_complete_file(tmp_path):
    file = tmp_path / "place" / "x.listing"
    file.parent.mkdir()

    def write(number):
        store_arrays(file, {"numbers": np.full(10**5, number)})
        return load_arrays(file, ["numbers"])

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(write, range(24)))
    last = load_arrays(file, ["numbers"])
    assert last is not None
    complete = [arrays["numbers"] for arrays in [*loaded, last] if arrays is not None]
    assert all(len(set(numbers)) == 1 for numbers in complete)
    assert list(file.parent.iterdir()) == [file]


def test_images_are_listed_without_a_writable_cache(tree, tmp_path, reads):
    (tmp_path / "place").write_text("no folder")
    assert len(list_images(tree, place=tmp_path / "place").names) == len(NAMES)


def test_listing_of_small_folder_is_not_stored(tmp_path):
    (tmp_path / "train").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "x.png")
    backdate_folders(tmp_path)
    data = ImageFolder(root=tmp_path, stream=True)
    data.split("train")
    assert not (tmp_path / ".ssl_vision_cache").exists()


def test_folder_without_images_raises_input_error(tmp_path):
    with pytest.raises(InputError, match=r"no images in .*: looked for \.apng"):
        list_images(tmp_path)
