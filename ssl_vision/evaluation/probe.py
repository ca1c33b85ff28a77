"""Linear probe, a linear classifier on frozen features."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.module import LARGEST_BATCH
from ssl_vision.descriptions import describe
from ssl_vision.evaluation.measurement import (
    MOST_EPOCHS,
    Measurement,
    Source,
    Value,
    about_training,
    check_options,
    classification,
    labels_text,
    measurement,
)
from ssl_vision.evaluation.splits import SHARES, Labels, Splits
from ssl_vision.metrics.precision import exact_float32
from ssl_vision.metrics.rows import (
    UNLABELLED,
    Features,
    LazyRows,
    check_features,
    checked_labels,
    parts,
    select,
)
from ssl_vision.progress import tracked

Schedule = Literal["constant", "cosine"]
Optimizer = Literal["sgd", "nesterov", "adam"]
Augmentation = Literal["none", "crop", "pretraining"]

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""Usual coefficients of Adam."""

_NOT_TRAINED = 0.1
"""A probe is not trained if the nearest class mean is more accurate by this much on the training images."""

describe(
    "linear_top1",
    title="linear",
    long_title="linear top-1",
    unit="%",
    direction="higher",
    sections=("table", "headline"),
    needs=("labels",),
    note="This is the share of images that a linear layer on frozen features classifies correctly.",
    order=30,
)


@dataclass(frozen=True)
class ProbeRule:
    """Training options; the defaults are those of the MACL paper, which does not state the batch size.

    Raises:
        ValueError: A value is out of range.
    """

    epochs: int = 100
    lr: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 256
    schedule: Schedule = "constant"
    optimizer: Optimizer = "sgd"
    """``adam`` has its usual coefficients and ignores ``momentum``."""

    def __post_init__(self) -> None:
        check_options(
            self,
            epochs=1 <= self.epochs <= MOST_EPOCHS,
            lr=self.lr > 0,
            momentum=0 <= self.momentum < 1,
            weight_decay=self.weight_decay >= 0,
            batch_size=1 <= self.batch_size <= LARGEST_BATCH,
            schedule=self.schedule in ("constant", "cosine"),
            optimizer=self.optimizer in ("sgd", "nesterov", "adam"),
        )


@measurement("linear")
@dataclass(frozen=True)
class Linear(ProbeRule, Measurement):
    """Linear layer with fixed training options.

    Raises:
        ValueError: A value is out of range.
    """

    labels: Labels = "all"
    """Share of the training images that keep their labels."""
    augmentation: Augmentation = "none"
    """Augmentation in training: the views of the run, or only their crop and flip."""
    views: int = 10
    """Number of random views of each image with augmentation, which the epochs use in turn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(
            self,
            labels=self.labels in ("all", *SHARES),
            augmentation=self.augmentation in ("none", "crop", "pretraining"),
            views=self.views >= 1,
        )

    def __str__(self) -> str:
        name = {"sgd": "SGD", "nesterov": "Nesterov's SGD", "adam": "Adam"}[self.optimizer]
        views = "" if self.augmentation == "none" else f" of {self.views} views ({self.augmentation})"
        text = f"linear: {self.epochs} epochs of {name} {self.lr:g} on frozen features{views}"
        return text + labels_text(self.labels)

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy; training on views needs the trained network."""
        options = classification(source, splits, self.labels)
        augmentations = "none"
        if self.augmentation != "none":
            network = source.trained_network
            if network is None:
                return
            plainer = self.augmentation == "crop"
            views = network.augmented(source.layers, self.views, plainer=plainer)[source.layer]
            options["train_features"] = views
            augmentations = f"{self.augmentation}, {len(views)} views"
        probe = linear_probe(**options, rule=self, seed=seed)
        if probe.train_top1 < probe.means_top1 - _NOT_TRAINED:
            print(
                f"linear of {source.features} {source.layer}{labels_text(self.labels)}: not trained with the "
                f"learning rate {self.lr:g}, which is too low for the scale of these features: it classifies "
                f"{100 * probe.train_top1:.1f} % of its training images, and the nearest class mean "
                f"{100 * probe.means_top1:.1f} %",
                file=sys.stderr,
            )
        about = about_training(self, labels=self.labels) | {"augmentation": augmentations}
        about |= {"lr": self.lr, "weight_decay": self.weight_decay}
        yield Value("linear_top1", probe.test_top1, about)


