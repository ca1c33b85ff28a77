from urllib.error import URLError

import numpy as np
import pytest
import torch

from ssl_vision.data import STL10
from ssl_vision.errors import InputError

SIDE = 96
NAMES = "airplane bird car cat deer dog horse monkey ship truck"


@pytest.fixture
def root(tmp_path):
    """The official layout with 4 train, 3 test and 2 unlabeled images."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 3), ("unlabeled", 2)):
        generator.integers(0, 256, count * 3 * SIDE**2, dtype=np.uint8).tofile(folder / f"{part}_X.bin")
    (folder / "train_y.bin").write_bytes(bytes([1, 10, 2, 2]))
    (folder / "test_y.bin").write_bytes(bytes([3, 4, 5]))
    (folder / "class_names.txt").write_text(NAMES.replace(" ", "\n"))
    return tmp_path


def stored(root, part):
    return (root / "stl10_binary" / f"{part}_X.bin").read_bytes()


def test_pixels_are_read_from_column_order(root):
    images, content = STL10(root=root).split("test").images, stored(root, "test")
    assert images.shape == (3, 3, SIDE, SIDE)
    for image, channel, row, column in ((0, 0, 0, 1), (1, 2, 5, 7), (2, 1, 95, 3)):
        offset = ((image * 3 + channel) * SIDE + column) * SIDE + row
        assert images[image, channel, row, column] == content[offset]


def test_labels_start_at_zero(root):
    data = STL10(root=root)
    assert data.split("train").labels.tolist() == [0, 9, 1, 1]
    assert data.split("test").labels.tolist() == [2, 3, 4]
    assert data.classes == tuple(NAMES.split())


def test_pretrain_split_has_train_and_unlabeled_images(root):
    data = STL10(root=root)
    images = data.split("pretrain")
    assert images.labels.tolist() == [0, 9, 1, 1, -1, -1]
    assert torch.equal(images.images[:4], data.split("train").images)
    expected = np.frombuffer(stored(root, "unlabeled"), np.uint8).reshape(2, 3, SIDE, SIDE).swapaxes(2, 3)
    assert np.array_equal(images.images[4:].numpy(), expected)


def test_train_split_shares_memory_of_earlier_pretrain_split(root):
    data = STL10(root=root)
    pretrain, train = data.split("pretrain"), data.split("train")
    assert train.store is pretrain.store
    assert torch.equal(train.images, STL10(root=root).split("train").images)
    assert train.labels.tolist() == [0, 9, 1, 1]
    assert train.classes == pretrain.classes


def test_split_needs_only_its_own_files(root):
    for name in ("unlabeled_X.bin", "test_X.bin", "test_y.bin"):
        (root / "stl10_binary" / name).unlink()
    data = STL10(root=root, unlabeled=False)
    assert data.split("pretrain") is data.split("train")
    with pytest.raises(InputError, match=r"^STL-10 is missing .*unlabeled_X\.bin; .*--data Digits$"):
        STL10(root=root).split("pretrain")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train_X.bin", b"123", r"train_X\.bin is damaged; download it"),
        ("train_X.bin", b"", r"train_X\.bin is damaged"),
        ("train_y.bin", bytes([1, 2, 3]), r"train_y\.bin contains 3 labels for 4 images"),
        ("train_y.bin", bytes([0, 1, 2, 3]), r"train_y\.bin contains labels outside 1\.\.10"),
        ("train_y.bin", bytes([1, 2, 3, 11]), r"train_y\.bin contains labels outside 1\.\.10"),
    ],
)
def test_damaged_file_raises_error_naming_it(root, name, content, message):
    (root / "stl10_binary" / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        STL10(root=root).split("train")


def test_wrong_number_of_train_labels_fails_pretrain_split(root):
    (root / "stl10_binary" / "train_y.bin").write_bytes(bytes([1, 2, 3]))
    with pytest.raises(InputError, match=r"train_y\.bin contains 3 labels for 4 images"):
        STL10(root=root).split("pretrain")


def test_download_happens_only_if_a_required_file_is_missing(root, monkeypatch):
    def fail(*_, **__):
        raise URLError("offline")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    STL10(root=root, download=True).prepare_data()
    (root / "stl10_binary" / "unlabeled_X.bin").unlink()
    STL10(root=root, download=True, unlabeled=False).prepare_data()
    STL10(root=root).prepare_data()
    with pytest.raises(InputError, match=r"^STL-10 could not be downloaded to .*stl10_binary .*offline"):
        STL10(root=root, download=True).prepare_data()


@pytest.mark.realdata
def test_official_files_have_smooth_images_and_ten_classes(data_root):
    data = STL10(root=data_root, unlabeled=False)
    for split in ("train", "test"):
        images = data.split(split)
        assert images.images.shape[1:] == (3, SIDE, SIDE)
        assert images.labels.unique().tolist() == list(range(10))
    # Photographs are smooth along both axes; transposing does not make them smoother.
    pixels = data.split("train").images.float()
    assert (pixels[..., 1:] - pixels[..., :-1]).abs().mean() < 15
    assert (pixels[..., 1:, :] - pixels[..., :-1, :]).abs().mean() < 15
