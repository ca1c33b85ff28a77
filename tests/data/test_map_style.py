import csv
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from settings import TINY

from ssl_vision.data import Dataset, Views
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.pretrained.backbones import load_encoder


def dataset(items, test=None, **options):
    return Dataset(dataset=lambda: items, test_dataset=test and (lambda: test), **options)


def grey(value, size=(12, 12)):
    return Image.new("L", size, value)


def test_images_of_every_accepted_type_are_read_alike():
    pixels = torch.arange(3 * 8 * 8, dtype=torch.uint8).view(3, 8, 8)
    array = pixels.permute(1, 2, 0).numpy()
    images = dataset([(pixels, 0), (array, 1), (Image.fromarray(array), None)]).split("train")
    assert images.shape == (3, 8, 8)
    assert all(torch.equal(image, pixels) for image in images.images)
    assert images.labels.tolist() == [0, 1, -1]


def test_values_after_the_label_are_ignored():
    images = dataset([(grey(1), 1, "a.jpg"), (grey(2), 0, "b.jpg", 5)]).split("train")
    assert images.labels.tolist() == [1, 0]


def test_images_without_labels_are_read():
    images = dataset([grey(1), np.full((12, 12), 2, np.uint8)]).split("train")
    assert images.images[:, :, 0, 0].tolist() == [[1] * 3, [2] * 3]
    assert images.labels.tolist() == [-1, -1]
    assert images.classes == ()


@pytest.mark.parametrize(
    ("sizes", "side"), [([(12, 12)] * 2, 12), ([(12, 12), (12, 14)], 96), ([(200, 200)] * 2, 96)]
)
def test_only_small_square_images_of_equal_size_keep_their_size(sizes, side):
    items = [(grey(5, size), 0) for size in sizes]
    assert dataset(items).split("train").shape == (3, side, side)
    assert dataset(items, image_size=7).split("train").shape == (3, 7, 7)


def test_images_of_other_sizes_are_stored_as_large_as_the_views():
    views = Views(size=128, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert dataset([(grey(5, (200, 150)), 0)], views=views).split("train").shape == (3, 128, 128)
    assert dataset([(grey(5), 0)], views=views).split("train").shape == (3, 12, 12)


def test_splits_come_from_the_given_datasets():
    data = dataset([(grey(1), 1), (grey(2), 0)], test=[(grey(3), 1)])
    assert data.split("test").labels.tolist() == [1]
    assert data.split("test").classes == ("0", "1")
    assert data.eval_split == "test"
    with pytest.raises(InputError, match=r"no val split; set its data set with --data.val_dataset"):
        data.check("val")


def test_test_split_with_other_classes_raises_input_error():
    data = dataset([(grey(1), 0)], test=[(grey(3), 1)])
    with pytest.raises(InputError, match="the classes of list's test split are not those of train"):
        data.split("test")


def test_split_without_a_class_of_train_raises_input_error():
    """Its labels would shift, as in a torchvision ImageFolder that lacks the first folder."""

    class Named(list):
        def __init__(self, classes):
            super().__init__((grey(label), label) for label in range(len(classes)))
            self.classes = classes

    with pytest.raises(InputError, match="the classes of Named's test split are not those of train"):
        dataset(Named(["ant", "bee", "cat"]), test=Named(["bee", "cat"])).split("test")
    test = dataset(Named(["ant", "bee", "cat"]), test=Named(["ant", "bee"])).split("test")
    assert test.classes == ("ant", "bee", "cat")


def test_names_of_classes_that_labels_exceed_are_not_compared():
    class Named(list):
        classes = ("cat", "dog")

    items = Named([(grey(1), 1), (grey(2), 2), (grey(3), 1)])
    data = dataset(items, test=items)
    with pytest.warns(UserWarning, match="Named states 2 class names, but has the label 2"):
        assert data.split("train").classes == ("0", "1", "2")
    assert data.split("test").labels.tolist() == [1, 2, 1]


@pytest.mark.parametrize("label", [0.5, math.inf, math.nan, np.float32(1.2)])
def test_label_that_is_not_an_integer_raises_input_error(label):
    with pytest.raises(InputError, match=r"list/train/1 has the label .*; labels must be integers"):
        dataset([(grey(1), 1.0), (grey(2), label)]).split("train")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "the train split of list has no images"),
        ([(torch.rand(3, 8, 8), 0)], "list/train/0 is float32: return PIL images or uint8 tensors"),
        ([("x.png", 0)], "list/train/0 is str, not a PIL image"),
        ([(grey(1), "cat")], "list/train/0 has the label 'cat'; labels must be integers"),
    ],
)
def test_invalid_items_raise_input_error(items, message):
    with pytest.raises(InputError, match=message):
        dataset(items).split("train")


