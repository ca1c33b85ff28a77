import io
import socket

import numpy as np
import pytest
from PIL import Image

from ssl_vision.data import HuggingFace
from ssl_vision.errors import InputError

datasets = pytest.importorskip("datasets")
huggingface_hub = pytest.importorskip("huggingface_hub")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def png(value):
    file = io.BytesIO()
    Image.new("RGB", (14, 14), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def parquet(path, labels, **columns):
    images = [{"bytes": png(value), "path": None} for value in range(len(labels))]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"photo": images, "label": labels, **columns}), path)
    return str(path)


def values(images):
    return images.images[:, 0, 0, 0].tolist()


def test_parquet_file_has_class_names_and_only_a_train_split(tmp_path):
    data = HuggingFace(path=parquet(tmp_path / "x.parquet", ["dog", None, "cat"]))
    images = data.split("train")
    assert (images.classes, images.labels.tolist(), values(images)) == (("cat", "dog"), [1, -1, 0], [0, 1, 2])
    assert not data.has("val")
    with pytest.raises(InputError, match=r"has no test split, only train; choose one with --data.test_split"):
        data.check("test")


@pytest.mark.parametrize("name", ["test", "validation"])
def test_single_split_of_any_name_is_only_the_train_split(tmp_path, name):
    parquet(tmp_path / "set" / f"{name}-00000-of-00001.parquet", [0, 1])
    data = HuggingFace(path=str(tmp_path / "set"))
    assert len(data.split("train")) == 2
    assert not data.has("test")
    assert not data.has("val")


def test_splits_of_parquet_folder_follow_file_names(tmp_path):
    for split, labels in (("train", [2, 0, 1]), ("validation", [1]), ("test", [2, 2])):
        parquet(tmp_path / "set" / f"{split}-00000-of-00001.parquet", labels)
    data = HuggingFace(path=str(tmp_path / "set"))
    assert data.split("train").labels.tolist() == [2, 0, 1]
    assert data.split("val").labels.tolist() == [1]
    assert data.split("test").labels.tolist() == [2, 2]
    assert data.eval_split == "test"


def test_image_folder_classes_are_its_subfolder_names(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        for number in range(count):
            path = tmp_path / "set" / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(number))
    data = HuggingFace(path=str(tmp_path / "set"))
    images = data.split("train")
    assert (images.classes, sorted(values(images))) == (("a", "b"), [0, 1, 2])
    assert [value % 2 for value in values(images)] == images.labels.tolist()
    assert len(data.split("test")) == 2


def test_saved_dataset_uses_its_image_and_class_label_features(tmp_path):
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "kind": datasets.ClassLabel(names=["x", "y"]),
            "label": datasets.Value("int64"),
        }
    )
    pixels = [Image.fromarray(np.full((14, 14, 3), value, np.uint8)) for value in (5, 6)]
    rows = datasets.Dataset.from_dict({"image": pixels, "kind": [1, 0], "label": [7, 7]}, features=features)
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "saved"))
    images = HuggingFace(path=str(tmp_path / "saved")).split("train")
    assert (images.classes, images.labels.tolist(), values(images)) == (("x", "y"), [1, 0], [5, 6])


def test_damaged_images_are_skipped(tmp_path):
    images = [{"bytes": png(3), "path": None}, {"bytes": b"no image", "path": None}]
    pq.write_table(pa.table({"image": images}), tmp_path / "x.parquet")
    data = HuggingFace(path=str(tmp_path / "x.parquet"))
    with pytest.warns(UserWarning, match="skipped 1 of 2 images"):
        assert values(data.split("train")) == [3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_column": "kind"}, "has no column kind, only photo, label, other"),
        ({"train_split": "all"}, "has no split all, only train"),
        ({}, "has several columns of images among photo, other; choose one with --data.image_column"),
    ],
)
def test_unknown_or_ambiguous_columns_and_splits_raise_input_error(tmp_path, options, message):
    path = parquet(tmp_path / "x.parquet", [0, 1], other=[{"bytes": png(9), "path": None}] * 2)
    with pytest.raises(InputError, match=message):
        HuggingFace(path=path, **options).split("train")
    chosen = HuggingFace(path=path, image_column="other", label_column="label").split("train")
    assert (values(chosen), chosen.labels.tolist()) == ([9, 9], [0, 1])


def test_dataset_name_is_not_downloaded_unless_requested():
    with pytest.raises(
        InputError, match=r"nobody/nothing cannot be read .*; download it with --data.download true"
    ):
        HuggingFace(path="nobody/nothing").split("train")


def test_local_data_is_read_without_the_network(tmp_path, monkeypatch):
    hosts = []

    def refuse(host, *args, **options):
        hosts.append(host)
        raise OSError(f"looked up {host}")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    path = parquet(tmp_path / "set" / "train.parquet", [0, 1])
    for local in (path, str(tmp_path / "set")):
        assert len(HuggingFace(path=local, cache="never").split("train")) == 2
    assert hosts == []
    assert not datasets.config.HF_HUB_OFFLINE
