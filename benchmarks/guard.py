"""Measure the effect of batched views and bfloat16 on accuracy.

    python benchmarks/guard.py                  on the digits, about 10 minutes on 2 cores
    python benchmarks/guard.py --data data --device cuda --width 64 --epochs 30       on CIFAR-10

Each seed trains twice: with this package's views for a whole batch, bfloat16 and channels_last, and with
torchvision's random transforms of one image at a time and float32. The accuracy is kNN with k = 200 on the
test split. The script prints means and their difference with 95 % intervals (Student's t), and writes
benchmarks/results/guard_<data>.json.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import warnings
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from provenance import provenance, save
from torchvision.transforms import v2

from ssl_vision.callbacks import RepresentationMetrics
from ssl_vision.data import CIFAR10, Batch, Digits, ImageData, Views
from ssl_vision.encoders import ResNet
from ssl_vision.experiments.compare.statistics import t_interval
from ssl_vision.methods import SimCLR
from ssl_vision.objectives import InfoNCE


def per_image(views: Views) -> v2.Compose:
    """Return torchvision's transforms of one float image with the same distributions."""
    steps: list[Any] = [v2.ToDtype(torch.float32, scale=True)]
    if views.degrees > 0:
        steps.append(v2.RandomRotation(views.degrees, interpolation=v2.InterpolationMode.BILINEAR))
    steps.append(v2.RandomResizedCrop(views.size, scale=views.scale, ratio=views.ratio, antialias=True))
    steps.append(v2.RandomHorizontalFlip(views.hflip))
    jitter = v2.ColorJitter(views.brightness, views.contrast, views.saturation, views.hue)
    steps += [v2.RandomApply([jitter], views.jitter), v2.RandomGrayscale(views.grayscale)]
    if views.blur > 0:
        steps.append(v2.RandomApply([v2.GaussianBlur(views.kernel, views.sigma)], views.blur))
    return v2.Compose([*steps, v2.Normalize(views.mean, views.std)])


class PerImage:
    """Mixin of a data module that generates training views with torchvision, one image at a time."""

    def on_after_batch_transfer(self: Any, batch: Batch, dataloader_idx: int) -> Batch:
        """Return two views of each image."""
        if not self.trainer.training:
            return ImageData.on_after_batch_transfer(self, batch, dataloader_idx)
        transform = per_image(self.views)
        pixels = batch.images.cpu()
        views = [transform(image) for _ in range(2) for image in pixels]
        return batch._replace(views=torch.stack(views).to(batch.images.device))


class PlainDigits(PerImage, Digits):
    """Digits."""


class PlainCIFAR10(PerImage, CIFAR10):
    """CIFAR-10."""


def accuracy(chosen: argparse.Namespace, seed: int, *, fast: bool) -> float:
    """Train with a seed and return the kNN accuracy on the test split in percent."""
    pl.seed_everything(seed, verbose=False)
    options: dict[str, Any] = {"batch_size": 256, "val": "test", "seed": seed}
    data: ImageData
    if chosen.data:
        data = (CIFAR10 if fast else PlainCIFAR10)(root=chosen.data, **options)
    else:
        data = (Digits if fast else PlainDigits)(**options)
    model = SimCLR(encoder=partial(ResNet, width=chosen.width), objective=InfoNCE(temperature=0.5), seed=seed)
    if not fast:
        model.to(memory_format=torch.contiguous_format)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=chosen.epochs,
            check_val_every_n_epoch=chosen.epochs,
            num_sanity_val_steps=0,
            accelerator="gpu" if chosen.device == "cuda" else "cpu",
            devices=1,
            precision="bf16-mixed" if fast else "32-true",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[RepresentationMetrics(k=200)],
            default_root_dir=folder,
        )
        trainer.fit(model, data)
    return 100 * float(trainer.callback_metrics["val/knn_top1"])


def table(record: dict[str, Any]) -> str:
    """Format both results and their difference."""
    seeds = record["options"]["seeds"]
    lines = [f"| kNN %, {seeds} seeds | mean | 95 % interval |", "|---|---|---|"]
    rows = record["accuracy"] | {
        "difference": [a - b for a, b in zip(*record["accuracy"].values(), strict=True)]
    }
    for name, values in rows.items():
        mean, half = statistics.mean(values), t_interval(values)
        lines.append(f"| {name} | {mean:.2f} | {mean - half:.2f} to {mean + half:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Train, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", help="folder of the official CIFAR-10 (default: the digits)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=36)
    parser.add_argument("--seeds", type=int, default=6)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    accuracies: dict[str, list[float]] = {"batched views, bfloat16": [], "torchvision per image, float32": []}
    for seed in range(chosen.seeds):
        for (name, values), fast in zip(accuracies.items(), (True, False), strict=True):
            values.append(round(accuracy(chosen, seed, fast=fast), 2))
            print(f"seed {seed}, {name}: {values[-1]}", file=sys.stderr, flush=True)
    options = {key: value for key, value in vars(chosen).items() if key != "data"}
    record = provenance("torchvision", device=chosen.device) | {"options": options, "accuracy": accuracies}
    save("guard_cifar10" if chosen.data else "guard_digits", record)
    print(table(record))


if __name__ == "__main__":
    main()