def test_an_error_in_every_item_is_reported_with_its_reason():
    class Faulty(list):
        def __getitem__(self, index):
            return {"image": grey(1)}["img"], 0

    with pytest.raises(InputError, match=r"none of the 4 .*, for example Faulty/train/0 \(KeyError: 'img'\)"):
        dataset(Faulty(range(4))).split("train")


def test_cache_is_rewritten_when_images_change(tmp_path):
    options = {"cache": "always", "cache_dir": tmp_path}
    items = [(grey(value), value % 2) for value in range(5)]
    for _ in range(2):
        images = dataset(items, **options).split("train")
        assert images.file is not None
        assert images.images[:, 0, 0, 0].tolist() == list(range(5))
        assert images.labels.tolist() == [0, 1, 0, 1, 0]
    items[2] = (grey(99), 1)
    images = dataset(items, **options).split("train")
    assert images.images[2].unique().tolist() == [99]
    assert images.labels.tolist() == [0, 1, 1, 1, 0]
    assert len(list(tmp_path.glob("**/*.uint8"))) == 1


def views_of(channels):
    return Views(size=8, mean=(0.5,) * channels, std=(0.25,) * channels, saturation=0, hue=0, grayscale=0)


def test_one_channel_of_16_bits_becomes_three_scaled_channels():
    values = torch.arange(64).view(1, 8, 8) * 100
    images = dataset([values, values], views=views_of(3), pixel_range=(0, 6300)).split("train").images
    expected = (values.double() * 255 / 6300).round().expand(3, -1, -1)
    assert (images[0] - expected).abs().max() <= 1


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
def test_images_of_any_number_of_channels_are_scaled_to_8_bits(channels):
    values = torch.randint(10_000, (channels, 8, 8), generator=torch.Generator().manual_seed(0))
    options = {"views": views_of(channels), "pixel_range": (0, 10_000)}
    expected = (values.double() * 255 / 10_000).round().to(torch.uint8)
    for item in (values.int(), values.float(), values.permute(1, 2, 0).numpy().astype(np.uint16)):
        images = dataset([(item, 0), (item, 1)], **options).split("train")
        assert images.shape == (channels, 8, 8)
        assert (images.images[1].int() - expected.int()).abs().max() <= 1  # resizing uses float32
    wide = torch.zeros(channels, 8, 16, dtype=torch.uint8)
    wide[:, :, 4:12] = 200  # the part that centre cropping keeps
    data = dataset([wide, wide], views=views_of(channels), image_size=8, cache="never")
    assert data.split("train").images.unique().tolist() == [200]


def test_cache_preserves_channels(tmp_path):
    values = torch.arange(4 * 64, dtype=torch.uint8).view(4, 8, 8)
    data = dataset([values, values.flip(0)], views=views_of(4), cache="always", cache_dir=tmp_path)
    assert data.split("train").file is not None
    assert data.split("train").at(torch.tensor([1]))[0].equal(values.flip(0))


@pytest.mark.parametrize(
    ("item", "views", "message"),
    [
        (torch.zeros(4, 8, 8, dtype=torch.uint8), views_of(3), "0 has 4 channels, but views.mean has 3 numb"),
        (torch.zeros(4, 8, 8), views_of(4), r"0 is float32: .* --data.pixel_range \[LOW,HIGH\]"),
        (grey(1, (8, 8)), views_of(4), "0 has 3 channels, but views.mean has 4 numbers"),
    ],
)
def test_unsuitable_channels_or_dtype_raise_input_error(item, views, message):
    with pytest.raises(InputError, match=message):
        dataset([item, item], views=views).split("train")