class ProbeResult(NamedTuple):
    """A trained probe and its accuracy."""

    test_top1: float
    """Share of correctly classified labelled test rows, in [0, 1]."""
    train_top1: float
    """Share of correctly classified training rows, in [0, 1]."""
    weight: Tensor
    """Weight, float32 of shape (C, F)."""
    bias: Tensor
    """Bias, float32 of shape (C,)."""
    means_top1: float
    """Share of training rows that the nearest class mean, also a linear layer, classifies correctly."""


def linear_probe(
    train_features: Features | Sequence[Features],
    train_labels: Tensor,
    test_features: Features,
    test_labels: Tensor,
    *,
    num_classes: int,
    rule: ProbeRule = ProbeRule(),
    seed: int = 0,
) -> ProbeResult:
    """Train a linear layer on frozen features by softmax cross-entropy, and compute its test accuracy.

    This is the linear evaluation of the MACL paper. The learning rate is constant or scaled by `scale_at`.
    Features are used in float32, neither normalised nor standardised. Weight and bias start at zero. The
    problem is convex, so only the order of the rows is random. A generator seeded with ``seed`` shuffles the
    rows in each epoch, and the last batch may be smaller. The gradient is computed explicitly, G =
    (softmax(XWᵀ + b) − Y)ᵀX / B, and the step is that of `torch.optim.SGD`, with or without Nesterov
    momentum, or of `torch.optim.Adam`.

    Args:
        train_features: features of shape (N, F), or a sequence of them with one entry for each view of the
            images, which the epochs use in turn. `LazyRows` are read batch by batch.
        train_labels: integers from 0 to num_classes − 1, shape (N,); rows labelled -1 are ignored.
        test_features: features of shape (M, F).
        test_labels: integers of shape (M,), as ``train_labels``.
        num_classes: number of classes C.
        rule: training options.
        seed: seed of the order of rows.

    Raises:
        ValueError: Shapes, types or devices do not fit, a value is not finite, a label is out of range, a
            split has no labelled row, or training diverged.
    """
    views: list[Features] = (
        [train_features] if isinstance(train_features, Tensor | LazyRows) else list(train_features)
    )
    if not views:
        raise ValueError("train_features: there are none")
    xs = [labelled_rows(view, train_labels, num_classes, "train") for view in views]
    x, y = xs[0]
    test_x, test_y = labelled_rows(test_features, test_labels, num_classes, "test")
    if any(view.shape[1] != test_x.shape[1] or view.device != test_x.device for view, _ in xs):
        raise ValueError(
            f"train_features {tuple(views[0].shape)} on {x.device}, "
            f"test_features {tuple(test_features.shape)} on {test_x.device}: "
            "expected as many columns, on one device"
        )
    with exact_float32(x.device):
        weight, bias = _train([view for view, _ in xs], y, num_classes, rule, seed)
        if not (weight.isfinite().all() and bias.isfinite().all()):
            raise ValueError(f"lr: training diverged at {rule.lr}; lower it, or scale the features down")
        means = top1(x, y, *nearest_mean(x, y, num_classes))
        return ProbeResult(top1(test_x, test_y, weight, bias), top1(x, y, weight, bias), weight, bias, means)


def scale_at(schedule: Schedule, step: int, steps: int) -> float:
    """Return the factor of the learning rate: 1, or (1 + cos(π step / steps)) / 2 for a cosine schedule."""
    return 1.0 if schedule == "constant" else (1 + math.cos(math.pi * step / steps)) / 2


