import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

from ssl_vision.data import ImageFolder
from ssl_vision.data.loading.decoding import decode_square, grey_values, open_image, square
from ssl_vision.data.loading.file_listing import list_images
from ssl_vision.errors import InputError


def save(path, shade=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), (shade, 0, 255 - shade)).save(path)


def folder(root, **options):
    return ImageFolder(root=root, **{"image_size": 8} | options)


@pytest.fixture
def labelled(tmp_path):
    for number, name in enumerate(("cat/2.png", "cat/1.jpg", "ant/deep/x.PNG", "loose.png")):
        save(tmp_path / "train" / name, shade=50 * number)
    save(tmp_path / "test" / "ant" / "t.png")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_class_of_image_is_its_first_subfolder(labelled):
    data = folder(labelled)
    train, test = data.split("train"), data.split("test")
    assert train.classes == test.classes == ("ant", "cat")
    assert train.labels.tolist() == [0, 1, 1, -1]  # ant/deep/x.PNG, cat/1.jpg, cat/2.png, loose.png
    assert train.images[[0, 2, 3], 0, 4, 4].tolist() == [100, 0, 150]
    assert test.labels.tolist() == [0]
    assert data.split("pretrain") is train


def test_path_of_split_may_begin_with_home_directory(labelled, tmp_path, monkeypatch):
    # config.yaml stores paths below the home directory in this form.
    monkeypatch.setenv("HOME", str(labelled))
    save(tmp_path / "elsewhere" / "1.png")
    assert len(folder(tmp_path / "elsewhere", train="~/test").split("train")) == 1
    assert folder(tmp_path / "elsewhere", test="~/test").folder_of("test") == labelled / "test"


def test_root_without_train_folder_is_train_split_except_test_images(tmp_path):
    for name in ("b/1.png", "a/1.png", "test/a/1.png"):
        save(tmp_path / name)
    train = folder(tmp_path).split("train")
    assert train.classes == ("a", "b")
    assert train.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "options", "count"),
    [
        (["train", "a"], {}, 2),
        (["train", "test", "a", "b"], {}, 4),
        (["train", "x", "a"], {"val_folder": "x"}, 2),
        (["train", "test", "validation"], {}, None),
        (["train", "a"], {"train": "."}, None),
        (["train", "a"], {"train": "a"}, None),
    ],
)  # fmt: skip
def test_images_beside_folder_taken_as_train_split_are_counted(tmp_path, recwarn, names, options, count):
    for name in names:
        for number in range(2):
            save(tmp_path / name / f"{number}.png")
    folder(tmp_path, **options).listing("train")
    message = f"{count} images beside {tmp_path / 'train'}, which is taken as the train split, are left out"
    assert [str(each.message).partition(";")[0] for each in recwarn] == ([] if count is None else [message])


def test_metadata_does_not_decide_about_an_image(tmp_path):
    Image.new("RGB", (12, 12)).save(tmp_path / "0.png", icc_profile=os.urandom(16) * 2**17)
    assert len(folder(tmp_path, strict=True).split("train")) == 1


