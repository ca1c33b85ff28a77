import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ssl_vision.evaluation.logistic import logistic_correct

DIGITS = load_digits()
X, Y = torch.from_numpy(DIGITS.data), torch.from_numpy(DIGITS.target)
SPLITS = (X[:400], Y[:400], X[400:], Y[400:])


def logistic_top1(*args, **options):
    return float(logistic_correct(*args, **options).double().mean())


def test_logistic_regression_matches_scikit_learn_pipeline():
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    pipeline.fit(SPLITS[0].numpy(), SPLITS[1].numpy())
    expected = pipeline.score(SPLITS[2].numpy(), SPLITS[3].numpy())
    assert logistic_top1(*SPLITS, num_classes=10, c=0.1) == pytest.approx(expected, abs=1e-3)
    assert 0.8 < expected < 1


def test_accuracy_ignores_scale_shift_constants_and_unlabelled_rows():
    plain = logistic_top1(*SPLITS, num_classes=10)
    x, y, test_x, test_y = SPLITS
    transformed = (
        torch.cat((1e3 * x + 5, torch.ones(400, 1)), 1),
        torch.cat((1e3 * test_x + 5, torch.rand(1397, 1)), 1),
    )
    labels = torch.cat((y, torch.full((9,), -1)))
    top1 = logistic_top1(
        torch.cat((transformed[0], transformed[0][:9])), labels, transformed[1], test_y, num_classes=10
    )
    assert top1 == pytest.approx(plain, abs=1e-3)
    assert top1 == logistic_top1(transformed[0], y, transformed[1], test_y, num_classes=10)


def test_unconverged_fit_prints_message(capsys):
    logistic_top1(*SPLITS, num_classes=10, max_iter=2)
    assert capsys.readouterr().err == "logistic regression: not converged after 2 iterations\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": torch.zeros(400, dtype=torch.int64)}, "one class"),
        ({"train_features": torch.ones(400, 64)}, "all rows are equal"),
    ],
)
def test_invalid_data_raises_value_error(change, message):
    names = ("train_features", "train_labels", "test_features", "test_labels")
    with pytest.raises(ValueError, match=message):
        logistic_top1(**{**dict(zip(names, SPLITS, strict=True)), **change}, num_classes=10)
