"""Grid of linear probes with all learning rates and weight decays, trained at once."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

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
from ssl_vision.evaluation.probe import Schedule, labelled_rows, scale_at
from ssl_vision.evaluation.splits import SHARES, Labels, Splits, stratified
from ssl_vision.metrics.precision import exact_float32
from ssl_vision.metrics.rows import Features, parts, select
from ssl_vision.progress import tracked

_ROWS = 4096

describe(
    "grid_top1",
    title="grid",
    long_title="linear top-1 of the best of a grid",
    unit="%",
    direction="higher",
    sections=("table",),
    needs=("labels",),
    note="This is linear accuracy at the best of many learning rates, chosen on held-out train images.",
    order=40,
)


@dataclass(frozen=True)
class GridRule:
    """Options of training and selection; the default learning rates are those of DINOv2.

    Raises:
        ValueError: A value is out of range.
    """

    lrs: tuple[float, ...] = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)
    weight_decays: tuple[float, ...] = (0.0,)
    epochs: int = 100
    momentum: float = 0.9
    batch_size: int = 256
    schedule: Schedule = "cosine"
    held_out: float = 0.1
    """Share of each class of the training images that is held out for the selection."""

    def __post_init__(self) -> None:
        check_options(
            self,
            lrs=bool(self.lrs) and all(lr > 0 for lr in self.lrs),
            weight_decays=bool(self.weight_decays) and all(decay >= 0 for decay in self.weight_decays),
            epochs=1 <= self.epochs <= MOST_EPOCHS,
            momentum=0 <= self.momentum < 1,
            batch_size=1 <= self.batch_size <= LARGEST_BATCH,
            schedule=self.schedule in ("constant", "cosine"),
            held_out=0 < self.held_out < 1,
        )

    @property
    def members(self) -> list[tuple[float, float]]:
        """Pairs (learning rate, weight decay) of the members; the weight decay changes fastest."""
        return list(product(self.lrs, self.weight_decays))


@measurement("grid")
@dataclass(frozen=True)
class Grid(GridRule, Measurement):
    """Best linear layer of a grid, selected on held-out training images.

    Raises:
        ValueError: A value is out of range.
    """

    labels: Labels = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, labels=self.labels in ("all", *SHARES))

    def __str__(self) -> str:
        return (
            f"grid: {self.epochs} epochs of SGD, the best of {len(self.members)} on "
            f"{100 * self.held_out:g} % held out of train{labels_text(self.labels)}"
        )

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of the chosen member."""
        options = classification(source, splits, self.labels)
        best = grid_probe(**options, rule=self, seed=seed)
        if len(self.lrs) > 1 and best.lr in (min(self.lrs), max(self.lrs)):
            grid = f"grid of {source.features} {source.layer}"
            print(f"{grid}: the best rate, {best.lr:g}, is at the grid's end", file=sys.stderr)
        about = about_training(self, labels=self.labels) | {"lr": best.lr, "weight_decay": best.weight_decay}
        yield Value("grid_top1", best.test_top1, about)


class GridResult(NamedTuple):
    """The selected member of the grid, and the accuracies of the selection."""

    test_top1: float
    """Share of labelled test rows that the selected member classifies correctly, in [0, 1]."""
    lr: float
    weight_decay: float
    held_out_top1: Tensor
    """Accuracies in the order of `GridRule.members`, float64 of shape (G,); -1 if training diverged."""


