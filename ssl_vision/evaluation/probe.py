"""Linear probes: with one learning rate, with the best of a grid, and trained along with the backbone."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ssl_vision.data.module import LARGEST_BATCH
from ssl_vision.errors import InputError, check
from ssl_vision.evaluation.measurement import (
    MOST_EPOCHS,
    Classifier,
    Measurement,
    Source,
    Value,
    check_options,
    labelled_rows,
    labelled_splits,
    labels_text,
    ranged,
)
from ssl_vision.evaluation.splits import Splits, stratified
from ssl_vision.metrics.rows import Features, LazyRows, exact_float32, select, slices
from ssl_vision.progress import tracked

Schedule = Literal["constant", "cosine"]
Optimizer = Literal["sgd", "nesterov", "adam"]
Augmentation = Literal["none", "crop", "pretraining"]

_NOT_TRAINED = 0.1
"""A probe is not trained if the nearest class mean is more accurate by this much on the training images."""

_ROWS = 4096
"""Maximum number of rows whose logits are computed at a time for an accuracy."""


@dataclass(frozen=True)
class ProbeRule:
    """Training options; the defaults are those of the MACL paper, which does not state the batch size.

    Raises:
        ValueError: A value is out of range.
    """

    epochs: int = ranged(100, at_least=1, at_most=MOST_EPOCHS)
    lr: float = ranged(0.02, above=0)
    momentum: float = ranged(0.9, at_least=0, below=1)
    weight_decay: float = ranged(0.0, at_least=0)
    batch_size: int = ranged(256, at_least=1, at_most=LARGEST_BATCH)
    schedule: Schedule = "constant"
    optimizer: Optimizer = "sgd"
    """``adam`` has its usual coefficients and ignores ``momentum``."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Linear(ProbeRule, Classifier):
    """Linear layer with fixed training options.

    Raises:
        ValueError: A value is out of range.
    """

    metric_name = "linear_top1"
    title = "linear"
    long_title = "linear top-1"
    sections = ("table", "headline")
    note = "This is the share of images that a linear layer on frozen features classifies correctly."
    order = 30

    augmentation: Augmentation = "none"
    """Augmentation in training: the views of the run, or only their crop and flip."""
    views: int = ranged(10, at_least=1)
    """Number of random views of each image with augmentation, which the epochs use in turn."""

    def __str__(self) -> str:
        name = {"sgd": "SGD", "nesterov": "Nesterov's SGD", "adam": "Adam"}[self.optimizer]
        views = "" if self.augmentation == "none" else f" of {self.views} views ({self.augmentation})"
        return f"linear: {self.epochs} epochs of {name} {self.lr:g} on frozen features{views}"

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy; training on views needs the trained network."""
        options = self.rows(source, splits)
        augmentations = "none"
        if self.augmentation != "none":
            network = source.trained_network
            if network is None:
                return
            views = network.augmented(source.layers, self.views, plainer=self.augmentation == "crop")
            options["train_features"] = views[source.layer]
            augmentations = f"{self.augmentation}, {len(views[source.layer])} views"
        probe = linear_probe(**options, rule=self, seed=seed)
        rates = {"lr": self.lr, "weight_decay": self.weight_decay}
        value = self.accuracy(probe.correct, augmentation=augmentations, **rates)
        if probe.train_top1 < probe.means_top1 - _NOT_TRAINED:
            print(
                f"linear of {source.features} {source.layer}{labels_text(self.labels)}: not trained with the "
                f"learning rate {self.lr:g}, which is too low for the scale of these features: it classifies "
                f"{100 * probe.train_top1:.1f} % of its training images, and the nearest class mean "
                f"{100 * probe.means_top1:.1f} %",
                file=sys.stderr,
            )
            value = value._replace(correct=None)  # is not compared with the start
        yield value


@dataclass(frozen=True)
class Grid(Classifier):
    """Best linear layer of a grid, selected on held-out images; the default rates are those of DINOv2.

    Raises:
        ValueError: A value is out of range.
    """

    metric_name = "grid_top1"
    title = "grid"
    long_title = "linear top-1 of the best of a grid"
    sections = ("table",)
    note = "This is linear accuracy at the best of many learning rates, chosen on held-out train images."
    order = 40

    lrs: tuple[float, ...] = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)
    weight_decays: tuple[float, ...] = (0.0,)
    epochs: int = ranged(100, at_least=1, at_most=MOST_EPOCHS)
    momentum: float = ranged(0.9, at_least=0, below=1)
    batch_size: int = ranged(256, at_least=1, at_most=LARGEST_BATCH)
    schedule: Schedule = "cosine"
    held_out: float = ranged(0.1, above=0, below=1)
    """Share of each class of the training images that is held out for the selection."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.members:
            raise InputError("lrs and weight_decays must each have at least one number")
        for lr, weight_decay in self.members:
            check("lrs", lr, above=0)
            check("weight_decays", weight_decay, at_least=0)

    @property
    def members(self) -> list[tuple[float, float]]:
        """Pairs (learning rate, weight decay) of the members; the weight decay changes fastest."""
        return list(product(self.lrs, self.weight_decays))

    def __str__(self) -> str:
        return (
            f"grid: {self.epochs} epochs of SGD, the best of {len(self.members)} on "
            f"{100 * self.held_out:g} % held out of train"
        )

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of the chosen member."""
        best = grid_probe(**self.rows(source, splits), rule=self, seed=seed)
        if len(self.lrs) > 1 and best.lr in (min(self.lrs), max(self.lrs)):
            grid = f"grid of {source.features} {source.layer}"
            print(f"{grid}: the best rate, {best.lr:g}, is at the grid's end", file=sys.stderr)
        yield self.accuracy(best.correct, lr=best.lr, weight_decay=best.weight_decay)


@dataclass(frozen=True)
class Online(Measurement):
    """The linear layer that was trained along with the backbone (``--online_probe``); no baselines."""

    metric_name = "online_top1"
    title = "online"
    long_title = "online linear top-1"
    unit = "%"
    higher_is_better = True
    sections = ("table", "curves", "summary")
    needs = ("labels",)
    note = "This is the share of images that a layer trained along with the backbone classifies correctly."
    order = 70
    required_layer = "backbone"

    def __str__(self) -> str:
        return "online: a linear layer trained along with the backbone, on augmented images"

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of the layer as training left it."""
        network = source.trained_network
        if network is None or source.layer != "backbone":
            return
        if network.online is None:
            raise ValueError(f"the run has no --online_probe on {splits.data}")
        layer = {name: tensor.to(network.device) for name, tensor in network.online.items()}
        truth = splits.images["test"].labels.to(network.device)
        x, y = labelled_rows(source.queries, truth, len(layer["bias"]), "test")
        with exact_float32(x.device):
            right = correct(x, y, layer["weight"], layer["bias"])
        yield Value(self.metric_name, right.double().mean().item(), {"bank": "pretrain"}, right)