def test_tiff_of_many_channels_is_said_to_need_another_data_set(tmp_path):
    pixels = bytes(8 * 8 * 13)
    tags = [
        (256, 8), (257, 8), (258, 8), (259, 1), (262, 1), (273, 130), (277, 13), (278, 8), (279, len(pixels)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    header = b"II*\0" + struct.pack("<IH", 8, len(tags))
    (tmp_path / "0.tif").write_bytes((header + entries + bytes(4)).ljust(130, b"\0") + pixels)
    with pytest.raises(
        InputError, match=r"a TIFF file of a data type or number of channels that --data Datas"
    ):
        folder(tmp_path).split("train")


def test_one_class_is_warned_about_before_training(tmp_path):
    for name in ("flowers/rose/1.png", "flowers/tulip/2.png"):
        save(tmp_path / name)
    with pytest.warns(UserWarning, match="all labelled train images are of one class, flowers"):
        folder(tmp_path, val_share=0.5).setup("fit")


def test_flat_images_have_no_label(tmp_path):
    for number in range(20):
        save(tmp_path / f"{number:02}.png", shade=number)
    data = folder(tmp_path, batch_size=4)
    images = data.split("pretrain")
    assert images.images[:, 0, 0, 0].tolist() == list(range(20))
    assert not images.labelled.any()
    assert data.num_classes == 0
    assert [len(loader.data) for loader in data.val_dataloader()] == [2]


def test_images_are_resized_cropped_and_made_rgb(tmp_path):
    pixels = torch.arange(40).view(1, 40).repeat(20, 1) * 6
    image = Image.fromarray(pixels.to(torch.uint8).numpy())
    image.save(tmp_path / "wide.png")
    stored = folder(tmp_path, image_size=10).split("train").images[0]
    expected = center_crop(resize(pil_to_tensor(image), [10], antialias=True), [10])
    assert stored.shape == (3, 10, 10)
    assert (stored.int() - expected.int()).abs().max() <= 1


def test_photos_are_turned_upright(tmp_path):
    image = Image.new("RGB", (10, 10))
    image.paste((255, 255, 255), (0, 0, 10, 5))  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "x.png", exif=exif)
    stored = folder(tmp_path, image_size=10).split("train").images[0]
    assert stored[:, :4].max() == 0
    assert stored[:, 6:].min() == 255


def centre(path):
    """Return the stored centre pixel of the only image in a folder."""
    return folder(path, image_size=8, strict=True).split("train").images[0, :, 4, 4].tolist()


def red(mode, size=(12, 12)):
    """Return an image of the colour closest to (200, 0, 0) that the mode can represent."""
    return Image.new("RGB", size, (200, 0, 0)).convert(mode)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "image", "options", "expected"),
    [
        ("rgba.png", red("RGBA"), {}, [200, 0, 0]),
        ("palette.png", red("P"), {}, [204, 0, 0]),  # the closest colour of the web palette
        ("transparent.png", red("P"), {"transparency": bytes(256)}, [204, 0, 0]),
        ("cmyk.jpg", red("CMYK"), {"quality": 100}, [200, 0, 0]),
        ("grey.png", red("L"), {}, [60, 60, 60]),
        ("bits.png", Image.new("1", (12, 12), 1), {}, [255, 255, 255]),
        ("one.png", red("RGB", (1, 1)), {}, [200, 0, 0]),
        ("line.png", red("RGB", (5000, 1)), {}, [200, 0, 0]),
        (
            "animated.gif",
            red("RGB"),
            {"save_all": True, "append_images": [Image.new("RGB", (12, 12))] * 3},
            [200, 0, 0],
        ),
        (
            "animated.webp",
            red("RGB"),
            {"save_all": True, "lossless": True, "append_images": [Image.new("RGB", (12, 12))]},
            [200, 0, 0],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_images_of_every_mode_and_format_become_rgb(name, image, options, expected, tmp_path):
    image.save(tmp_path / name, **options)
    assert centre(tmp_path) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
@pytest.mark.parametrize("value", [0, 255, 256, 0x1234, 0x8000, 0xFFFF])
def test_16_bit_images_keep_upper_eight_bits(kind, value, tmp_path):
    pixels = np.full((12, 12), value, dtype=np.uint16)
    if kind == "pgm":
        (tmp_path / "x.pgm").write_bytes(b"P5 12 12 65535\n" + pixels.astype(">u2").tobytes())
    else:
        Image.fromarray(pixels).save(tmp_path / f"x.{kind}")
    assert centre(tmp_path) == [value >> 8] * 3


def test_symbolic_links_are_followed_but_not_in_cycles(tmp_path):
    for name in ("root/a/1.png", "root/b/2.png", "elsewhere/3.png"):
        save(tmp_path / name)
    root = tmp_path / "root"
    links = {"a/up": "..", "a/self": ".", "a/other": "../b", "b/other": "../a", "c": "../elsewhere"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    train = folder(root, strict=True).split("train")
    names = ["a/1.png", "a/other/2.png", "b/2.png", "b/other/1.png", "c/3.png"]
    assert list(list_images(root).names) == names
    assert train.labels.tolist() == [0, 0, 1, 1, 2]


def test_empty_folders_are_no_classes_and_unicode_names_are_read(tmp_path):
    for name in ("ünï/ä b.png", "图/图.png", "图/ё.png"):
        save(tmp_path / name)
    (tmp_path / "empty").mkdir()
    train = folder(tmp_path, strict=True).split("train")
    assert train.classes == ("ünï", "图")
    assert train.labels.tolist() == [0, 1, 1]


def test_tilde_in_root_and_cache_dir_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path / "images" / "a" / "1.png")
    assert len(folder("~/images", cache="always", cache_dir="~/fast").split("train")) == 1
    assert list((tmp_path / "fast").rglob("*.uint8"))


def test_corrupt_files_raise_if_strict_and_are_skipped_otherwise(labelled):
    for name in ("bad1.png", "bad2.jpg"):
        (labelled / "train" / "ant" / name).write_bytes(b"\x89PNG not an image")
    with pytest.raises(InputError, match=r"bad1\.png cannot be decoded .* set strict false") as caught:
        folder(labelled, strict=True).split("train")
    assert "\n" not in str(caught.value)
    data = folder(labelled)
    with pytest.warns(UserWarning, match=r"skipped 2 of 6 images.*bad1\.png, .*bad2\.jpg$") as warned:
        train = data.split("train")
    assert len(warned) == 1
    assert data.skipped == ("train/ant/bad1.png", "train/ant/bad2.jpg")
    assert train.labels.tolist() == [0, 1, 1, -1]
    assert train.images[[0, 2, 3], 0, 4, 4].tolist() == [100, 0, 150]


def test_invalid_folders_raise_error_naming_them(labelled, tmp_path):
    (labelled / "empty").mkdir()
    save(labelled / "other" / "dog" / "1.png")
    cases = [
        (
            folder(tmp_path / "nowhere"),
            "train",
            "no folder .*nowhere: give the directory of the images with --data.root$",
        ),
        (folder(labelled, train="empty"), "train", "no images in .*empty: looked for .*png"),
        (folder(labelled, train="trian"), "train", "no folder .*trian for the train split"),
        (folder(labelled, test="tset"), "test", "no folder .*tset for the test split"),
        (folder(labelled, test="other"), "test", "dog is a class that the train split does not have"),
    ]
    for data, split, message in cases:
        with pytest.raises(InputError, match=message):
            data.split(split)


def test_zero_image_size_raises_input_error(tmp_path):
    with pytest.raises(InputError, match="image_size must be at least 1 and at most 4096, got 0"):
        folder(tmp_path, image_size=0)


def test_oversized_file_is_skipped_with_warning(labelled):
    huge = labelled / "train" / "cat" / "huge.png"
    huge.touch()
    os.truncate(huge, 2**40)
    data = folder(labelled)
    with pytest.warns(UserWarning, match=r"skipped 1 of 5 images that cannot be decoded: .*huge\.png"):
        assert len(data.split("train")) == 4
    assert "train/cat/huge.png" not in data.contents


RAMP = np.arange(16).reshape(4, 4)


def tiff(values, photometric):
    """Return a grey TIFF file with a tag that Pillow does not write."""
    (height, width), data = values.shape, values.tobytes()
    tags = [
        (256, width), (257, height), (258, 8 * values.itemsize), (259, 1), (262, photometric),
        (273, 8 + 2 + 10 * 12 + 4), (277, 1), (278, height), (279, len(data)),
        (339, {"u": 1, "i": 2, "f": 3}[values.dtype.kind]),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + b"\0\0\0\0" + data


def png(values, color_type):
    """Return a PNG file of 16 bits per channel."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, color_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def pgm(values, maxval, *, plain=False):
    header = f"P{2 if plain else 5} {values.shape[1]} {values.shape[0]} {maxval}\n".encode()
    return header + (" ".join(map(str, values.flat)).encode() if plain else values.astype(">u2").tobytes())


def transparent(values):
    return np.stack([values, np.full_like(values, 65535)], axis=2)


SIXTEEN = (RAMP * 4369).astype("<u2")
TWELVE = (RAMP * 273).astype("<u2")
FLOATS = (RAMP / 15).astype("<f4")
DEEP = {  # a file, its stored values, the largest integer that it can contain, and True if 0 is white
    "png of 16 bits": (png(SIXTEEN, 0), SIXTEEN, 65535, False),
    "png of 16 bits with 12": (png(TWELVE, 0), TWELVE, 65535, False),
    "png of 16 bits with alpha": (png(transparent(SIXTEEN), 4), SIXTEEN, 65535, False),
    "png of 16 bits with 12 and alpha": (png(transparent(TWELVE), 4), TWELVE, 65535, False),
    "tiff of 16 bits": (tiff(SIXTEEN, 1), SIXTEEN, 65535, False),
    "tiff of 16 bits, white is zero": (tiff(SIXTEEN, 0), SIXTEEN, 65535, True),
    "tiff of 16 bits with 12, white is zero": (tiff(TWELVE, 0), TWELVE, 65535, True),
    "tiff of 32 bits": (tiff(SIXTEEN.astype("<i4"), 1), SIXTEEN, 65535, False),
    "tiff of floats": (tiff(FLOATS, 1), FLOATS, 0, False),
    "pgm of 16 bits": (pgm(SIXTEEN, 65535), SIXTEEN, 65535, False),
    "pgm of 12 bits": (pgm(TWELVE, 4095), TWELVE, 4095, False),
    "pgm of 12 bits in text": (pgm(TWELVE, 4095, plain=True), TWELVE, 4095, False),
    "pgm up to 1,000": (pgm(RAMP * 66, 1000), RAMP * 66, 1000, False),
}


@pytest.mark.parametrize("pixel_range", [None, (0, 65535), (0, 4095), (100, 900), (0, 1)], ids=str)
@pytest.mark.parametrize("file", DEEP)
@pytest.mark.filterwarnings("ignore:floating-point images")
def test_pixels_depend_on_stored_values_and_range(file, pixel_range):
    content, stored, highest, inverted = DEEP[file]
    low, high = pixel_range or (0, highest or 255)
    expected = np.clip((stored.astype(float) - low) / (high - low), 0, 1) * 255
    expected = 255 - expected if inverted else expected
    for pixels in (
        square(open_image(content), 4, pixel_range),
        decode_square(content, 4, pixel_range).numpy(),
    ):
        assert (pixels[0] == pixels[1]).all()
        assert (pixels[0] == pixels[2]).all()
        difference = abs(pixels[0] - expected)
        assert difference.max() <= (0.5 if pixel_range else 1)  # by default, the upper bits
    grey = grey_values(open_image(content))
    assert grey is not None
    values, largest, white = grey
    np.testing.assert_array_equal(values, stored)
    assert (min(largest, 65535), white) == (highest, inverted)


def test_black_floating_point_images_are_warned_about():
    content = tiff(FLOATS, 1)
    with pytest.warns(UserWarning, match="images of values up to 1 are black without pixel_range"):
        assert square(open_image(content), 4).max() == 1


def test_class_named_like_a_split_is_named_in_a_warning(tmp_path):
    for name in ("cat", "dog", "test"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    with pytest.warns(UserWarning, match="that are splits, not classes: test$"):
        assert folder(tmp_path).listing("train").classes == ("cat", "dog")