BANDS = """
import torch
from pathlib import Path

class Bands:
    classes = ["low", "high"]

    def __len__(self):
        return 40

    def __getitem__(self, index):
        values = torch.randint(2000, (BANDS, 16, 16), generator=torch.Generator().manual_seed(index))
        values[:, ::2] += 6000 * (index % 2)
        return values.short(), index % 2
"""


@pytest.mark.parametrize("encoder", ["ResNet", pytest.param("Timm", marks=pytest.mark.long)])
def test_thirteen_bands_are_trained_evaluated_exported_and_loaded(encoder, tmp_path, monkeypatch, capsys):
    (tmp_path / "thirteen_bands.py").write_text(BANDS.replace("BANDS", "13"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny = [option for option in TINY if encoder == "ResNet" or "encoder" not in option]
    options = [
        "--data=Dataset", "--data.dataset=thirteen_bands.Bands", "--data.pixel_range=[0,8000]",
        f"--data.views.mean={[0.5] * 13}", f"--data.views.std={[0.25] * 13}", "--data.views.size=16",
        "--data.test_share=0.25", "--data.val_share=0.5", *tiny, "--data.batch_size=8", "--name=run",
    ]  # fmt: skip
    no_colour_changes = ["--data.views.saturation=0", "--data.views.hue=0", "--data.views.grayscale=0"]
    network = (
        ["--model.encoder=ResNet"]
        if encoder == "ResNet"
        else ["--model.encoder=Timm", "--model.encoder.name=resnet18"]
    )
    assert main(["fit", *options, *network]) == 2
    error = capsys.readouterr().err
    assert "saturation and views.hue and views.grayscale must be 0 for images with 13 channels" in error
    assert main(["fit", *options, *no_colour_changes, *network]) == 2
    assert capsys.readouterr().err.strip().endswith("has 3 channels: set --model.encoder.in_channels 13")
    assert main(["fit", *options, *no_colour_changes, *network, "--model.encoder.in_channels=13"]) == 0
    capsys.readouterr()
    with open("runs/run/metrics.csv", newline="") as file:
        losses = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert losses
    assert all(map(math.isfinite, losses))

    allow = ["--allow_class=thirteen_bands.Bands"]
    assert main(["evaluate", "runs/run", *allow, "--probe.epochs=1", "--report=false"]) == 0
    assert "Dataset: test split (10 images) against 30 labelled train images" in capsys.readouterr().out
    rows = json.loads((tmp_path / "runs/run/evaluation.json").read_text())
    assert {row["features"] for row in rows} == {"trained", "untrained", "pixels"}

    assert main(["export", "runs/run", "--format=safetensors", "--output=bands.safetensors", *allow]) == 0
    backbone = load_encoder("bands.safetensors")
    images = torch.rand(2, 13, 16, 16)
    torch.testing.assert_close(
        backbone(images), load_encoder("runs/run", allow_class=["thirteen_bands.Bands"])(images)
    )
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    capsys.readouterr()
    assert main(["embed", str(tmp_path), "--weights=bands.safetensors", "--output=features.npz"]) == 2
    assert "the network takes images with 13 channels, but image files have 3" in capsys.readouterr().err
    if encoder == "ResNet":
        assert main(["export", "runs/run", "--format=torchvision", *allow]) == 2
        assert (
            "for images with 3 channels, not for one of width 4 for images with 13 channels"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize("largest", [5_231_190, 10**11])
def test_ids_beyond_the_number_of_images_are_numbered_and_name_the_classes(largest):
    labels = {"": (7, largest, None, 7), "test_": (largest, largest, largest), "val_": (8,)}
    sets = {
        f"{name}dataset": partial(list, [(grey(1), label) for label in each]) for name, each in labels.items()
    }
    data = Dataset(**sets, image_size=8, cache="never")
    train, test = data.split("train"), data.split("test")
    assert train.classes == test.classes == ("7", str(largest))
    assert train.labels.tolist() == [0, 1, -1, 0]
    assert test.labels.tolist() == [1, 1, 1]
    with pytest.raises(InputError, match="val split are not those of train"):
        data.split("val")


def test_integer_labels_below_the_number_of_images_stay_positions():
    train = dataset([(grey(1), 3), (grey(1), 1), (grey(1), None), (grey(1), 1)]).split("train")
    assert (train.classes, train.labels.tolist()) == (("0", "1", "2", "3"), [3, 1, -1, 1])
