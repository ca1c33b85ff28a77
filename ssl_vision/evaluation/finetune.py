"""Fine-tuning of a pretrained network with labels."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from ssl_vision.data import Images, Views
from ssl_vision.data.augment.view_parameters import sample_parameters
from ssl_vision.data.module import LARGEST_BATCH
from ssl_vision.data.random import Stream, states
from ssl_vision.encoders import Encoder, device_of
from ssl_vision.evaluation.features import crop_and_flip, embed
from ssl_vision.evaluation.measurement import (
    MOST_EPOCHS,
    Classifier,
    Source,
    Value,
    ranged,
)
from ssl_vision.evaluation.probe import Augmentation, Schedule, scale_at
from ssl_vision.evaluation.splits import Splits
from ssl_vision.progress import Progress


@dataclass(frozen=True)
class FineTune(Classifier):
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
    sections = ("table",)
    note = "This is the share of images that the network classifies correctly after end-to-end training."
    order = 60

    required_layer = "backbone"

    epochs: int = ranged(30, at_least=1, at_most=MOST_EPOCHS)
    lr: float = ranged(0.05, above=0)
    """Learning rate of the whole network, which is not scaled with the batch size."""
    momentum: float = ranged(0.9, above=0, below=1)
    weight_decay: float = ranged(0.0, at_least=0)
    batch_size: int = ranged(256, at_least=2, at_most=LARGEST_BATCH)
    schedule: Schedule = "cosine"
    augmentation: Augmentation = "crop"
    """Augmentation: the views of the run, only their crop and flip, or none."""

    def __str__(self) -> str:
        views = {"none": "plain images", "crop": "crops", "pretraining": "the run's views"}[self.augmentation]
        return f"fine-tuned: {self.epochs} epochs of Nesterov's SGD {self.lr:g}, {self.schedule}, on {views}"

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of a trained copy of the network."""
        if source.network is None or source.layer != "backbone":
            return
        correct = finetuned_correct(
            source.network.encoder, splits.labelled_train(self.labels), splits.images["test"], splits.views,
            rule=self, seed=seed,
        )  # fmt: skip
        rates = {"lr": self.lr, "weight_decay": self.weight_decay}
        yield self.accuracy(correct, augmentation=self.augmentation, **rates)


def finetuned_correct(
    encoder: Encoder, train: Images, test: Images, views: Views, *, rule: FineTune, seed: int
) -> Tensor:
    """Train a copy of an encoder and a linear layer end to end, and classify the labelled test images.

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

    Returns:
        Which of the n labelled test images are classified correctly, bool of shape (n,).

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
    schedule = LambdaLR(optimizer, partial(scale_at, rule.schedule, steps=rule.epochs * per_epoch))
    views = crop_and_flip(views) if rule.augmentation == "crop" else views
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees one order
    with Progress("fine-tune", rule.epochs * per_epoch, unit="steps") as job:
        for epoch in range(rule.epochs):
            order = labelled[torch.randperm(len(labelled), generator=generator)]
            for rows in order.tensor_split(per_epoch):
                images = train.at(rows).to(device)
                if rule.augmentation == "none":
                    images = views.plain(images)
                else:
                    starts = states(rows.to(device), (seed, Stream.VIEWS, epoch, 0))  # of the first view
                    drawn = sample_parameters(views, starts, height=train.shape[1], width=train.shape[2])
                    images = views.render(images, drawn, memory_format=torch.channels_last)
                images = images.to(memory_format=encoder.memory_format)
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    scores = network(images)
                loss = F.cross_entropy(scores.float(), train.labels[rows].to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                job.advance()
            if not all(parameter.isfinite().all() for parameter in network.parameters()):
                raise ValueError(f"lr: fine-tuning diverged at {rule.lr}; lower it")
    scores = embed(network, test.select(queries), views, title="embed test, fine-tuned")["backbone"]
    return scores.argmax(dim=1).cpu() == test.labels[queries]
