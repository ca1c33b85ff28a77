import numpy as np
import pytest
import torch
from PIL import Image

from ssl_vision.data import Dataset
from ssl_vision.errors import InputError


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


def test_images_without_labels_are_read():
    images = dataset([grey(1), np.full((12, 12), 2, np.uint8)]).split("train")
    assert images.images[:, :, 0, 0].tolist() == [[1] * 3, [2] * 3]
    assert images.labels.tolist() == [-1, -1]
    assert images.classes == ()


@pytest.mark.parametrize(
    ("sizes", "side"), [([(12, 12)] * 2, 12), ([(12, 12), (12, 14)], 96), ([(200, 200)] * 2, 96)]
)
def test_only_small_squares_of_one_size_keep_it(sizes, side):
    items = [(grey(5, size), 0) for size in sizes]
    assert dataset(items).split("train").shape == (3, side, side)
    assert dataset(items, image_size=7).split("train").shape == (3, 7, 7)


def test_splits_are_those_of_the_data_sets():
    data = dataset([(grey(1), 1), (grey(2), 0)], test=[(grey(3), 1)])
    assert data.split("test").labels.tolist() == [1]
    assert data.split("test").classes == ("0", "1")
    assert data.eval_split == "test"
    with pytest.raises(InputError, match=r"no val split; set its data set with --data.val_dataset"):
        data.check("val")


def test_classes_of_test_must_be_those_of_train():
    data = dataset([(grey(1), 0)], test=[(grey(3), 1)])
    with pytest.raises(InputError, match="the classes of list's test split are not those of train"):
        data.split("test")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "the train split of list has no images"),
        ([(torch.rand(3, 8, 8), 0)], "list/train/0 is a floating-point tensor; return PIL images"),
        ([("x.png", 0)], "list/train/0 is str, not an image"),
        ([(grey(1), "cat")], "list/train/0 has the label 'cat'; labels must be integers"),
    ],
)
def test_wrong_items_are_refused_in_one_line(items, message):
    with pytest.raises(InputError, match=message):
        dataset(items).split("train")


def test_the_cache_is_written_again_when_the_images_change(tmp_path):
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
