import os
import signal
import threading

import numpy as np
import pytest
import torch
from forked import forked
from PIL import Image

from ssl_vision.data import ImageFolder
from ssl_vision.data.datasets import decoded as decoded_data
from ssl_vision.data.datasets import image_folder as module
from ssl_vision.data.loading import decoding
from ssl_vision.errors import InputError


def save(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (14, 11, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path):
    for number in range(300):
        save(tmp_path / "photos" / "train" / f"c{number % 3}" / f"{number:03}.jpg", number)
    for number in range(20):
        save(tmp_path / "photos" / "test" / f"c{number % 3}" / f"{number:03}.png", 1000 + number)
    return tmp_path / "photos"


def folder(root, **options):
    return ImageFolder(
        root=root, **{"image_size": 8, "cache": "always", "batch_size": 32, "seed": 1} | options
    )


def files(root):
    return sorted(path.name for path in (root / ".ssl_vision_cache").iterdir() if path.suffix != ".lock")


@pytest.fixture
def decoded(monkeypatch):
    """Names of the decoded files, in order."""
    names = []

    def recording_squares(folder, wanted, **options):
        names.extend(wanted)
        return original(folder, wanted, **options)

    original = decoding.squares
    monkeypatch.setattr(module, "squares", recording_squares)
    return names


def test_cached_images_and_batches_match_those_in_memory(photos):
    with_cache, without_cache = folder(photos, val="test"), folder(photos, val="test", cache="never")
    for split in ("pretrain", "test"):
        cached, plain = with_cache.split(split), without_cache.split(split)
        assert cached.file is not None
        assert plain.file is None
        assert torch.equal(cached.images, plain.images)
        assert torch.equal(cached.labels, plain.labels)
        assert cached.classes == plain.classes
    pairs = [(with_cache.train_dataloader(), without_cache.train_dataloader())]
    pairs += zip(with_cache.val_dataloader(), without_cache.val_dataloader(), strict=True)
    for left, right in pairs:
        for one, other in zip(left, right, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


def test_images_are_decoded_once(photos, decoded):
    first = folder(photos).split("train")
    assert len(decoded) == 300
    again = folder(photos).split("train")
    assert len(decoded) == 300
    assert torch.equal(first.images, again.images)


def test_setup_reads_cache_written_by_prepare_data(photos, decoded):
    folder(photos, val="test").prepare_data()
    assert len(decoded) == 320
    folder(photos, val="test").setup("fit")
    assert len(decoded) == 320


@pytest.mark.parametrize("change", ["touched", "added", "removed", "resized"])
def test_changed_image_files_replace_cache(photos, decoded, change):
    folder(photos).split("train")
    before = files(photos)
    path = photos / "train" / "c0" / "000.jpg"
    if change == "touched":
        os.utime(path, ns=(1, 1))
    elif change == "added":
        save(photos / "train" / "c0" / "999.jpg", 999)
    elif change == "removed":
        path.unlink()
    else:
        save(path, 5555)
    changed = folder(photos).split("train")
    assert len(decoded) > 550
    assert torch.equal(changed.images, folder(photos, cache="never").split("train").images)
    assert len(files(photos)) == len(before) == 2
    assert files(photos) != before


def test_caches_of_other_splits_and_sizes_stay(photos):
    for options in ({}, {"image_size": 9}, {"train": "train/c0"}, {"train": "."}):
        folder(photos, val="test", **options).prepare_data()
    assert len(files(photos)) == 2 * 6


@pytest.mark.parametrize("large", [True, False])
def test_auto_cache_writes_file_only_for_large_data(photos, monkeypatch, large):
    size = 300 * 3 * 8 * 8
    monkeypatch.setattr(decoded_data, "_IN_MEMORY", size - 1 if large else size)
    data = folder(photos, cache="auto")
    data.prepare_data()
    assert (data.split("train").file is not None) == large
    assert (photos / ".ssl_vision_cache").exists() == large


def test_cache_remembers_corrupt_files(photos, decoded):
    for name in ("train/c0/001.jpg", "train/c2/zzz.jpg"):
        (photos / name).write_bytes(b"no image")
    with pytest.raises(InputError, match=r"001\.jpg cannot be decoded \(unknown image format\); remove"):
        folder(photos, strict=True).split("train")
    assert files(photos) == []
    for _ in range(2):
        data = folder(photos)
        with pytest.warns(UserWarning, match=r"skipped 2 of 302 images.*001\.jpg, .*zzz\.jpg$"):
            cached = data.split("train")
        assert data.skipped == ("train/c0/001.jpg", "train/c2/zzz.jpg")
        assert len(decoded) <= 2 * 302
        assert len(cached) == 300
    with pytest.warns(UserWarning, match="skipped 2"):
        plain = folder(photos, cache="never").split("train")
    assert torch.equal(cached.images, plain.images)
    assert torch.equal(cached.labels, plain.labels)
    with pytest.raises(InputError, match=r"001\.jpg cannot be decoded .* strict false"):
        folder(photos, strict=True).split("train")


def test_folder_of_only_corrupt_files_raises_input_error(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"none of the 1 .*bad\.png \(UnidentifiedImageError: the file is"):
        folder(tmp_path).split("train")


def read_until_killed(photos):
    original = decoding.read_content

    def content(path):
        if path.name == "200.jpg":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(path)

    decoding.read_content = content
    folder(photos).split("train")


def test_cache_is_completed_after_killed_process(photos):
    process = forked(read_until_killed, photos)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert files(photos) == ["train-8.partial"]
    cached = folder(photos).split("train")
    assert torch.equal(cached.images, folder(photos, cache="never").split("train").images)
    assert [name.rpartition(".")[2] for name in files(photos)] == ["json", "uint8"]


def test_concurrent_readers_decode_images_once(photos, decoded):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(folder(photos).split("train"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decoded) == 300
    assert all(torch.equal(result.images, results[0].images) for result in results)


def test_damaged_cache_is_rebuilt(photos, decoded):
    folder(photos).split("train")
    index, pixels = (photos / ".ssl_vision_cache" / name for name in files(photos))
    for file, content in ((pixels, b"short"), (index, b"{"), (index, b"{}")):
        file.write_bytes(content)
        assert len(folder(photos).split("train")) == 300
    assert len(decoded) == 4 * 300


def test_cache_dir_sets_location_of_cache(photos, tmp_path):
    folder(photos, cache_dir=tmp_path / "fast").prepare_data()
    assert not (photos / ".ssl_vision_cache").exists()
    (directory,) = (tmp_path / "fast").iterdir()
    assert directory.name.startswith("photos-")


def test_unwritable_root_falls_back_to_user_cache(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder(photos).prepare_data()
    assert list((tmp_path / "home" / "ssl_vision").glob("photos-*/train-8-*.uint8"))


def test_unwritable_cache_dir_raises_input_error(photos, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"decoded images cannot be written to .*file/photos-.*; set cache_dir"
    ):
        folder(photos, cache_dir=tmp_path / "file").prepare_data()


def test_invalid_cache_mode_raises_input_error(photos):
    with pytest.raises(InputError, match="cache must be one of 'auto', 'always', 'never', got 'maybe'"):
        folder(photos, cache="maybe")