class ProbeResult(NamedTuple):
    """A trained probe and its accuracy."""

    correct: Tensor
    """Which labelled test rows are classified correctly, bool of shape (n,)."""
    train_top1: float
    """Share of correctly classified training rows, in [0, 1]."""
    weight: Tensor
    """Weight, float32 of shape (C, F)."""
    bias: Tensor
    """Bias, float32 of shape (C,)."""
    means_top1: float
    """Share of training rows that the nearest class mean, also a linear layer, classifies correctly."""

    @property
    def test_top1(self) -> float:
        """Share of correctly classified labelled test rows, in [0, 1]."""
        return self.correct.double().mean().item()


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

    This is the linear evaluation of the MACL paper. Features are used in float32, neither normalised nor
    standardised. The layer is trained by `train_heads`.

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
    (xs, y), test = labelled_splits(train_features, train_labels, test_features, test_labels, num_classes)
    train = (xs[0], y)
    with exact_float32(y.device):
        weight, bias = (heads[0] for heads in train_heads(xs, y, num_classes, rule, seed=seed))
        if not (weight.isfinite().all() and bias.isfinite().all()):
            raise ValueError(f"lr: training diverged at {rule.lr}; lower it, or scale the features down")
        train_top1 = correct(*train, weight, bias).double().mean().item()
        means_top1 = correct(*train, *nearest_mean(*train, num_classes)).double().mean().item()
        right = correct(*test, weight, bias)
    return ProbeResult(right, train_top1, weight, bias, means_top1)


