"""The linear probe: how well a linear layer reads classes from frozen features."""

import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.metrics.precision import full_precision
from ssl_vision.metrics.rows import UNLABELLED, check_features, check_labels


@dataclass(frozen=True)
class ProbeRule:
    """How the probe is trained; the defaults are the MACL paper's (batch size is not stated there).

    Raises:
        ValueError: A value is out of range.
    """

    epochs: int = 100
    lr: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name, allowed in (
            ("epochs", self.epochs >= 1),
            ("lr", self.lr > 0),
            ("momentum", 0 <= self.momentum < 1),
            ("weight_decay", self.weight_decay >= 0),
            ("batch_size", self.batch_size >= 1),
        ):
            if not allowed:
                raise ValueError(f"{name}: out of range, got {getattr(self, name)}")


class ProbeResult(NamedTuple):
    """A trained probe and its accuracy."""

    test_top1: float
    """Share of labelled test rows classified right, in [0, 1]."""
    train_top1: float
    """The same on the training rows."""
    weight: Tensor
    """(C, F) float32."""
    bias: Tensor
    """(C,) float32."""


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    num_classes: int,
    rule: ProbeRule = ProbeRule(),
    seed: int = 0,
    progress: bool = False,
) -> ProbeResult:
    """Test accuracy of a linear layer trained on frozen features by softmax cross-entropy and SGD.

    The protocol of the MACL paper's linear evaluation, at a constant learning rate. Features are used as
    they are, neither normalised nor standardised, as float32. Weight and bias start at zero: the problem is
    convex, and so only the order of the rows is random. That order is reshuffled each epoch by a generator
    seeded with ``seed``; the last batch may be smaller. The step is written out, G = (softmax(XWᵀ + b) −
    Y)ᵀX / B, and is that of `torch.optim.SGD`.

    Args:
        train_features: (N, F).
        train_labels: (N,) integers, 0 to num_classes − 1; rows labelled -1 are ignored.
        test_features: (M, F).
        test_labels: (M,), likewise.
        num_classes: Number of classes C.
        rule: Training options.
        seed: Of the order of rows.
        progress: Write a line to stderr every tenth of the training.

    Raises:
        ValueError: Shapes, types or devices do not fit, a value is not finite, a label is out of range, a
            split has no labelled row, or training diverged.
    """
    x, y = _labelled_rows(train_features, train_labels, num_classes, "train")
    test_x, test_y = _labelled_rows(test_features, test_labels, num_classes, "test")
    if x.shape[1] != test_x.shape[1] or x.device != test_x.device:
        raise ValueError(
            f"train_features {tuple(train_features.shape)} on {x.device}, "
            f"test_features {tuple(test_features.shape)} on {test_x.device}: "
            "expected as many columns, on one device"
        )
    with full_precision(x.device):
        weight, bias = _train(x, y, num_classes, rule, seed, progress)
        if not (weight.isfinite().all() and bias.isfinite().all()):
            raise ValueError(f"lr: training diverged at {rule.lr}; lower it, or scale the features down")
        return ProbeResult(_top1(test_x, test_y, weight, bias), _top1(x, y, weight, bias), weight, bias)


def _labelled_rows(features: Tensor, labels: Tensor, num_classes: int, split: str) -> tuple[Tensor, Tensor]:
    """The split's labelled rows, (n, F) float32 and (n,) int64, checked."""
    check_features(features, f"{split}_features")
    check_labels(labels, len(features), f"{split}_labels")
    keep = labels != UNLABELLED
    rows, known = features.detach()[keep].float(), labels[keep].long()
    if len(rows) == 0:
        raise ValueError(f"{split}_labels: none of the {len(labels)} rows is labelled")
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"{split}_labels: expected -1 to {num_classes - 1} for {num_classes=}, got {low} to {high}"
        )
    if not rows.isfinite().all():
        raise ValueError(f"{split}_features: some of the {tuple(features.shape)} values are not finite")
    return rows, known


def _train(
    x: Tensor, y: Tensor, num_classes: int, rule: ProbeRule, seed: int, progress: bool
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees one order
    weight, bias = x.new_zeros(num_classes, x.shape[1]), x.new_zeros(num_classes)
    momenta = (torch.zeros_like(weight), torch.zeros_like(bias))
    for epoch in range(1, rule.epochs + 1):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for batch in torch.split(order, rule.batch_size):
            rows = x.index_select(0, batch)
            error = torch.addmm(bias, rows, weight.T).softmax(dim=1)
            error.scatter_add_(1, y[batch, None], error.new_full((len(batch), 1), -1.0)).div_(len(batch))
            gradients = (error.T @ rows, error.sum(dim=0))
            for parameter, momentum, gradient in zip((weight, bias), momenta, gradients, strict=True):
                if rule.weight_decay:
                    gradient.add_(parameter, alpha=rule.weight_decay)
                momentum.mul_(rule.momentum).add_(gradient)
                parameter.sub_(momentum, alpha=rule.lr)
        if progress and epoch % max(1, rule.epochs // 10) == 0:
            top1 = _top1(x, y, weight, bias)
            print(f"linear probe: epoch {epoch}/{rule.epochs}, train top-1 {top1:.4f}", file=sys.stderr)
    return weight, bias


def _top1(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> float:
    return (torch.addmm(bias, x, weight.T).argmax(dim=1) == y).double().mean().item()