def labelled_rows(
    features: Features, labels: Tensor, num_classes: int, split: str
) -> tuple[Features, Tensor]:
    """Check a split, and return its labelled rows, float32 (n, F), and labels, int64 (n,)."""
    check_features(features, f"{split}_features")
    labels = checked_labels(labels, len(features), f"{split}_labels")
    keep = labels != UNLABELLED
    rows, targets = select(features, keep), labels[keep]
    if isinstance(rows, Tensor):
        rows = rows.detach().float()
    if len(rows) == 0:
        raise ValueError(f"{split}_labels: none of the {len(labels)} rows is labelled")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{split}_labels: expected -1 to {num_classes - 1} for {num_classes=}, got {low} to {high}"
        )
    if isinstance(rows, Tensor) and not rows.isfinite().all():
        raise ValueError(f"{split}_features: some of the {tuple(features.shape)} values are not finite")
    return rows, targets


def _train(
    views: Sequence[Features], y: Tensor, num_classes: int, rule: ProbeRule, seed: int
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees one order
    x = views[0]
    weight = torch.zeros(num_classes, x.shape[1], device=x.device)
    bias = torch.zeros(num_classes, device=x.device)
    momenta = (torch.zeros_like(weight), torch.zeros_like(bias))
    squares = (torch.zeros_like(weight), torch.zeros_like(bias))
    steps, step = rule.epochs * math.ceil(len(x) / rule.batch_size), 0
    for epoch in tracked(range(rule.epochs), "linear probe", unit="epochs"):
        x = views[epoch % len(views)]
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for batch in torch.split(order, rule.batch_size):
            rows = x[batch]
            error = torch.addmm(bias, rows, weight.T).softmax(dim=1)
            error.scatter_add_(1, y[batch, None], error.new_full((len(batch), 1), -1.0)).div_(len(batch))
            lr = rule.lr * scale_at(rule.schedule, step, steps)
            gradients = (error.T @ rows, error.sum(dim=0))
            for parameter, momentum, square, gradient in zip(
                (weight, bias), momenta, squares, gradients, strict=True
            ):
                if rule.weight_decay:
                    gradient.add_(parameter, alpha=rule.weight_decay)
                if rule.optimizer == "adam":
                    _adam(parameter, momentum, square, gradient, lr, step + 1)
                    continue
                momentum.mul_(rule.momentum).add_(gradient)
                if rule.optimizer == "nesterov":
                    parameter.sub_(gradient.add_(momentum, alpha=rule.momentum), alpha=lr)
                else:
                    parameter.sub_(momentum, alpha=lr)
            step += 1
    return weight, bias


def _adam(parameter: Tensor, mean: Tensor, square: Tensor, gradient: Tensor, lr: float, step: int) -> None:
    """Compute step number ``step``, counted from 1, of `torch.optim.Adam`."""
    mean.lerp_(gradient, 1 - _BETAS[0])
    square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
    root = (square / (1 - _BETAS[1] ** step)).sqrt_().add_(_EPSILON)
    parameter.addcdiv_(mean, root, value=-lr / (1 - _BETAS[0] ** step))


def nearest_mean(x: Features, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the linear layer (C, F) and (C,) that chooses the class whose mean is nearest."""
    sums = torch.zeros(num_classes, x.shape[1], device=x.device)
    for part in parts(x):
        sums.index_add_(0, y[part], x[part])
    counts = y.bincount(minlength=num_classes)[:, None]
    means = sums / counts
    bias = -means.square().sum(dim=1) / 2
    return means.nan_to_num(), bias.where(counts[:, 0] > 0, -math.inf)


def top1(x: Features, y: Tensor, weight: Tensor, bias: Tensor) -> float:
    """Compute the accuracy of weight (C, F) and bias (C,) on rows x (n, F) with classes y (n,)."""
    right = [torch.addmm(bias, x[part], weight.T).argmax(dim=1) == y[part] for part in parts(x)]
    return torch.cat(right).double().mean().item()