class GridResult(NamedTuple):
    """The selected member of the grid, and the accuracies of the selection."""

    correct: Tensor
    """Which labelled test rows the selected member classifies correctly, bool of shape (n,)."""
    lr: float
    weight_decay: float
    held_out_top1: Tensor
    """Accuracies in the order of `Grid.members`, float64 of shape (G,); -1 if training diverged."""

    @property
    def test_top1(self) -> float:
        """Share of labelled test rows that the selected member classifies correctly, in [0, 1]."""
        return self.correct.double().mean().item()


def grid_probe(
    train_features: Features,
    train_labels: Tensor,
    test_features: Features,
    test_labels: Tensor,
    *,
    num_classes: int,
    rule: Grid = Grid(),
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
    ((x,), y), test = labelled_splits(train_features, train_labels, test_features, test_labels, num_classes)
    validation = stratified(y, rule.held_out, seed=seed).to(x.device)
    validation &= y.bincount()[y] > 1  # the only row of a class is trained on
    if not validation.any():
        raise ValueError(f"train_labels: {len(y)} labelled rows are too few to hold some out")
    with exact_float32(x.device):
        weight, bias = train_heads([select(x, ~validation)], y[~validation], num_classes, rule, seed=seed)
        finite = weight.isfinite().all(dim=(1, 2)) & bias.isfinite().all(dim=1)  # type: ignore[call-overload]
        right = correct(select(x, validation), y[validation], weight, bias)
        held_out = right.double().mean(dim=1).where(finite, -1.0)
        if not finite.any():
            raise ValueError(f"lrs: training diverged at all of {rule.lrs}; lower them")
        best = int((held_out == held_out.max()).nonzero()[0])
        right = correct(*test, weight[best], bias[best])
    return GridResult(right, *rule.members[best], held_out.cpu())


def train_heads(
    views: Sequence[Features], y: Tensor, num_classes: int, rule: ProbeRule | Grid, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Train all members of a rule at once by softmax cross-entropy, and return (G, C, F) and (G, C).

    Weights and biases start at zero. The problem is convex, so only the order of the rows is random. A
    generator seeded with ``seed`` shuffles the rows in each epoch, and the last batch may be smaller. All
    members use the same rows at each step, so a step is one product of (B, F) and (F, C·G) for the logits,
    and one of (C·G, B) and (B, F) for the gradients (softmax(XWᵀ + b) − Y)ᵀX / B. The step of one probe is
    that of `torch.optim`. The members of a grid take the step of `torch.optim.SGD` together, in half the time
    of its parameter groups.

    Args:
        views: features, float32 of shape (N, F), for each view of the images; the epochs use them in turn.
        y: class numbers from 0 to num_classes − 1, int64 of shape (N,).
        num_classes: number of classes C.
        rule: training options of one probe or of a grid.
        seed: seed of the order of rows.
    """
    # Rows of the weight are sorted by class, then by member, which makes a softmax over dim 1 faster.
    device = views[0].device
    members = rule.members if isinstance(rule, Grid) else [(rule.lr, rule.weight_decay)]
    lrs, decays = torch.tensor(members, device=device).repeat(num_classes, 1).T.unsqueeze(-1)
    weight = torch.zeros(num_classes * len(members), views[0].shape[1], device=device)
    bias = torch.zeros(len(weight), 1, device=device)
    gradients = weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
    optimizer = _optimizer([weight, bias], rule) if isinstance(rule, ProbeRule) else None
    momentum = 0.0 if optimizer else rule.momentum  # a grid accumulates it in the gradients
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees one order
    per_epoch = math.ceil(len(y) / rule.batch_size)
    title = "linear probe" if len(members) == 1 else f"probe grid of {len(members)}"
    for epoch in tracked(range(rule.epochs), title, unit="epochs"):
        x = views[epoch % len(views)]
        order = torch.randperm(len(y), generator=generator).to(device)
        for step, batch in enumerate(order.split(rule.batch_size), start=epoch * per_epoch):
            rows = x[batch] if isinstance(x, LazyRows) else x.index_select(0, batch)  # faster than x[batch]
            logits = torch.addmm(bias.T, rows, weight.T).view(len(batch), num_classes, -1)
            error = logits.squeeze(2).softmax(dim=1).view_as(logits)  # fastest over the last dimension
            targets = y[batch, None, None].expand(-1, 1, len(members))
            error.scatter_add_(1, targets, error.new_full((1, 1, 1), -1.0).expand(targets.shape))
            error = error.div_(len(batch)).view(len(batch), -1)
            gradients[0].addmm_(error.T, rows, beta=momentum)
            gradients[1].mul_(momentum).add_(error.sum(dim=0)[:, None])
            scale = scale_at(rule.schedule, step, rule.epochs * per_epoch)
            if optimizer:
                optimizer.param_groups[0]["lr"] = members[0][0] * scale
                optimizer.step()
                continue
            for parameter, gradient in zip((weight, bias), gradients, strict=True):
                if any(decay for _, decay in members):
                    gradient.addcmul_(decays, parameter)
                parameter.addcmul_(lrs * scale, gradient, value=-1)
    return weight.view(num_classes, len(members), -1).transpose(0, 1), bias.view(num_classes, -1).T


def _optimizer(parameters: list[Tensor], rule: ProbeRule) -> torch.optim.Optimizer:
    decay, momentum = rule.weight_decay, rule.momentum
    if rule.optimizer == "adam":
        return torch.optim.Adam(parameters, weight_decay=decay, fused=True)
    nesterov = rule.optimizer == "nesterov" and momentum > 0
    return torch.optim.SGD(parameters, momentum=momentum, weight_decay=decay, nesterov=nesterov)


def scale_at(schedule: Schedule, step: int, steps: int) -> float:
    """Return the factor of the learning rate: 1, or (1 + cos(π step / steps)) / 2 for a cosine schedule."""
    return 1.0 if schedule == "constant" else (1 + math.cos(math.pi * step / steps)) / 2


def nearest_mean(x: Features, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the linear layer (C, F) and (C,) that chooses the class whose mean is nearest."""
    sums = torch.zeros(num_classes, x.shape[1], device=x.device)
    for part in slices(x):
        sums.index_add_(0, y[part], x[part])
    counts = y.bincount(minlength=num_classes)[:, None]
    means = sums / counts
    bias = -means.square().sum(dim=1) / 2
    return means.nan_to_num(), bias.where(counts[:, 0] > 0, -math.inf)


def correct(x: Features, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return which labelled rows linear layers classify correctly.

    Args:
        x: features, shape (n, F).
        y: class numbers, shape (n,).
        weight: weights, shape (…, C, F).
        bias: biases, shape (…, C).

    Returns:
        Bool of shape (…, n).
    """
    flat_weight, flat_bias = weight.flatten(0, -2).T, bias.flatten()
    right = []
    for part in slices(x, most=_ROWS):
        logits = torch.addmm(flat_bias, x[part], flat_weight).unflatten(1, (-1, bias.shape[-1]))
        right.append(logits.argmax(dim=2) == y[part, None])
    return torch.cat(right).T.reshape(*bias.shape[:-1], -1)
