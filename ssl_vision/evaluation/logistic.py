"""Logistic regression: a linear probe without step sizes, batches or chance, to check the others by."""

import sys
import warnings

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ssl_vision.evaluation.probe import labelled_rows


def logistic_top1(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    num_classes: int,
    c: float = 1.0,
    max_iter: int = 1000,
) -> float:
    """Test accuracy of scikit-learn's multinomial logistic regression, an optimum and hence deterministic.

    Minimises c Σ loss + ‖W‖²/2 by L-BFGS in float64, the bias not penalised. Every feature is standardised
    with its mean and standard deviation over train: the penalty would otherwise depend on the scale of the
    features, which differs a hundredfold between layers and networks. A feature that is constant on train
    is left out. Where L-BFGS stops at ``max_iter``, a line on stderr says so.

    Args:
        train_features: (N, F).
        train_labels: (N,) integers, 0 to num_classes − 1; rows labelled -1 are ignored.
        test_features: (M, F).
        test_labels: (M,), likewise.
        num_classes: Number of classes.
        c: Weight of the loss against the penalty; scikit-learn's default.
        max_iter: Of L-BFGS.

    Raises:
        ValueError: Shapes or types do not fit, a value is not finite, a label is out of range, or train has
            fewer than two classes.
    """
    x, y = labelled_rows(train_features, train_labels, num_classes, "train")
    test_x, test_y = labelled_rows(test_features, test_labels, num_classes, "test")
    if x.shape[1] != test_x.shape[1]:
        raise ValueError(f"features: {x.shape[1]} columns in train, {test_x.shape[1]} in test")
    if (y == y[0]).all():
        raise ValueError(f"train_labels: all {len(y)} labelled rows are of one class")
    x, test_x = x.double(), test_x.double()
    std, mean = torch.std_mean(x, dim=0, correction=0)
    varies = std > 1e-7 * mean.abs()
    scaled = [((rows - mean) / std)[:, varies].cpu().numpy() for rows in (x, test_x)]
    if not varies.any():
        raise ValueError("train_features: all rows are equal")
    model = LogisticRegression(C=c, max_iter=max_iter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(scaled[0], y.cpu().numpy())
    if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        print(f"logistic regression: not converged after {max_iter} iterations", file=sys.stderr)
    return float(model.score(scaled[1], test_y.cpu().numpy()))
