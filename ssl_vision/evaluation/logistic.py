"""Logistic regression, a deterministic linear probe that checks the others."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ssl_vision.evaluation.measurement import (
    Classifier,
    Source,
    Value,
    labelled_splits,
    ranged,
)
from ssl_vision.evaluation.splits import Splits
from ssl_vision.metrics.rows import Features, map_rows, slices
from ssl_vision.progress import Progress


@dataclass(frozen=True)
class Logistic(Classifier):
    """Logistic regression on standardised features.

    Raises:
        ValueError: A value is out of range.
    """

    metric_name = "logistic_top1"
    title = "logistic"
    long_title = "logistic regression top-1"
    sections = ("table",)
    note = "This is the accuracy of logistic regression on standardised features, which has one optimum."
    order = 50

    c: float = ranged(1.0, above=0)
    max_iter: int = ranged(1000, at_least=1)

    def __str__(self) -> str:
        return f"logistic: L-BFGS on standardised features, C = {self.c:g}"

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy."""
        yield self.accuracy(logistic_correct(**self.rows(source, splits), c=self.c, max_iter=self.max_iter))


def logistic_correct(
    train_features: Features,
    train_labels: Tensor,
    test_features: Features,
    test_labels: Tensor,
    *,
    num_classes: int,
    c: float = 1.0,
    max_iter: int = 1000,
) -> Tensor:
    """Fit multinomial logistic regression, which has one optimum, and classify the labelled test rows.

    SciPy's L-BFGS minimises c Σ loss + ‖W‖²/2 in float64, without a penalty of the bias. Objective and
    stopping rule are those of scikit-learn's ``LogisticRegression``, with one weight vector for two classes.
    That class needs all rows in memory: 2.5 GiB for the pixels of CIFAR-10, and 0.1 GiB suffice here.
    Every feature is standardised with its mean and standard deviation over the training rows, because the
    penalty would otherwise depend on the scale of the features, which differs a hundredfold between layers
    and networks. A feature that is constant in training is omitted. If L-BFGS stops at ``max_iter``, a
    message is printed on stderr.

    Args:
        train_features: features of shape (N, F). `LazyRows` are read in parts in every iteration.
        train_labels: integers from 0 to num_classes − 1, shape (N,); rows labelled -1 are ignored.
        test_features: features of shape (M, F).
        test_labels: integers of shape (M,), as ``train_labels``.
        num_classes: number of classes.
        c: weight of the loss relative to the penalty; 1 is scikit-learn's default.
        max_iter: maximum number of iterations of L-BFGS.

    Returns:
        Which of the labelled test rows are classified correctly, bool of shape (n,).

    Raises:
        ValueError: Shapes or types do not fit, a value is not finite, a label is out of range, or train has
            fewer than two classes.
    """
    ((x,), y), test = labelled_splits(train_features, train_labels, test_features, test_labels, num_classes)
    classes, target = y.cpu().unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"train_labels: all {len(y)} labelled rows are of one class")
    mean, inverse = _moments(x)
    if not inverse.any():
        raise ValueError("train_features: all rows are equal")

    def standardised(rows: Tensor) -> Tensor:
        return rows.cpu().double().sub_(mean).mul_(inverse)

    scaled, test_scaled = map_rows(x, standardised), map_rows(test[0], standardised)
    weight, bias = _fitted(scaled, target, len(classes), c=c, max_iter=max_iter)
    right = [
        classes[_scores(test_scaled[part], weight, bias).argmax(dim=1)] == test[1][part].cpu()
        for part in slices(test_scaled)
    ]
    return torch.cat(right)


def _moments(x: Features) -> tuple[Tensor, Tensor]:
    """Compute means and inverse standard deviations on the CPU, float64 of shape (F,); 0 for constants."""
    total = torch.zeros(x.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for part in slices(x):
        total += x[part].cpu().double().sum(dim=0)
    mean = total / len(x)
    for part in slices(x):
        squares += (x[part].cpu().double() - mean).square_().sum(dim=0)
    std = (squares / len(x)).sqrt()
    return mean, std.reciprocal().where(std > 1e-7 * mean.abs(), 0.0)


def _fitted(x: Features, y: Tensor, classes: int, *, c: float, max_iter: int) -> tuple[Tensor, Tensor]:
    """Fit weight (K, F) and bias (K,), with K = 1 for two classes."""
    outputs = 1 if classes == 2 else classes
    penalty = 1 / (c * len(x))

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        both = torch.from_numpy(flat).view(outputs, -1)
        weight, bias = both[:, :-1], both[:, -1]
        gradient, loss = torch.zeros_like(both), 0.0
        for part in slices(x):
            rows, ids = x[part], y[part, None]
            logarithms = _scores(rows, weight, bias).log_softmax(dim=1)
            loss -= float(logarithms.gather(1, ids).sum())
            error = logarithms.exp_().scatter_add_(1, ids, logarithms.new_full(ids.shape, -1.0))[:, -outputs:]
            gradient[:, :-1].addmm_(error.T, rows)
            gradient[:, -1] += error.sum(dim=0)
        gradient /= len(x)
        gradient[:, :-1].add_(weight, alpha=penalty)
        return loss / len(x) + 0.5 * penalty * float(weight.square().sum()), gradient.flatten().numpy()

    with Progress("logistic regression", unit="iterations") as job:
        result = minimize(
            objective, np.zeros(outputs * (x.shape[1] + 1)), jac=True, method="L-BFGS-B",
            callback=lambda _: job.advance(),
            options={"maxiter": max_iter, "maxls": 50, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps},
        )  # fmt: skip
    if not result.success:
        print(f"logistic regression: not converged after {result.nit} iterations", file=sys.stderr)
    both = torch.from_numpy(result.x).view(outputs, -1)
    return both[:, :-1], both[:, -1]


def _scores(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute logits, shape (n, C); with one output, the logits of the first of two classes are 0."""
    scores = torch.addmm(bias, rows, weight.T)
    return torch.cat((torch.zeros_like(scores), scores), dim=1) if len(bias) == 1 else scores
