import pytest
import torch

from ssl_vision.data.images import Batch, Images
from ssl_vision.errors import InputError

PIXELS = torch.arange(4 * 3 * 2 * 2).view(4, 3, 2, 2).to(torch.uint8)
LABELS = torch.tensor([1, -1, 0, 1])


def test_select_returns_rows_in_requested_order():
    images = Images(PIXELS, LABELS, ("a", "b")).select(torch.tensor([3, 0]))
    assert torch.equal(images.images, PIXELS[[3, 0]])
    assert images.labels.tolist() == [1, 1]
    assert images.classes == ("a", "b")
    assert len(images) == 2


def test_selections_share_the_store_and_compose():
    images = Images(PIXELS, LABELS, ("a", "b"))
    part = images.select(images.labelled).select(torch.tensor([2, -3]))
    assert part.store is images.images is PIXELS
    assert torch.equal(part.images, PIXELS[[3, 0]])
    assert torch.equal(part.at(torch.tensor([1, 1, 0])), PIXELS[[0, 0, 3]])
    assert part.labels.tolist() == [1, 1]
    with pytest.raises(IndexError):
        part.select(torch.tensor([2]))


def test_labelled_masks_rows_without_label():
    images = Images(PIXELS, LABELS, ("a", "b"))
    assert images.labelled.tolist() == [True, False, True, True]
    assert images.select(images.labelled).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (PIXELS.float(), LABELS, "uint8"),
        (PIXELS[0], LABELS, "uint8"),
        (PIXELS, LABELS[:3], "int64"),
        (PIXELS, LABELS.int(), "int64"),
        (PIXELS, LABELS + 1, "-1..1"),
        (PIXELS, LABELS - 1, "-1..1"),
    ],
)
def test_invalid_shape_dtype_or_label_raises_input_error(pixels, labels, message):
    with pytest.raises(InputError, match=message):
        Images(pixels, labels, ("a", "b"))


def test_batch_views_default_to_none():
    assert Batch(PIXELS, LABELS, LABELS).views is None


def test_batches_of_other_loaders_are_read():
    first, second = torch.rand(2, 4, 3, 8, 8)
    labels = torch.tensor([0, 1, 1, -1])
    pair = Batch.of([(first, second), labels, ["a.png"] * 4])
    assert torch.equal(pair.views, torch.cat([first, second]))
    assert pair.labels.tolist() == labels.tolist()
    assert pair.indices.tolist() == [-1] * 4
    plain = Batch.of((first, labels))
    assert plain.images is first
    assert plain.views is None
    assert Batch.of(plain) is plain


@pytest.mark.parametrize(
    "batch",
    [
        torch.rand(4, 3, 8, 8),
        [torch.rand(4, 3, 8, 8)],
        [torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8)],
        [[torch.rand(4, 3, 8, 8), torch.rand(4, 3, 6, 6)], torch.zeros(4)],
        [[torch.rand(4, 3, 8, 8)] * 3, torch.zeros(4)],
        {"image": torch.rand(4, 3, 8, 8)},
        [["a", "b"], torch.zeros(2)],
    ],
)
def test_batch_of_another_form_is_refused(batch):
    with pytest.raises(InputError, match="a data loader must yield"):
        Batch.of(batch)
