import pickle
from urllib.error import URLError

import pytest
import torch
from torchvision import datasets
from torchvision.transforms.functional import pil_to_tensor

from ssl_vision.data import CIFAR10, CIFAR100
from ssl_vision.errors import InputError

KINDS = [
    (CIFAR10, datasets.CIFAR10, "CIFAR-10", "cifar-10-batches-py"),
    (CIFAR100, datasets.CIFAR100, "CIFAR-100", "cifar-100-python"),
]


@pytest.mark.realdata
@pytest.mark.parametrize(("kind", "reader"), [kind[:2] for kind in KINDS])
def test_images_and_labels_match_torchvision(kind, reader, data_root):
    data = kind(root=data_root)
    for split, count in (("train", 50_000), ("test", 10_000)):
        actual, expected = data.split(split), reader(data_root, train=split == "train")
        assert len(actual) == len(expected) == count
        assert actual.images.is_contiguous()
        for row in range(0, count, 997):
            image, label = expected[row]
            assert torch.equal(actual.images[row], pil_to_tensor(image))
            assert actual.labels[row] == label
        assert list(actual.classes) == expected.classes
    assert data.split("pretrain") is data.split("train")
    pixels = data.split("train").images[::10] / 255
    assert torch.allclose(pixels.mean((0, 2, 3)), torch.tensor(data.views.mean), atol=0.005)


@pytest.mark.realdata
def test_cifar100_superclasses_match_train_file(data_root):
    folder = data_root / "cifar-100-python"
    superclasses, train, meta = (
        CIFAR100(root=data_root).superclasses,
        *(pickle.loads((folder / name).read_bytes(), encoding="latin1") for name in ("train", "meta")),
    )
    assert superclasses[train["fine_labels"]].tolist() == train["coarse_labels"]
    members = [name for name, i in zip(meta["fine_label_names"], superclasses, strict=True) if i == 14]
    assert meta["coarse_label_names"][14] == "people"
    assert members == ["baby", "boy", "girl", "man", "woman"]


@pytest.mark.parametrize(("kind", "reader", "name", "folder"), KINDS)
def test_missing_data_error_names_dataset_and_folder(kind, reader, name, folder, tmp_path):
    data = kind(root=tmp_path)
    data.prepare_data()
    with pytest.raises(InputError, match=f"^{name} is missing .*{folder}; .*--data Digits$"):
        data.setup("fit")


@pytest.mark.parametrize(("kind", "reader", "name", "folder"), KINDS)
def test_failed_download_error_names_dataset_and_folder(kind, reader, name, folder, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise URLError("offline")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(InputError, match=f"^{name} could not be downloaded to .*{folder} .*offline"):
        kind(root=tmp_path, download=True).prepare_data()
