import bz2
import inspect
import json
import struct

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from torchvision import datasets

from ssl_vision.data import CIFAR10, Torchvision
from ssl_vision.data.datasets.torchvision_data import _NOT_DOWNLOADED, DATASETS
from ssl_vision.errors import InputError

TRAIN, VAL, TEST = 10, 100, 200
"""Grey value of the first image of each split; the next ones follow."""


def save(path, value, size=(20, 16)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path, "PNG")


def squares(start, count, side):
    """Return grey squares, uint8 (count, side, side), each one value brighter than the last."""
    return np.arange(start, start + count, dtype=np.uint8)[:, None, None] * np.ones((side, side), np.uint8)


def idx(folder, start, labels, names):
    folder.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">4i", 0x803, len(labels), 28, 28)
    (folder / names[0]).write_bytes(header + squares(start, len(labels), 28).tobytes())
    (folder / names[1]).write_bytes(struct.pack(">2i", 0x801, len(labels)) + bytes(labels))


def mnist_like(name, prefix=""):
    def make(root, monkeypatch):
        raw = root / name / "raw"
        parts = ("train", "t10k") if not prefix else (f"{prefix}-train", f"{prefix}-test")
        for part, start, labels in zip(parts, (TRAIN, TEST), ([3, 0, 9], [1, 2]), strict=True):
            idx(raw, start, labels, (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"))
        return {"train": [3, 0, 9], "test": [1, 2]}

    return make


def svhn(root, monkeypatch):
    monkeypatch.setattr(datasets.SVHN, "_check_integrity", lambda self: True)
    for split, start, labels in (("train", TRAIN, [10, 2, 9]), ("test", TEST, [2, 10])):
        pixels = squares(start, len(labels), 32).transpose(1, 2, 0)[:, :, None].repeat(3, axis=2)
        scipy.io.savemat(root / f"{split}_32x32.mat", {"X": pixels, "y": np.array(labels)[:, None]})
    return {"train": [0, 2, 9], "test": [2, 0]}


def flowers(root, monkeypatch):
    monkeypatch.setattr(datasets.Flowers102, "_check_integrity", lambda self: True)
    folder = root / "flowers-102"
    for number, value in enumerate((TRAIN, TRAIN + 1, VAL, VAL + 1, TEST, TEST + 1), start=1):
        save(folder / "jpg" / f"image_{number:05d}.jpg", value)
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": np.array([77, 1, 2, 3, 102, 1])})
    sets = {"trnid": np.array([1, 2]), "valid": np.array([3, 4]), "tstid": np.array([5, 6])}
    scipy.io.savemat(folder / "setid.mat", sets)
    return {"train": [76, 0], "val": [1, 2], "test": [101, 0]}


def eurosat(root, monkeypatch):
    for value, name in ((TRAIN, "Forest"), (TRAIN + 1, "Highway"), (TRAIN + 2, "Highway")):
        save(root / "eurosat" / "2750" / name / f"{value}.jpg", value)
    return {"train": [0, 1, 1]}


def food(root, monkeypatch):
    for split, start in (("train", TRAIN), ("test", TEST)):
        names = {"apple_pie": ["apple_pie/1"], "sushi": ["sushi/2", "sushi/3"]}
        names = {label: [f"{name}{split}" for name in files] for label, files in names.items()}
        folder = root / "food-101"
        for value, name in enumerate([*names["apple_pie"], *names["sushi"]], start=start):
            save(folder / "images" / f"{name}.jpg", value)
        (folder / "meta").mkdir(exist_ok=True)
        (folder / "meta" / f"{split}.json").write_text(json.dumps(names))
    return {"train": [0, 1, 1], "test": [0, 1, 1]}


def imagenette(root, monkeypatch):
    for split, start in (("train", TRAIN), ("val", VAL)):
        for value, name in enumerate(("n01440764", "n02102040"), start=start):
            save(root / "imagenette2" / split / name / f"{value}.JPEG", value)
    return {"train": [0, 1], "val": [0, 1]}


def dtd(root, monkeypatch):
    folder = root / "dtd" / "dtd"
    (folder / "labels").mkdir(parents=True)
    for split, start in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        names = [f"banded/{split}.jpg", f"dotted/{split}.jpg"]
        for value, name in enumerate(names, start=start):
            save(folder / "images" / name, value)
        (folder / "labels" / f"{split}1.txt").write_text("\n".join(names))
    return {"train": [0, 1], "val": [0, 1], "test": [0, 1]}


def gtsrb(root, monkeypatch):
    folder = root / "gtsrb" / "GTSRB"
    for value in (TRAIN, TRAIN + 1):
        save(folder / "Training" / f"{value - TRAIN:05d}" / f"{value}.ppm", value)
    save(folder / "Final_Test" / "Images" / "0.ppm", TEST)
    (root / "gtsrb" / "GT-final_test.csv").write_text("Filename;ClassId\n0.ppm;1\n")
    return {"train": [0, 1], "test": [1]}


def usps(root, monkeypatch):
    for name, start, labels in (("usps.bz2", TRAIN, [3, 10]), ("usps.t.bz2", TEST, [10])):
        lines = [
            " ".join([str(label), *(f"{i}:{(value + 0.5) / 255 * 2 - 1}" for i in range(256))])
            for value, label in enumerate(labels, start=start)
        ]
        (root / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    return {"train": [2, 9], "test": [9]}


def pets(root, monkeypatch):
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for split, start in (("trainval", TRAIN), ("test", TEST)):
        names = [f"Abyssinian_{start}", f"beagle_{start}"]
        for value, name in enumerate(names, start=start):
            save(folder / "images" / f"{name}.jpg", value)
        lines = [f"{name} {number} 1 1" for number, name in enumerate(names, start=1)]
        (folder / "annotations" / f"{split}.txt").write_text("\n".join(lines))
    return {"train": [0, 1], "test": [0, 1]}


def clevr(root, monkeypatch):
    folder = root / "clevr" / "CLEVR_v1.0"
    (folder / "scenes").mkdir(parents=True)
    for split, start in (("train", TRAIN), ("val", VAL)):
        scenes = []
        for number in range(2):
            save(folder / "images" / split / f"{number}.png", start + number)
            scenes.append({"image_filename": f"{number}.png", "objects": [0] * (3 + number)})
        (folder / "scenes" / f"CLEVR_{split}_scenes.json").write_text(json.dumps({"scenes": scenes}))
    return {"train": [3, 4], "val": [3, 4]}


def sun(root, monkeypatch):
    (root / "SUN397").mkdir()
    (root / "SUN397" / "ClassName.txt").write_text("/a/abbey\n/b/bar\n")
    for value, name in ((TRAIN + 1, "b/bar/sun_1.jpg"), (TRAIN, "a/abbey/sun_2.jpg")):
        save(root / "SUN397" / name, value)
    return {"train": [0, 1]}


def aircraft(root, monkeypatch):
    data = root / "fgvc-aircraft-2013b" / "data"
    data.mkdir(parents=True)
    (data / "variants.txt").write_text("707-320\nA380\n")
    for split, start in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        for value in (start, start + 1):
            save(data / "images" / f"{value}.jpg", value)
        (data / f"images_variant_{split}.txt").write_text(f"{start} A380\n{start + 1} 707-320\n")
    return {"train": [1, 0], "val": [1, 0], "test": [1, 0]}


FAKES = {
    "CLEVRClassification": clevr,
    "DTD": dtd,
    "EMNIST": mnist_like("EMNIST", "emnist-balanced"),
    "EuroSAT": eurosat,
    "FGVCAircraft": aircraft,
    "FashionMNIST": mnist_like("FashionMNIST"),
    "Flowers102": flowers,
    "Food101": food,
    "GTSRB": gtsrb,
    "Imagenette": imagenette,
    "KMNIST": mnist_like("KMNIST"),
    "OxfordIIITPet": pets,
    "SUN397": sun,
    "SVHN": svhn,
    "USPS": usps,
}


@pytest.mark.parametrize("name", FAKES)
def test_images_labels_and_splits_match_files(name, tmp_path, monkeypatch):
    labels = FAKES[name](tmp_path, monkeypatch)
    data = Torchvision(name=name, root=tmp_path)
    assert [split for split in ("train", "val", "test") if data.has(split)] == list(labels)
    for split, expected in labels.items():
        images = data.split(split)
        if max(labels["train"]) >= len(data.classes):  # fewer images than digits
            expected = [data.classes.index(str(label)) for label in expected]
        assert images.labels.tolist() == expected
        first = {"train": TRAIN, "val": VAL, "test": TEST}[split]
        grey = images.images.float().mean(dim=(1, 2, 3))
        assert grey.tolist() == pytest.approx(range(first, first + len(expected)), abs=1e-3)
    assert data.split("pretrain") is data.split("train")
    assert len(data.classes) > max(data.split("train").labels.tolist())


OTHERS = [
    "CREStereo", "CarlaStereo", "CelebA", "Cityscapes", "CocoCaptions", "CocoDetection", "DatasetFolder",
    "ETH3DStereo", "FallingThingsStereo", "Flickr30k", "Flickr8k", "FlyingChairs", "FlyingThings3D",
    "HD1K", "HMDB51", "ImageFolder", "InStereo2k", "Kinetics", "Kitti", "Kitti2012Stereo",
    "Kitti2015Stereo", "KittiFlow", "LFWPairs", "LSUN", "LSUNClass", "Middlebury2014Stereo",
    "MovingMNIST", "Omniglot", "PhotoTour", "SBDataset", "SBU", "SceneFlowStereo", "Sintel",
    "SintelStereo", "UCF101", "VOCDetection", "VOCSegmentation", "VisionDataset", "WIDERFace",
]  # fmt: skip
"""Data sets without one class for each image, base classes, folders, and LSUN and Omniglot.

Only one thread can open LSUN's files, and Omniglot numbers its classes in the order of the disk.
"""


def test_every_torchvision_dataset_is_either_supported_or_known():
    classes = [name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))]
    assert sorted(classes) == sorted([*DATASETS, *OTHERS])


@pytest.mark.parametrize("name", DATASETS)
def test_arguments_exist_with_matching_type(name):
    parameters = {
        parameter: each
        for base in reversed(getattr(datasets, name).__mro__)
        for parameter, each in inspect.signature(base.__init__).parameters.items()
    }
    assert ("download" in parameters) is (name not in _NOT_DOWNLOADED)
    for arguments in DATASETS[name].values():
        for argument, value in arguments.items():
            default = parameters[argument].default
            assert default is inspect.Parameter.empty or isinstance(value, type(default))


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("FakeData", "PCAM")])
def test_missing_files_raise_error_naming_dataset_and_root(name, tmp_path):
    with pytest.raises(InputError, match=rf"{name} is missing or damaged at {tmp_path}"):
        Torchvision(name=name, root=tmp_path).split("train")


