"""Fine-tuning of a pretrained network with labels."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ssl_vision.data import Images, Views
from ssl_vision.data.module import LARGEST_BATCH
from ssl_vision.encoders import Encoder, device_of
from ssl_vision.errors import check, check_choice
from ssl_vision.evaluation.features import crop_and_flip, images_at_once
from ssl_vision.evaluation.measurement import (
    MOST_EPOCHS,
    Measurement,
    Source,
    Value,
    about_training,
    labels_text,
    measurement,
)
from ssl_vision.evaluation.probe import Augmentation, Schedule, scale_at
from ssl_vision.evaluation.splits import SHARES, Labels, Splits
from ssl_vision.progress import Progress


@measurement("finetune")
@dataclass(frozen=True)
class FineTune(Measurement):
    """The backbone and a linear layer, trained end to end with Nesterov momentum on softmax cross-entropy.

    The defaults are those of SimCLR for few labels (Chen et al. 2020, B.5): 0.05 × batch size / 256, momentum
    0.9, no weight decay, crop and flip, 30 epochs for 10 % of the labels. SimCLR's batch size is 4,096, and
    the schedule is a choice of this package.

    Raises:
        ValueError: A value is out of range.
    """

    metric_name = "finetune_top1"
    title = "fine-tuned"
    long_title = "fine-tuned top-1"
    unit = "%"
    higher_is_better = True
    sections = ("table",)
    needs = ("labels",)
    note = "This is the share of images that the network classifies correctly after end-to-end training."
    order = 60

    required_layer = "backbone"

    epochs: int = 30
    lr: float = 0.05
    """Learning rate of the whole network, which is not scaled with the batch size."""
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 256
    schedule: Schedule = "cosine"
    augmentation: Augmentation = "crop"
    """Augmentation: the views of the run, only their crop and flip, or none."""
    labels: Labels = "all"

    def __post_init__(self) -> None:
        check("epochs", self.epochs, at_least=1, at_most=MOST_EPOCHS)
        check("lr", self.lr, above=0)
        check("momentum", self.momentum, above=0, below=1)
        check("weight_decay", self.weight_decay, at_least=0)
        check("batch_size", self.batch_size, at_least=2, at_most=LARGEST_BATCH)
        check_choice("schedule", self.schedule, ("constant", "cosine"))
        check_choice("augmentation", self.augmentation, ("none", "crop", "pretraining"))
        check_choice("labels", self.labels, ("all", *SHARES))

    def __str__(self) -> str:
        views = {"none": "plain images", "crop": "crops", "pretraining": "the run's views"}[self.augmentation]
        return (
            f"fine-tuned: {self.epochs} epochs of Nesterov's SGD {self.lr:g}, {self.schedule}, on {views}"
            f"{labels_text(self.labels)}"
        )

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of a trained copy of the network."""
        if source.network is None or source.layer != "backbone":
            return
        top1 = finetuned_top1(
            source.network.encoder, splits.labelled_train(self.labels), splits.images["test"], splits.views,
            rule=self, seed=seed,
        )  # fmt: skip
        about = about_training(self, labels=self.labels) | {"augmentation": self.augmentation}
        about |= {"lr": self.lr, "weight_decay": self.weight_decay}
        yield Value(self.metric_name, top1, about)


def finetuned_top1(
    encoder: Encoder, train: Images, test: Images, views: Views, *, rule: FineTune, seed: int
) -> float:
    """Train a copy of an encoder and a linear layer end to end, and return the test accuracy in [0, 1].

    The copy is in float32. An encoder whose parameters are all frozen is trained, too. The layer starts at
    zero. An epoch contains all labelled training images, in an order given by ``seed`` and epoch, in the
    smallest number of batches of at most ``batch_size`` and nearly equal size. The views depend only on
    ``seed``, epoch and image. The learning rate of a step is scaled by `scale_at`. The last epoch is tested.
    On CUDA, training is autocast to bfloat16. The result depends only on the arguments, on CUDA except for
    rounding.

    Args:
        encoder: encoder on the device of the computation, which is not modified.
        train: training split, whose labelled images are used.
        test: test split, whose labelled images are classified without augmentation.
        views: views of pretraining, with the size and normalisation of the images.
        rule: training options.
        seed: seed of the order and the views.

    Raises:
        ValueError: fewer than two training images or no test image have labels, or training diverged.
    """
    device = device_of(encoder)
    labelled, queries = (split.labelled.nonzero()[:, 0] for split in (train, test))
    if len(labelled) < 2 or not len(queries):
        raise ValueError(f"labels: expected 2 in train and 1 in test, got {len(labelled)} and {len(queries)}")
    copied = copy.deepcopy(encoder).float()
    if not any(parameter.requires_grad for parameter in copied.parameters()):
        copied.requires_grad_(True)
    network = nn.Sequential(copied, nn.Linear(encoder.num_features, len(train.classes)))
    for parameter in network[1].parameters():
        nn.init.zeros_(parameter)
    network.to(device, memory_format=encoder.memory_format).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=rule.lr,
        momentum=rule.momentum,
        weight_decay=rule.weight_decay,
        nesterov=True,
    )
    per_epoch = math.ceil(len(labelled) / rule.batch_size)
    steps, step = rule.epochs * per_epoch, 0
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees one order
    with Progress("fine-tune", steps, unit="steps") as job:
        for epoch in range(rule.epochs):
            order = labelled[torch.randperm(len(labelled), generator=generator)]
            for rows in order.tensor_split(per_epoch):
                images = _first_views(train, rows, views, rule.augmentation, device, seed, epoch)
                images = images.to(memory_format=encoder.memory_format)
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    scores = network(images)
                loss = F.cross_entropy(scores.float(), train.labels[rows].to(device))
                for group in optimizer.param_groups:
                    group["lr"] = rule.lr * scale_at(rule.schedule, step, steps)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                job.advance()
            if not all(parameter.isfinite().all() for parameter in network.parameters()):
                raise ValueError(f"lr: fine-tuning diverged at {rule.lr}; lower it")
    return _top1(network.eval(), test, queries, views, device, encoder.memory_format)


def _first_views(
    data: Images,
    rows: Tensor,
    views: Views,
    augmentation: Augmentation,
    device: torch.device,
    seed: int,
    epoch: int,
) -> Tensor:
    """Generate the first view of each image, float32 of shape (N, 3, size, size)."""
    images = data.at(rows).to(device)
    if augmentation == "none":
        return views.plain(images)
    height, width = images.shape[-2:]
    augmentations = views if augmentation == "pretraining" else crop_and_flip(views)
    drawn = augmentations.parameters(
        rows.to(device), seed=seed, epoch=epoch, height=height, width=width, views=(0,)
    )
    return augmentations.render(images, drawn, memory_format=torch.channels_last)


@torch.inference_mode()
def _top1(
    network: nn.Module,
    test: Images,
    queries: Tensor,
    views: Views,
    device: torch.device,
    memory_format: torch.memory_format,
) -> float:
    right = 0
    for rows in queries.split(images_at_once(network, views)):
        images = views.plain(test.at(rows).to(device)).to(memory_format=memory_format)
        right += int((network(images).argmax(dim=1) == test.labels[rows].to(device)).sum())
    return right / len(queries)