def grid_probe(
    train_features: Features,
    train_labels: Tensor,
    test_features: Features,
    test_labels: Tensor,
    *,
    num_classes: int,
    rule: GridRule = GridRule(),
    seed: int = 0,
) -> GridResult:
    """Train a grid of linear layers, select one on held-out training rows, and return its test accuracy.

    As in DINOv2 (Oquab et al. 2023), all learning rates are trained at once. The held-out rows are
    `stratified`. The best member is selected, the first one of equals. Only its test accuracy is computed, so
    the test split does not affect the selection. The selected layer is not trained again with the held-out
    rows.

    Args:
        train_features: features of shape (N, F). `LazyRows` are read batch by batch.
        train_labels: integers from 0 to num_classes − 1, shape (N,); rows labelled -1 are ignored.
        test_features: features of shape (M, F).
        test_labels: integers of shape (M,), as ``train_labels``.
        num_classes: number of classes C.
        rule: grid and training options.
        seed: seed of the held-out rows and of the order of rows.

    Raises:
        ValueError: Shapes, types or devices do not fit, a value is not finite, a label is out of range, a
            split has no labelled row, no row is left to train on, or every member diverged.
    """
    x, y = labelled_rows(train_features, train_labels, num_classes, "train")
    test_x, test_y = labelled_rows(test_features, test_labels, num_classes, "test")
    if x.shape[1] != test_x.shape[1] or x.device != test_x.device:
        raise ValueError(
            f"train_features {tuple(train_features.shape)} on {x.device}, "
            f"test_features {tuple(test_features.shape)} on {test_x.device}: "
            "expected as many columns, on one device"
        )
    validation = stratified(y, rule.held_out, seed=seed).to(x.device)
    validation &= y.bincount()[y] > 1  # the only row of a class is trained on
    if not validation.any():
        raise ValueError(f"train_labels: {len(y)} labelled rows are too few to hold some out")
    with exact_float32(x.device):
        weight, bias = train_grid(select(x, ~validation), y[~validation], num_classes, rule, seed=seed)
        finite = weight.isfinite().all(dim=(1, 2)) & bias.isfinite().all(dim=1)  # type: ignore[call-overload]
        top1 = _top1(select(x, validation), y[validation], weight, bias).where(finite, -1.0)
        if not finite.any():
            raise ValueError(f"lrs: training diverged at all of {rule.lrs}; lower them")
        best = int((top1 == top1.max()).nonzero()[0])
        lr, decay = rule.members[best]
        test = _top1(test_x, test_y, weight[best : best + 1], bias[best : best + 1])
    return GridResult(float(test), lr, decay, top1.cpu())


def train_grid(
    x: Features, y: Tensor, num_classes: int, rule: GridRule, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Train all members as `linear_probe` does, and return weights (G, C, F) and biases (G, C).

    All members use the same rows at each step, so a step is one product of (B, F) and (F, G·C) for the scores
    and one of (G·C, B) and (B, F) for the gradients.

    Args:
        x: features, float32 of shape (N, F).
        y: class numbers from 0 to num_classes − 1, int64 of shape (N,).
        num_classes: number of classes C.
        rule: grid and training options.
        seed: seed of the order of rows.
    """
    # Rows are sorted by class, then by member, which makes a softmax over dim 1 several times faster.
    members = torch.tensor(rule.members, dtype=torch.float32, device=x.device)
    lrs, decays = members.repeat(num_classes, 1).T.unsqueeze(-1)
    width = len(rule.members) * num_classes
    weight = torch.zeros(width, x.shape[1], device=x.device)
    bias = torch.zeros(width, 1, device=x.device)
    momenta = (torch.zeros_like(weight), torch.zeros_like(bias))
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees one order
    steps, step = rule.epochs * math.ceil(len(x) / rule.batch_size), 0
    title = f"probe grid of {len(rule.members)}"
    for _ in tracked(range(rule.epochs), title, unit="epochs"):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for batch in torch.split(order, rule.batch_size):
            rows = x[batch]
            scores = torch.addmm(bias.T, rows, weight.T).view(len(batch), num_classes, -1)
            error = scores.softmax(dim=1)
            targets = y[batch, None, None].expand(-1, 1, len(rule.members))
            error.scatter_add_(1, targets, error.new_full((1, 1, 1), -1.0).expand(targets.shape))
            error = error.div_(len(batch)).view(len(batch), width)
            momenta[0].addmm_(error.T, rows, beta=rule.momentum)
            momenta[1].mul_(rule.momentum).add_(error.sum(dim=0)[:, None])
            rate = lrs * scale_at(rule.schedule, step, steps)
            for parameter, momentum in zip((weight, bias), momenta, strict=True):
                if any(rule.weight_decays):
                    momentum.addcmul_(decays, parameter)
                parameter.addcmul_(rate, momentum, value=-1)
            step += 1
    shape = (num_classes, len(rule.members), -1)
    return weight.view(shape).transpose(0, 1), bias.view(shape[:2]).T


def _top1(x: Features, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute the accuracy of each member, float64 of shape (G,)."""
    right = torch.zeros(len(weight), dtype=torch.float64, device=x.device)
    for part in parts(x, most=_ROWS):
        scores = torch.addmm(bias.flatten(), x[part], weight.flatten(0, 1).T).view(-1, *bias.shape)
        right += (scores.argmax(dim=2) == y[part, None]).sum(dim=0)
    return right / len(y)
