"""Tests of ``ssl_vision.evaluate`` with any module and any map-style data sets.

It must equal the command where both apply.
"""

import gc
import json
import weakref

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import ssl_vision
from ssl_vision.data import Digits, Views
from ssl_vision.data.datasets.evaluation_pairs import read_dataset
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.metrics import KNNAccuracy
from ssl_vision.pretrained.opened_run import open_run


class Pairs:
    """A data set of (image, label) that counts how often an item is read."""

    def __init__(self, images, labels, transform=lambda image: image):
        self.images, self.labels, self.transform, self.reads = images, labels, transform, 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        self.reads += 1
        return self.transform(self.images[row]), int(self.labels[row])


def pil(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def digits(split, transform=lambda image: image):
    images = Digits().split(split)
    return Pairs(images.images, images.labels, transform)


@pytest.mark.parametrize("transform", [lambda image: image, pil], ids=["uint8", "PIL"])
def test_evaluate_function_gives_rows_of_command(tiny_run, tmp_path, transform):
    protocol, output = tmp_path / "mine.yaml", tmp_path / "rows.json"
    protocol.write_text(
        "layers: [backbone, projector]\nmeasurements: [knn: {k: 5}, linear: {epochs: 2}, geometry: {}]"
    )
    names = [str(protocol), "solo"]
    options = [f"--protocol={name}" for name in names] + ["--cache=false", f"--output={output}"]
    assert main(["evaluate", str(tiny_run), *options]) == 0
    model = open_run(tiny_run).trained()
    result = ssl_vision.evaluate(
        model.train(), train=digits("train", transform), test=digits("test", transform),
        views=Digits().views, protocol=names, baselines=True,
    )  # fmt: skip
    assert model.training
    keys = ("features", "protocol", "layer", "metric", "k")
    of_function, of_command = (
        {tuple(row.get(key) for key in keys): row["value"] for row in rows}
        for rows in ([row.as_dict() for row in result.rows], json.loads(output.read_text()))
    )
    untrained = {key for key in of_command if key[0] == "untrained"}
    assert of_function == {key: value for key, value in of_command.items() if key not in untrained}
    assert ("pixels", "mine", "raw", "linear_top1", None) in of_function
    assert "trained backbone" in str(result)


def test_normalised_tensors_are_encoded_unchanged():
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=7).eval()
    images, labels = torch.randn(60, 3, 40, 24), torch.arange(60) % 3
    train, test = TensorDataset(images[:40], labels[:40]), TensorDataset(images[40:], labels[40:])
    result = ssl_vision.evaluate(network, train=train, test=test, protocol="solo")
    knn = KNNAccuracy(num_classes=3, k=20, temperature=0.07)
    with torch.no_grad():
        knn.update(network(images[:40]), labels[:40], "bank")
        knn.update(network(images[40:]), labels[40:], "query")
    assert result.value("knn_top1", k=20) == pytest.approx(float(knn.compute()))
    assert {row.layer for row in result.rows} == {"backbone"}
    assert {row.data for row in result.rows} == {"TensorDataset"}