@pytest.mark.long
@pytest.mark.realdata
def test_torchvision_cifar10_matches_built_in_cifar10(data_root):
    torchvision_data, built_in_data = Torchvision(name="CIFAR10", root=data_root), CIFAR10(root=data_root)
    assert torch.equal(torchvision_data.split("test").images, built_in_data.split("test").images)
    assert torch.equal(torchvision_data.split("test").labels, built_in_data.split("test").labels)


def test_cached_images_match_memory_and_follow_file_changes(tmp_path, monkeypatch):
    food(tmp_path, monkeypatch)
    options = {"name": "Food101", "root": tmp_path, "image_size": 8}
    plain = Torchvision(**options, cache="never").split("train")
    for _ in range(2):
        cached = Torchvision(**options, cache="always").split("train")
        assert cached.file is not None
        assert torch.equal(cached.images, plain.images)
        assert torch.equal(cached.labels, plain.labels)
    save(tmp_path / "food-101" / "images" / "sushi" / "2train.jpg", 77)
    changed = Torchvision(**options, cache="always").split("train")
    assert changed.images[1].unique().tolist() == [77]
    assert len(list((tmp_path / ".ssl_vision_cache").glob("*.uint8"))) == 1


def test_cache_of_relative_root_is_in_working_directory(tmp_path, monkeypatch):
    food(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    Torchvision(name="Food101", root=".", image_size=8, cache="always").split("train")
    assert list(tmp_path.glob(".ssl_vision_cache/*.uint8"))


def test_damaged_images_are_skipped_with_their_labels(tmp_path, monkeypatch):
    food(tmp_path, monkeypatch)
    (tmp_path / "food-101" / "images" / "apple_pie" / "1train.jpg").write_bytes(b"no image")
    data = Torchvision(name="Food101", root=tmp_path)
    with pytest.warns(UserWarning, match="skipped 1 of 3 images that cannot be decoded: Food101/train/0"):
        assert data.split("train").labels.tolist() == [1, 1]
    assert data.skipped == ("train/0",)


def test_fake_images_are_always_the_same():
    first, second = (Torchvision(name="FakeData", arguments={"size": 60}, image_size=8) for _ in range(2))
    assert torch.equal(first.split("train").images, second.split("train").images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Flower102"}, "no classification data set Flower102; there are .*Flowers102, Food101"),
        ({"name": "CocoDetection"}, "no classification data set CocoDetection; there are"),
        ({"name": "DTD", "arguments": {"part": 1}}, "DTD: .* got an unexpected keyword argument 'part'"),
    ],
)
def test_invalid_dataset_names_and_arguments_raise_input_error(options, message):
    with pytest.raises(InputError, match=message):
        Torchvision(**options).split("train")


def test_missing_split_error_lists_existing_splits():
    data = Torchvision(name="EuroSAT")
    with pytest.raises(InputError, match="torchvision's EuroSAT has no test split, only train"):
        data.check("train", data.eval_split)
