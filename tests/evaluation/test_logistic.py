import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ssl_vision.evaluation.logistic import logistic_top1

DIGITS = load_digits()
X, Y = torch.from_numpy(DIGITS.data), torch.from_numpy(DIGITS.target)
SPLITS = (X[:400], Y[:400], X[400:], Y[400:])


def test_is_scikit_learns_pipeline():
    peer = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    peer.fit(SPLITS[0].numpy(), SPLITS[1].numpy())
    expected = peer.score(SPLITS[2].numpy(), SPLITS[3].numpy())
    assert logistic_top1(*SPLITS, num_classes=10, c=0.1) == pytest.approx(expected, abs=1e-3)
    assert 0.8 < expected < 1


def test_neither_scale_nor_shift_nor_a_constant_feature_nor_unlabelled_rows_matter():
    plain = logistic_top1(*SPLITS, num_classes=10)
    x, y, test_x, test_y = SPLITS
    other = (
        torch.cat((1e3 * x + 5, torch.ones(400, 1)), 1),
        torch.cat((1e3 * test_x + 5, torch.rand(1397, 1)), 1),
    )
    labels = torch.cat((y, torch.full((9,), -1)))
    found = logistic_top1(torch.cat((other[0], other[0][:9])), labels, other[1], test_y, num_classes=10)
    assert found == pytest.approx(plain, abs=1e-3)
    assert found == logistic_top1(other[0], y, other[1], test_y, num_classes=10)


def test_says_when_it_stops_early(capsys):
    logistic_top1(*SPLITS, num_classes=10, max_iter=2)
    assert capsys.readouterr().err == "logistic regression: not converged after 2 iterations\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": torch.zeros(400, dtype=torch.int64)}, "one class"),
        ({"train_features": torch.ones(400, 64)}, "all rows are equal"),
        ({"test_features": X[400:, :5]}, "64 columns in train, 5 in test"),
    ],
)
def test_refuses(change, message):
    names = ("train_features", "train_labels", "test_features", "test_labels")
    with pytest.raises(ValueError, match=message):
        logistic_top1(**{**dict(zip(names, SPLITS, strict=True)), **change}, num_classes=10)