def test_measurements_that_need_views_are_left_out_with_reason(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(
        "layers: [backbone, projector]\nmeasurements: [linear: {augmentation: crop, epochs: 1}, "
        "geometry: {}, finetune: {epochs: 1}, "
        "finetune: {epochs: 1, augmentation: none, batch_size: 10}, linear: {epochs: 1}]\n"
    )
    data = TensorDataset(torch.randn(30, 3, 8, 8), torch.arange(30) % 3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    before = encoder[1].weight.clone()
    result = ssl_vision.evaluate(encoder, train=data, test=data, protocol=str(tmp_path / "mine.yaml"))
    assert [row.metric for row in result.rows] == ["finetune_top1", "linear_top1"]
    assert torch.equal(encoder[1].weight, before)
    error = capsys.readouterr().err
    assert "mine: projector left out: an encoder has none" in error
    for kind in ("linear", "geometry", "finetune"):
        assert f"mine: {kind} of trained backbone is left out: " in error
    assert error.count("return PIL images or uint8 tensors, and set views") == 3


def test_encoder_of_one_size_that_is_not_square_is_evaluated():
    data = TensorDataset(torch.randn(30, 3, 8, 12), torch.arange(30) % 3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 12, 4))
    result = ssl_vision.evaluate(encoder, train=data, test=data, protocol="solo")
    assert len(result.rows) == len({row.metric for row in result.rows})


def test_k_above_the_number_of_labelled_images_is_stated_and_measured_once(capsys):
    labels = torch.where(torch.arange(30) < 10, torch.arange(30) % 3, -1)
    images = torch.randn(30, 3, 8, 8)
    train, test = TensorDataset(images, labels), TensorDataset(images, torch.arange(30) % 3)
    result = ssl_vision.evaluate(nn.Flatten(), train=train, test=test, protocol="dinov2")
    assert [row.conditions["k"] for row in result.rows if row.metric == "knn_top1"] == [10]
    assert "k = 10" in str(result)
    assert not any(f"k = {k}" in str(result) for k in (20, 100, 200))


def test_images_of_several_sizes_and_unseen_test_labels_are_evaluated():
    sizes = [(20, 30), (31, 17), (16, 16), (40, 12)]
    train = [(Image.new("L", size, 40 * row), row % 2) for row, size in enumerate(sizes)]
    test = [*train, (Image.new("RGBA", (18, 50), (9, 200, 9, 255)), 4)]
    views = Views(size=16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    result = ssl_vision.evaluate(nn.Flatten(), train=train, test=test, protocol="solo", views=views)
    assert 0 <= result.value("knn_top1") <= 0.8  # train does not have the class of the fifth image
    with pytest.raises(InputError, match=r"list\[1\] is torch.uint8 \(3, 17, 31\), list\[0\] torch.uint8"):
        read_dataset(train)


def test_images_are_rotated_by_their_orientation_as_in_training(tmp_path):
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 256, (10, 6, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees to be upright
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "rotated.png", exif=exif)
    pairs = [(upright, 0), (Image.open(tmp_path / "rotated.png"), 1)]
    first, second = read_dataset(pairs, size=6).at(torch.arange(2))
    assert torch.equal(first, second)


def test_large_data_sets_are_read_again_with_same_rows(monkeypatch):
    train, test = digits("train"), digits("test")
    train.labels, test.labels = train.labels[:200], test.labels[:100]
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    options = {"train": train, "test": test, "protocol": "solo", "views": Digits().views}
    in_memory = ssl_vision.evaluate(encoder, **options)
    assert 200 <= (first_reads := train.reads) < 210
    monkeypatch.setattr("ssl_vision.data.datasets.evaluation_pairs._IN_MEMORY", 0)
    read_again = ssl_vision.evaluate(encoder, **options)
    assert 400 <= train.reads - first_reads < 410
    assert [row.as_dict() for row in in_memory.rows] == [row.as_dict() for row in read_again.rows]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


BYTES = [(torch.zeros(3, 8, 8, dtype=torch.uint8), label) for label in (0, 1, 1)]
FLOATS = [(torch.zeros(3, 8, 8), label) for label in (0, 1, 1)]
VIEWS = Views(size=8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": Stream()}, "Stream has no length; a map-style data set is required"),
        ({"train": []}, "list has no images"),
        ({"train": [(FLOATS[0][0],)]}, r"list\[0\] must be a pair \(image, label\), got tuple"),
        ({"train": [FLOATS[0][0]]}, r"list\[0\] must be a pair \(image, label\), got Tensor"),
        ({"train": [(FLOATS[0][0], "cat")]}, r"list\[0\] has the label 'cat'; labels must be integers"),
        ({"train": [(FLOATS[0][0], -2)]}, r"list\[0\] has the label -2; labels must be -1 or more"),
        ({"train": [("a.png", 0)]}, r"list\[0\] is str, not a PIL image"),
        ({"train": [(torch.zeros(4, 8, 8), 0)]}, r"is float32 \(4, 8, 8\); tensors must have one or three"),
        ({"train": [(torch.zeros(3, 8, 8).long(), 0)]}, r"is int64 .*, and be uint8 or floating"),
        ({"train": [(image, None) for image, _ in FLOATS]}, "list has no labels in train or test: there is"),
        ({"train": [(image, 3) for image, _ in FLOATS]}, "train images of list have one class, 3: nothing"),
        ({"train": BYTES}, "train and test must both return uint8 images, or both normalised tensors"),
        ({"train": BYTES, "test": BYTES}, "views is required"),
        ({"views": VIEWS}, "views is given, but the data sets return tensors that are already normalised"),
        ({"encoder": nn.Identity()}, r"Identity must map images \(1, 3, 8, 8\) to features \(1, F\)"),
        ({"encoder": nn.Linear(3, 3)}, r"Linear cannot encode images \(1, 3, 8, 8\)"),
        ({"baselines": True}, "baselines=True requires data sets of PIL images or uint8 tensors, and views"),
        ({"protocol": "knm"}, "protocol knm: no such file or recipe"),
        ({"protocol": "online"}, "nothing of the trained network could be measured"),
    ],
)  # fmt: skip
def test_invalid_input_raises_one_line_input_error(given, message):
    options = {"encoder": nn.Flatten(), "train": FLOATS, "test": FLOATS} | given
    with pytest.raises(InputError, match=message) as caught:
        ssl_vision.evaluate(options.pop("encoder"), **options)
    assert "\n" not in str(caught.value)


def test_protocols_of_same_name_raise_input_error(tmp_path):
    paths = [tmp_path / name / "own.yaml" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("measurements: [{knn: {k: 1}}]")
    with pytest.raises(InputError, match=r"protocol: two of .* have one name"):
        ssl_vision.evaluate(nn.Flatten(), train=FLOATS, test=FLOATS, protocol=paths)


def test_value_requires_exactly_one_matching_row():
    result = ssl_vision.evaluate(nn.Flatten(), train=FLOATS, test=FLOATS, protocol=["solo", "dkobak"])
    assert result.value("knn_top1", protocol="solo") == result.value(
        "knn_top1", protocol="solo", layer="backbone"
    )
    with pytest.raises(InputError, match=r"3 rows have .*, metric knn_top1; the metrics are knn_top1"):
        result.value("knn_top1")
    with pytest.raises(InputError, match=r"0 rows have .*, metric knn_top5"):
        result.value("knn_top5")


def test_only_labelled_train_images_are_embedded_and_counted():
    class Counting(nn.Flatten):
        rows = 0

        def forward(self, images):
            Counting.rows += len(images)
            return super().forward(images)

    train, test = digits("train"), digits("test")
    labelled = torch.arange(len(train)) % 10 == 0
    few = Pairs(train.images[labelled], train.labels[labelled])
    train.labels = train.labels.where(labelled, -1)
    options = {"test": test, "protocol": "solo", "views": Digits().views}
    result, expected = (ssl_vision.evaluate(Counting(), train=each, **options) for each in (train, few))
    assert "test split (360 images) against 144 labelled train images" in str(result)
    assert [row.value for row in result.rows] == [row.value for row in expected.rows]
    assert Counting.rows <= 2 * (360 + 144) + 8


def test_ids_as_labels_give_the_accuracy_of_positions():
    generator = torch.Generator().manual_seed(0)
    images, classes = torch.rand(80, 3, 8, 8, generator=generator), torch.arange(80) % 4

    def result(labels):
        pairs = list(zip(images, labels.tolist(), strict=True))
        return ssl_vision.evaluate(nn.Flatten(), train=pairs[:60], test=pairs[60:], protocol="solo")

    ids = torch.tensor([7, 40_000_000, 80_000_001, 10**11])[classes]
    assert result(ids).value("knn_top1") == result(classes).value("knn_top1")


def test_values_after_the_label_are_ignored():
    pairs = [(image, row % 3) for row, image in enumerate(torch.rand(40, 3, 8, 8))]
    triples = [(*pair, f"{row}.jpg") for row, pair in enumerate(pairs)]
    results = [
        ssl_vision.evaluate(nn.Flatten(), train=each[:30], test=each[30:], protocol="solo").value("knn_top1")
        for each in (pairs, triples)
    ]
    assert results[0] == results[1]


def test_evaluate_keeps_no_network():
    encoder = nn.Flatten()
    data = [(torch.rand(3, 8, 8), row % 3) for row in range(30)]
    ssl_vision.evaluate(encoder, train=data, test=data, protocol="solo")
    network = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert network() is None
