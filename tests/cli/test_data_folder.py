from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_vision.data import ImageFolder
from ssl_vision.main import main


@pytest.fixture
def folder(tmp_path):
    """Folder of images in two classes; one image is damaged, one is in both train and test."""
    generator = np.random.default_rng(0)
    sizes = {
        "train/a/1.png": (8, 6),
        "train/a/2.png": (12, 10),
        "train/b/3.png": (9, 9),
        "test/b/4.png": (7, 7),
    }
    for name, size in sizes.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(path)
    (tmp_path / "train" / "b" / "damaged.jpg").write_bytes(b"no image")
    (tmp_path / "test" / "b" / "copy.png").write_bytes((tmp_path / "train" / "b" / "3.png").read_bytes())
    return tmp_path


def test_missing_folder_message_names_no_option_of_other_commands(capsys):
    assert main(["data", "check", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "ssl-vision data: no folder nowhere: give the directory of the images\n"
    )


def words_by_line(text):
    return [line.split() for line in text.splitlines()]


def test_check_counts_by_class_and_split(folder, capsys):
    assert main(["data", "check", str(folder)]) == 0
    text = capsys.readouterr().out
    assert words_by_line(text)[:4] == [
        ["split", "class", "images", "damaged", "copies", "smallest", "largest"],
        ["train", "a", "2", "0", "0", "8", "x", "6", "12", "x", "10"],
        ["train", "b", "2", "1", "0", "9", "x", "9", "9", "x", "9"],
        ["test", "b", "2", "0", "1", "7", "x", "7", "9", "x", "9"],
    ]
    assert "cannot be decoded: 1\n  " + str(folder / "train/b/damaged.jpg") in text
    assert f"  {folder / 'train/b/3.png'} = {folder / 'test/b/copy.png'}" in text
    assert "1 of them in several splits" in text
    assert "pixel_range" not in text


def write_16_bit_image(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype=np.uint16)).save(path)


@pytest.mark.parametrize("kind", ["png", "tif"])
def test_twelve_bit_images_are_found_and_scaled(tmp_path, capsys, kind):
    values = [[0, 1024], [2048, 4095]]
    write_16_bit_image(tmp_path / "a" / f"1.{kind}", values)
    assert main(["data", "check", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert (
        "1 images have more than 8 bits, with values from 0 to 4095\n(16 bits, by default the upper 8);"
        in text
    )
    options = {"root": tmp_path, "image_size": 2}
    unscaled = ImageFolder(**options).split("train").images[0, 0]
    assert unscaled.tolist() == [[0, 4], [8, 15]]
    scaled = ImageFolder(**options, pixel_range=(0, 4095)).split("train").images[0]
    assert scaled.tolist() == [[[0, 64], [128, 255]]] * 3


def test_floating_point_images_are_scaled(tmp_path, capsys):
    Image.fromarray(np.array([[-1, 0], [0.5, 1]], np.float32)).save(tmp_path / "x.tiff")
    (tmp_path / "y.pgm").write_bytes(b"P5 1 1 4095\n" + bytes([15, 160]))
    assert main(["data", "check", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert (
        "values from -1 to 4000\n(floating-point, by default clipped to 0 to 255, 12 bits, by default" in text
    )
    (tmp_path / "y.pgm").unlink()
    images = ImageFolder(root=tmp_path, image_size=2, pixel_range=(-1, 1)).split("train").images
    assert images[0, 0].tolist() == [[0, 128], [191, 255]]


def test_image_cache_is_specific_to_pixel_range(tmp_path):
    write_16_bit_image(tmp_path / "a" / "1.png", [[0, 1000], [2000, 4000]])
    options = {"root": tmp_path, "image_size": 2, "cache": "always"}
    first, second = (
        ImageFolder(**options, pixel_range=pair).split("train").images for pair in ((0, 4000), (0, 8000))
    )
    assert (int(first.max()), int(second.max())) == (255, 128)


def test_pixel_range_does_not_change_eight_bit_images(folder):
    plain, ranged = (
        ImageFolder(root=folder / "train" / "a", image_size=8, pixel_range=pair).split("train").images
        for pair in (None, (0, 4095))
    )
    assert torch.equal(plain, ranged)


def test_data_stats_match_cropped_images_of_train_split(folder, capsys):
    assert main(["data", "stats", str(folder), "--image_size=16"]) == 0
    with pytest.warns(UserWarning, match="skipped 1"):
        pixels = ImageFolder(root=folder, image_size=16).split("train").images.double() / 255
    words = capsys.readouterr().out.split()
    assert words[::2] == ["--data.views.mean", "--data.views.std"]
    mean, std = ([float(value) for value in word.strip("[]").split(",")] for word in words[1::2])
    assert mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist(), abs=1e-4)
    assert std == pytest.approx(pixels.transpose(0, 1).flatten(1).std(dim=1, correction=0).tolist(), abs=1e-4)


@pytest.mark.parametrize("pair", ["[5,5]", "[7,3]"])
def test_an_empty_range_is_refused(folder, capsys, pair):
    assert main(["data", "stats", str(folder), f"--pixel_range={pair}"]) == 2
    assert "pixel_range must be (low, high) with low < high" in capsys.readouterr().err


def test_near_duplicates_are_found_only_on_request(tmp_path, capsys):
    generator = np.random.default_rng(0)
    planted = set()
    for number in range(30):
        small = Image.fromarray(generator.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        image = small.resize((32, 32), Image.Resampling.BICUBIC)
        copies = {
            "jpg": lambda path, image=image: image.save(path, quality=60),
            "bright.png": lambda path, image=image: image.point(lambda value: 0.8 * value).save(path),
            "large.png": lambda path, image=image: image.resize((65, 65)).save(path),
        }
        (tmp_path / "train" / "a").mkdir(parents=True, exist_ok=True)
        image.save(original := tmp_path / "train" / "a" / f"{number}.png")
        if number < 3:
            for ending, save in copies.items():
                save(path := tmp_path / "train" / "a" / f"{number}.{ending}")
                planted.add((original, path))
    assert main(["data", "check", str(tmp_path)]) == 0
    assert "nearly the same" not in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path), "--near"]) == 0
    lines = capsys.readouterr().out.partition("look nearly the same")[2].splitlines()[1:]
    pairs = [{*line.split()[1::2]} for line in lines]
    names = {path.name.partition(".")[0] for pair in pairs for path in map(Path, pair)}
    assert names == {"0", "1", "2"}
    for original, path in planted:
        assert any(str(path) in pair for pair in pairs), (original, path)
