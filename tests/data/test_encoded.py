"""Tests of images that are decoded for each batch: pixels, order, damaged files and resumed runs."""

import errno
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from settings import TINY

from ssl_vision.data import ImageFolder, Shards, Views
from ssl_vision.data.datasets.encoded import EncodedImages
from ssl_vision.data.datasets.shards import load_arrays, store_arrays
from ssl_vision.data.loading.decoding import decode_square, open_image, square
from ssl_vision.data.loading.file_listing import Listing
from ssl_vision.data.loading.fingerprint import digest_of_images
from ssl_vision.data.loading.loader import Batches
from ssl_vision.encoders import ResNet
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import embed
from ssl_vision.evaluation.protocol import read_protocol
from ssl_vision.evaluation.splits import Splits
from ssl_vision.evaluation.subject import Subject, run_protocols
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint

SIDE = 24


def picture(seed, size=(100, 76)):
    """Return a smooth image, whose pixels hardly depend on how it is reduced."""
    colours = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC)


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photos_in(root, count, classes="a", damaged=(), kind="JPEG"):
    """Write numbered images, in class folders in turn, of which some cannot be decoded."""
    for number in range(count):
        path = (
            root
            / "train"
            / classes[number % len(classes)]
            / f"{number:03}.{kind.lower().replace('jpeg', 'jpg')}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image" if number in damaged else encoded(picture(number), kind))
    return root


