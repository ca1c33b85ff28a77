import torch
from sklearn.datasets import load_digits

from ssl_vision.data import Digits


def test_splits_match_scikit_learn_digits():
    data, digits = Digits(), load_digits()
    train, test = data.split("train"), data.split("test")
    assert (len(train), len(test)) == (1437, 360)
    pixels = torch.cat((train.images, test.images))
    assert pixels.shape == (1797, 3, 8, 8)
    for channel in range(3):
        assert (pixels[:, channel].double() * 16 / 255 - torch.from_numpy(digits.images)).abs().max() < 0.04
    assert torch.cat((train.labels, test.labels)).tolist() == digits.target.tolist()
    assert data.classes == tuple("0123456789")


def test_pretrain_split_is_train_split():
    data = Digits()
    assert data.split("pretrain") is data.split("train")


def test_validation_holds_out_last_train_rows():
    data = Digits(val_share=0.2)
    queries, bank = data.val_dataloader()
    labels = data.split("train").labels
    assert len(queries.data) == 287
    assert torch.equal(torch.cat((bank.data.labels, queries.data.labels)), labels)


def test_view_normalization_matches_train_mean_and_std():
    data = Digits()
    pixels = data.split("train").images / 255
    for mean, std in zip(data.views.mean, data.views.std, strict=True):
        assert abs(float(pixels.mean()) - mean) < 1e-3
        assert abs(float(pixels.std()) - std) < 1e-3


def test_views_are_gray_and_never_flipped():
    data = Digits()
    views = data.views(data.split("train").images[:64], torch.arange(64), seed=0, epoch=0)
    assert views.shape == (128, 3, 16, 16)
    assert (views - views[:, :1]).abs().max() < 1e-5
    assert data.views.hflip == 0