def tar_of(path, members):
    """Write a tar file of members {name: content or TarInfo}."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if content is member else content
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return photos_in(tmp_path_factory.mktemp("photos"), 70, "abc")


@pytest.fixture(scope="module")
def tars(photos, tmp_path_factory):
    """Folders of three tar files with the same images, one folder for each way of storing the labels."""
    roots = {}
    names = sorted(path.relative_to(photos / "train") for path in (photos / "train").rglob("*.jpg"))
    for kind in ("cls", "json", "folder"):
        roots[kind] = tmp_path_factory.mktemp(kind)
        for number in range(3):
            members = {}
            for name in names[number * 25 : (number + 1) * 25]:
                start = f"./{name.parent}/{name.stem}" if kind == "folder" else f"x/{name.stem}"
                members[f"{start}.jpg"] = (photos / "train" / name).read_bytes()
                if kind != "folder":
                    form = b"%s" if kind == "cls" else b'{"label": "%s", "n": 3}'
                    members[f"{start}.{kind}"] = form % name.parent.name.encode()
            tar_of(roots[kind] / f"train-{number}.tar", members)
    return roots


def module(root, kind=ImageFolder, **options):
    streamed = {"stream": True} if kind is ImageFolder else {}
    return kind(root=root, **{"image_size": SIDE, "batch_size": 16, "seed": 3} | streamed | options)


def batches(data, epoch=0, completed=0):
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)
    if completed:
        loader.load_state_dict({"epoch": epoch, "step": completed})
    return list(loader)


def equal(first, second):
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


@pytest.mark.parametrize("size", [(100, 76), (76, 100), (75, 101), (24, 24), (10, 12), (400, 25)])
def test_reduced_jpeg_is_close_to_exact_square(size):
    content = encoded(picture(5, size), quality=95)
    exact = torch.from_numpy(square(open_image(content), SIDE)).int()
    reduced = decode_square(content, SIDE)
    assert reduced.dtype == torch.uint8
    assert reduced.shape == (3, SIDE, SIDE)
    # The crop at whole pixels may be off by half a pixel of the reduced image.
    assert (reduced.int() - exact).abs().float().mean() < 8


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpegs_of_other_modes_are_decoded_to_rgb(mode):
    content = encoded(picture(1).convert(mode), quality=95)
    exact = torch.from_numpy(square(open_image(content), SIDE)).int()
    assert (decode_square(content, SIDE).int() - exact).abs().float().mean() < 4


@pytest.mark.parametrize("place", ["first", "after other headers", "XMP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpeg_is_rotated_according_to_its_orientation(orientation, place):
    exif = Image.Exif()
    exif[0x0112] = orientation
    xmp = f'<x:xmpmeta tiff:Orientation="{orientation}"/>'.encode()
    metadata = {"xmp": xmp} if place == "XMP" else {"exif": exif.tobytes()}
    content = encoded(picture(2), quality=95, **metadata)
    if place == "after other headers":
        content = content[:2] + 2 * (b"\xff\xef\xff\xff" + bytes(2**16 - 3)) + content[2:]
    upright = ImageOps.exif_transpose(open_image(content))
    expected = torch.from_numpy(square(upright, SIDE)).int()
    assert (decode_square(content, SIDE).int() - expected).abs().float().mean() < 4


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
def test_other_formats_are_decoded_exactly(kind):
    content = encoded(picture(3), kind)
    exact = torch.from_numpy(square(open_image(content), SIDE))
    assert torch.equal(decode_square(content, SIDE), exact)


def test_truncated_jpeg_raises_os_error():
    content = encoded(picture(4))
    with pytest.raises(OSError, match="truncated"):
        decode_square(content[: len(content) // 2], SIDE)


def test_streamed_batches_match_batches_of_stored_squares(photos):
    stored = module(photos, stream=False)
    streamed = module(photos, workers=0)
    assert streamed.classes == stored.classes
    for one, other in zip(batches(stored, 2), batches(streamed, 2), strict=True):
        assert torch.equal(one.indices, other.indices)
        assert torch.equal(one.labels, other.labels)
        assert (one.images.int() - other.images.int()).abs().float().mean() < 4
    for one, other in zip(stored.val_dataloader(), streamed.val_dataloader(), strict=True):
        assert one.data.labels.tolist() == other.data.labels.tolist()


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_neither_batches_nor_random_state(photos, workers):
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*suggested max number of worker.*")
        equal(batches(module(photos, workers=workers), 1), batches(module(photos, workers=0), 1))
    assert torch.equal(torch.get_rng_state(), state)


def test_epoch_resumes_after_completed_batches(photos):
    equal(batches(module(photos, workers=1), 1, completed=2), batches(module(photos, workers=0), 1)[2:])


@pytest.mark.parametrize("kind", ["cls", "json", "folder"])
def test_shards_give_the_same_batches_as_files(photos, tars, kind):
    files, tar = module(photos, workers=0), module(tars[kind], Shards, workers=0)
    assert tar.classes == files.classes
    equal(batches(tar, 1), batches(files, 1))
    equal(batches(module(tars[kind], Shards, workers=1), 1), batches(files, 1))
    assert tar.fingerprint() == module(tars[kind], Shards).fingerprint()


def test_tar_index_is_stored_until_a_tar_file_changes(tars, tmp_path, monkeypatch):
    root, opened = tmp_path / "shards", []
    shutil.copytree(tars["cls"], root, ignore=shutil.ignore_patterns(".ssl_vision_cache"))
    original = tarfile.open
    monkeypatch.setattr(tarfile, "open", lambda *args: opened.append(args) or original(*args))
    module(root, Shards).split("train")
    first = len(opened)
    assert first == 3
    module(root, Shards).split("train")
    assert len(opened) == first
    os.utime(root / "train-1.tar")
    module(root, Shards).split("train")
    assert len(opened) == first + 3
    (index,) = (root / ".ssl_vision_cache").iterdir()
    content = bytearray(index.read_bytes())
    content[content.index(b".jpg")] ^= 0x55
    index.write_bytes(content)
    module(root, Shards).split("train")
    assert len(opened) == first + 6


@pytest.mark.parametrize(
    ("labels", "expected", "classes"),
    [
        ([10, 2, *[-1] * 9], [10, 2, *[-1] * 9], tuple(map(str, range(11)))),
        ([10, 2, -1], [0, 1, -1], ("10", "2")),  # more positions than images
    ],
    ids=["positions", "ids"],
)
def test_integer_labels_are_class_indices_and_minus_one_is_unlabelled(tmp_path, labels, expected, classes):
    members = {f"{number}.jpg": encoded(picture(number)) for number in range(len(labels))}
    members |= {f"{number}.cls": b"%d\n" % label for number, label in enumerate(labels)}
    tar_of(tmp_path / "train.tar", members)
    images = module(tmp_path, Shards, workers=0).split("train")
    assert images.labels.tolist() == expected
    assert images.classes == classes


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"no tar file", "cannot be read as an uncompressed tar"), (None, r"no files .*train\*\.tar")],
)
def test_missing_or_invalid_tar_files_raise_input_error(tmp_path, content, message):
    if content:
        (tmp_path / "train.tar").write_bytes(content)
    with pytest.raises(InputError, match=message):
        module(tmp_path, Shards).split("train")


def link(name, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "0.jpg"
    return member


JPEG = encoded(picture(0))


@pytest.mark.parametrize("damage", ["half", "header", "last bytes", "whole members"])
def test_damaged_tar_raises_input_error(tmp_path, damage):
    path = tmp_path / "train.tar"
    tar_of(path, {f"{number}.jpg": JPEG for number in range(4)})
    content = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        third, last = tar.getmembers()[2:]
    if damage == "header":
        content[third.offset + 20 : third.offset + 30] = b"x" * 10
    else:
        ends = {
            "half": third.offset + 100,
            "last bytes": last.offset_data + 100,
            "whole members": third.offset,
        }
        del content[ends[damage] :]
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train\.tar cannot be read as an uncompressed tar file \(.+\)$"):
        module(tmp_path, Shards).split("train")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.jpg": link("1.jpg", tarfile.LNKTYPE)}, "1.jpg is a link"),
        ({"1.jpg": link("1.jpg", tarfile.SYMTYPE)}, "1.jpg is a link"),
        ({"0.cls": b"\xff"}, "0.cls: .*can't decode"),
        ({"a/0.json": b"{"}, "a/0.json: Expecting"),
        ({"0.json": b'{"label": -2}'}, "0.json: label -2 is below -1"),
        ({"0.json": b"[" * 100_000}, "0.json: .*recursion"),
    ],
)
def test_unusable_tar_members_raise_input_error(tmp_path, members, message):
    tar_of(tmp_path / "train.tar", {"0.jpg": JPEG} | members)
    with pytest.raises(InputError, match=message):
        module(tmp_path, Shards).split("train")


def test_images_left_out_of_tar_files_are_counted(tmp_path):
    names = ["a/0.jpg", "a/0.png", "a/1.v2.jpg", "a/2.10.30.png", "a/3.heic", "a/3.txt", "a/3.v2.txt"]
    tar_of(tmp_path / "train.tar", dict.fromkeys(names, JPEG))
    with pytest.warns(UserWarning, match=r"4 images are left out, such as .*train\.tar/a/0\.png: a sample"):
        assert len(module(tmp_path, Shards).split("train")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "/train-*.tar"}, "--data.train '/train-[*].tar' is not a pattern relative to"),
        ({"train": ""}, "--data.train '' is not a pattern"),
        ({"image_size": 0}, "image_size must be at least 1"),
        ({"pixel_range": (10, 0)}, "pixel_range must be"),
    ],
)
def test_invalid_shards_options_raise_input_error(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        module(tmp_path, Shards, **options).split("train")


def test_tar_members_of_any_name_are_read_without_unpacking(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    names = ["../../up.jpg", "/absolute.jpg", "a\nb/0.jpg", "a\nb/\udcff.jpg", "./b/c/d.jpg", "e.jpg"]
    tar_of(root / "train-0.tar", dict.fromkeys(names, JPEG) | {"e.json": b'{"label": null}'})
    tar_of(root / "train-1.tar", {})
    (root / "train-2.tar").symlink_to("train-0.tar")
    images = module(root, Shards, workers=0).split("train")
    assert images.classes == ("..", "a\nb", "b")
    assert images.labels.tolist() == 2 * [0, -1, 1, 1, 2, -1]
    assert (images.images == decode_square(JPEG, SIDE)).all()
    assert {path.name for path in tmp_path.rglob("*.jpg")} == set()


@pytest.mark.parametrize("kind", ["empty", "gzip", "dangling", "folder"])
def test_non_tar_files_raise_one_line_input_error(tmp_path, kind):
    path = tmp_path / "train.tar"
    if kind == "dangling":
        path.symlink_to("nothing")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"")
        if kind == "gzip":
            with tarfile.open(path, "w:gz") as tar:
                tar.add(__file__)
    with pytest.raises(InputError, match=r"train\.tar cannot be read") as error:
        module(tmp_path, Shards).split("train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_joined_batches_of_processes_match_single_process(photos, monkeypatch, world_size):
    def shares(size):
        data, batches_by_rank = module(photos, batch_size=16 // size), []
        for rank in range(size):
            loader = Batches(
                data.train_dataloader().data, batch_size=16 // size, shuffle=True, drop_last=True, seed=3,
                rank=rank, world_size=size,
            )  # fmt: skip
            batches_by_rank.append(list(loader))
        return [
            tuple(map(torch.cat, zip(*(batch[:3] for batch in parts), strict=True)))
            for parts in zip(*batches_by_rank, strict=True)
        ]

    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    equal(shares(world_size), batches(module(photos, workers=0)))


def test_damaged_image_is_not_replaced_by_a_held_out_test_image(tmp_path):
    data = module(photos_in(tmp_path, 10), workers=0, test_share=0.3)
    test = set(data.split("test").rows.tolist())
    damaged = max(row for row in range(10) if row not in test and (row + 1) % 10 in test)
    photos_in(tmp_path, 10, damaged=[damaged])
    data = module(tmp_path, workers=0, test_share=0.3)
    train = data.split("pretrain")
    with pytest.warns(UserWarning, match="is replaced by") as caught:
        train.at(torch.arange(len(train)))
    substitute = int(re.search(r"replaced by .*/(\d+)\.jpg", str(caught[0].message))[1])
    assert substitute not in test


def test_damaged_query_is_not_replaced_by_an_image_of_the_bank(tmp_path):
    photos_in(tmp_path, 20, damaged=[9])
    queries, bank = module(tmp_path, workers=0, val="train").val_dataloader()
    assert queries.data.rows.tolist() == [9, 19]
    with pytest.warns(UserWarning, match=r"is replaced by .*/019\.jpg"):
        queries.data.at(torch.arange(2))
    assert len(bank.data) == 18


@pytest.mark.parametrize("kind", [ImageFolder, Shards])
def test_drawn_test_images_may_be_the_queries_of_validation(photos, tars, kind):
    root = photos if kind is ImageFolder else tars["cls"]
    data = module(root, kind, workers=0, test_share=0.2, val="test")
    data.prepare_data()
    data.setup("fit")
    queries, bank = data.val_dataloader()
    assert len(queries.data) + len(bank.data) == 70
    assert data.fingerprint() == module(root, kind, workers=0).fingerprint()


def test_tar_files_of_train_and_another_split_are_refused(tars, tmp_path):
    for number in range(2):
        shutil.copy(tars["cls"] / f"train-{number}.tar", tmp_path / ("train-0.tar", "val-0.tar")[number])
    with pytest.raises(InputError, match=r"val-0\.tar matches the patterns of train \(\*\.tar\) and of val"):
        module(tmp_path, Shards, train="*.tar").setup("fit")


def test_file_names_with_line_breaks_and_non_utf8_bytes_are_read(tmp_path):
    for name in ("a\nb/\n.jpg", "\udcff/\udcfe.jpg"):
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(JPEG)
    data = module(tmp_path, workers=1, batch_size=2)
    (batch,) = batches(data)
    assert data.classes == ("a\nb", "\udcff")
    assert (batch.images == decode_square(JPEG, SIDE)).all()


@pytest.mark.parametrize("change", ["removed", "folder", "fifo", "unreadable"])
def test_file_that_becomes_unreadable_after_listing_is_replaced(tmp_path, change):
    paths = [tmp_path / "train" / f"{number}.jpg" for number in range(2)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(JPEG)
    data = module(tmp_path, workers=0, batch_size=2)
    data.split("train")
    paths[0].unlink()
    if change == "folder":
        paths[0].mkdir()
    elif change == "fifo":
        os.mkfifo(paths[0])
    elif change == "unreadable":
        paths[0].symlink_to(paths[0])
    with pytest.warns(UserWarning, match=r"0\.jpg cannot be decoded and is replaced by .*1\.jpg"):
        (batch,) = batches(data)
    assert (batch.images == decode_square(JPEG, SIDE)).all()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
def test_read_errors_raise_input_error_instead_of_replacing_image(photos, monkeypatch, error):
    def fails(self, row):
        raise error

    data = module(photos, workers=0)
    data.split("train")
    monkeypatch.setattr(Listing, "content", fails)
    with pytest.raises(InputError, match=r"jpg cannot be decoded"):
        batches(data)


def test_number_of_replacements_tried_for_damaged_file_is_limited():
    tried = []

    class Damaged:
        path, digest = str, str
        labels, classes = np.zeros(5000, dtype=np.int32), ("a",)

        def content(self, row):
            tried.append(row)
            return b"no image"

    images = EncodedImages(Damaged(), ("a",), side=8, pixel_range=None, strict=False, workers=0)
    with pytest.raises(InputError, match="cannot be decoded"):
        images.at(torch.tensor([3]))
    assert tried[0] == 3
    assert len(tried) == len(set(tried)) == 1024


def test_digest_of_streamed_images_depends_on_rows_size_and_mtime(photos, tars, tmp_path):
    root = Path(shutil.copytree(photos, tmp_path / "root"))

    def digest(**options):
        return digest_of_images(module(root, **options).split("train"))

    first = digest()
    assert digest(workers=0) == first
    images = module(root).split("train")
    others = {digest_of_images(images.select(torch.arange(5))), digest(image_size=SIDE + 1)}
    os.utime(root / "train" / "a" / "000.jpg")
    others.add(digest())
    assert len(others - {first}) == 3
    assert digest_of_images(module(tars["cls"], Shards).split("train")) not in others | {first}


def test_features_do_not_depend_on_worker_processes(photos):
    data, network = module(photos, workers=2), ResNet(width=2)
    single_process_images = module(photos, workers=0).split("train")
    expected, features = (
        embed(network, images, data.views)["backbone"]
        for images in (single_process_images, data.split("train"))
    )
    assert torch.equal(expected, features)


@pytest.mark.parametrize("workers", [0, 1])
def test_raw_pixel_baseline_is_skipped_for_streamed_images(photos, capsys, workers):
    images = module(photos, workers=workers).split("train")
    splits = Splits({"train": images, "test": images}, Views(size=SIDE), data="ImageFolder")
    network = FeatureExtractor(ResNet(width=2), splits, description=None)
    subject = Subject((network,), splits, "a network", pixels=True)
    result = run_protocols(subject, [read_protocol("solo")])
    assert {row.features for row in result.rows} == {"trained"}
    assert "raw pixels are left out" in capsys.readouterr().err


@pytest.fixture
def damaged(tmp_path):
    return photos_in(tmp_path, 8, "ab", damaged=[2, 6])


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_file_is_replaced_by_next_image_of_its_label(damaged, workers):
    data = module(damaged, workers=workers, batch_size=8)
    with pytest.warns(UserWarning, match=r"006\.jpg cannot be decoded and is replaced by .*a/000\.jpg"):
        (batch,) = batches(data)
    images = dict(zip(batch.indices.tolist(), batch.images, strict=True))  # rows 0..3 are a/0, a/2, a/4, a/6
    assert torch.equal(images[1], images[2])
    assert torch.equal(images[3], images[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_raises_one_line_error_for_damaged_file(damaged, workers):
    with pytest.raises(InputError, match=r"jpg cannot be decoded \(.*\); remove it") as error:
        batches(module(damaged, workers=workers, batch_size=8, strict=True))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_label_with_only_damaged_images_raises_input_error(damaged, workers):
    for path in (damaged / "train" / "a").iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"train/a/.*jpg cannot be decoded \(.*\); remove it$"):
        batches(module(damaged, workers=workers, batch_size=8))


def test_no_readable_image_raises_input_error_without_advice_that_is_followed_already(damaged):
    for path in (damaged / "train").glob("*/*"):
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot be decoded \(.*\); remove it$"):
        batches(module(damaged, workers=0, batch_size=8))


@pytest.mark.parametrize("kind", [ImageFolder, Shards])
@pytest.mark.parametrize("bad", [range(6, 18), range(12), range(0, 24, 2), range(1, 24)], ids=str)
def test_damaged_images_have_different_substitutes(tmp_path, kind, bad):
    photos_in(tmp_path, 24, damaged=bad, kind="PNG")
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        tar.add(tmp_path / "train" / "a", "a")
    data = module(tmp_path, kind, workers=0)
    images = data.split("train").at(torch.arange(24)).flatten(1)
    times = torch.unique(images, dim=0, return_counts=True)[1]
    assert len(times) == 24 - len(bad)  # all readable images
    assert max(times) == (24 if len(bad) == 23 else 2)


def test_large_datasets_are_streamed_by_default(photos, monkeypatch):
    size = 70 * 3 * SIDE**2
    for limit, streams in ((size, False), (size - 1, True)):
        monkeypatch.setattr("ssl_vision.data.datasets.image_folder._ON_DISK", limit)
        # The option does not change the pixels, and may differ in a resumed run.
        for cache in ("auto", "never"):
            assert (module(photos, stream=None, cache=cache).split("train").workers > 0) == streams


def test_fingerprint_changes_with_file_names_and_sizes(damaged):
    digests = {module(damaged).fingerprint(), module(damaged).fingerprint()}
    assert len(digests) == 1
    (damaged / "train" / "a" / "002.jpg").write_bytes(b"longer than before")
    digests.add(module(damaged).fingerprint())
    (damaged / "train" / "a" / "002.jpg").rename(damaged / "train" / "b" / "002.jpg")
    digests.add(module(damaged).fingerprint())
    assert len(digests) == 3


def test_negative_workers_raise_input_error(photos, tars):
    for root, kind in ((photos, ImageFolder), (tars["cls"], Shards)):
        with pytest.raises(InputError, match="workers must be at least 0"):
            module(root, kind, workers=-1).split("train")


OPTIONS = [*TINY[:-1], "--report=false", f"--data.image_size={SIDE}", f"--data.views.size={SIDE}"]
OPTIONS += ["--data.batch_size=8", "--trainer.limit_train_batches=8", "--trainer.limit_val_batches=0"]


def command(photos, runs, name, *options):
    return [
        "fit", "--data=ImageFolder", f"--data.root={photos}", "--data.stream=true", f"--runs_dir={runs}",
        f"--name={name}", *OPTIONS, "--save_every_n_steps=1", *options,
    ]  # fmt: skip


@pytest.mark.long
def test_killed_run_resumes_bitwise_with_other_number_of_workers(photos, tmp_path):
    assert main(command(photos, tmp_path, "whole", "--data.workers=0")) == 0
    arguments = command(photos, tmp_path, "killed", "--data.workers=1")
    process = subprocess.Popen([sys.executable, "-m", "ssl_vision", *arguments], stdout=subprocess.DEVNULL)
    last = tmp_path / "killed" / "checkpoints" / "last.ckpt"
    while process.poll() is None and not last.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < torch.load(last, weights_only=True)["global_step"] < 16
    assert main(command(photos, tmp_path, "killed", "--data.workers=2", "--ckpt_path=last")) == 0
    whole, continued = (
        read_checkpoint(tmp_path / name / "checkpoints" / "last.ckpt").state for name in ("whole", "killed")
    )
    assert all(torch.equal(whole[key], continued[key]) for key in whole)


@pytest.mark.long
def test_run_is_saved_when_all_its_processes_receive_sigterm(photos, tmp_path):
    arguments = command(photos, tmp_path, "ended", "--data.workers=2", "--trainer.max_epochs=1000")
    process = subprocess.Popen(
        [sys.executable, "-m", "ssl_vision", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    last = tmp_path / "ended" / "checkpoints" / "last.ckpt"
    while process.poll() is None and not last.exists():
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, error
    assert "saved; continue with" in error


def test_concurrent_writers_leave_one_complete_index(tmp_path):
    file = tmp_path / "place" / "x.index"

    def write(number):
        store_arrays(file, {"numbers": np.full(10**5, number)})
        return load_arrays(file)

    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(write, range(24)))
    complete = [arrays["numbers"] for arrays in [*loaded, load_arrays(file)] if arrays is not None]
    assert len(complete) > 0
    assert all(len(set(numbers)) == 1 for numbers in complete)
    assert list(file.parent.iterdir()) == [file]
