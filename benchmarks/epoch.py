"""Compare the time of an epoch of SimCLR on CIFAR-10 with other implementations on the same machine.

    python benchmarks/epoch.py --data data                                    on the CPU, 1,024 images
    python benchmarks/epoch.py --data data --device cuda --images 50000 --compile_mode default

Network, batch size and images are the same for all:

- ssl_vision: this package under Lightning, with images on the device and views for a whole batch at once.
- ssl_vision, one CUDA graph per step: the same with ``cuda_graph``, on a GPU only.
- lightly: the recipe of lightly's CIFAR-10 benchmark. Its transform runs on PIL images in a DataLoader with 8
  workers that are started again in each epoch, in float32, with one forward pass for each view, its
  NTXentLoss, and SGD.
- torchvision, tuned: fast per-image transforms on PIL images, with persistent workers for all cores, pinned
  memory, bfloat16, channels_last, one forward pass for both views, and the objective of this package.
- kornia: its augmentations for a batch on the device, otherwise as tuned. Skipped if it is not installed.

All implementations receive decoded images in memory, so none of them reads files. Epochs alternate, and times
are medians. The start of lightly's workers is not part of the time. The script writes
benchmarks/results/epoch_<device>.json.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytorch_lightning as pl
import torch
from lightly.loss import NTXentLoss
from lightly.transforms.simclr_transform import SimCLRTransform
from PIL import Image
from provenance import provenance, save
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from ssl_vision.callbacks import ObjectiveStatistics
from ssl_vision.data import CIFAR10, Images, Views
from ssl_vision.data.module import Split
from ssl_vision.encoders import ResNet
from ssl_vision.methods import SimCLR
from ssl_vision.objectives import InfoNCE

VIEWS = Views()


class Some(CIFAR10):
    """The first images of CIFAR-10."""

    def __init__(self, *, count: int, **options: Any) -> None:
        super().__init__(**options)
        self.count = count

    def read(self, split: Split) -> Images:
        """Read the first ``count`` rows of a split."""
        images = super().read(split)
        return images.select(torch.arange(min(self.count, len(images))))


class OnPIL(Dataset[Any]):
    """Data set with two views of each image by a transform of PIL images."""

    def __init__(self, pixels: Tensor, transform: Callable[[Any], Any]) -> None:
        self.images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index])


class Twice:
    """Transform that is applied twice."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> list[Any]:
        """Return both views."""
        return [self.transform(image), self.transform(image)]


def torchvision_transform() -> Callable[[Any], Any]:
    """Return a transform of one image with the distributions of ``VIEWS``."""
    v = VIEWS
    transform: Callable[[Any], Any] = transforms.Compose(
        [
            transforms.RandomResizedCrop(v.size, scale=v.scale, ratio=v.ratio),
            transforms.RandomHorizontalFlip(v.hflip),
            transforms.RandomApply(
                [transforms.ColorJitter(v.brightness, v.contrast, v.saturation, v.hue)], v.jitter
            ),
            transforms.RandomGrayscale(v.grayscale),
            transforms.ToTensor(),
            transforms.Normalize(v.mean, v.std),
        ]
    )
    return transform


class Loop:
    """A plain training loop over pairs of views."""

    def __init__(self, chosen: argparse.Namespace, *, tuned: bool) -> None:
        self.chosen, self.tuned = chosen, tuned
        self.device = torch.device(chosen.device)
        self.model = SimCLR(
            encoder=partial(ResNet, width=chosen.width), compile_mode=chosen.compile_mode if tuned else None
        )
        self.model.to(self.device, memory_format=torch.channels_last if tuned else torch.contiguous_format)
        self.model.setup("fit")
        self.objective = InfoNCE(temperature=0.5) if tuned else NTXentLoss(temperature=0.5)
        fused = tuned and self.device.type == "cuda"
        parameters = self.model.parameters()
        self.optimizer = torch.optim.SGD(
            parameters, lr=0.06, momentum=0.9, weight_decay=5e-4, fused=fused or None
        )

    def __call__(self, batches: Iterator[tuple[Tensor, Tensor]]) -> float:
        """Run an epoch and return its seconds."""
        start = time.perf_counter()
        for first, second in batches:
            views = [view.to(self.device, non_blocking=True) for view in (first, second)]
            mixed = torch.autocast(self.device.type, torch.bfloat16) if self.tuned else nullcontext()
            with mixed:
                if self.tuned:
                    z1, z2 = self.model(torch.cat(views)).projector.chunk(2)
                else:
                    z1, z2 = (self.model(view).projector for view in views)
                loss = self.objective(z1, z2)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def lightly_recipe(pixels: Tensor, chosen: argparse.Namespace) -> Callable[[], float]:
    """Return the loop of lightly's benchmark script."""
    transform = SimCLRTransform(input_size=32, cj_strength=0.5, gaussian_blur=0.0)
    loader = DataLoader(
        OnPIL(pixels, transform),
        batch_size=chosen.batch,
        shuffle=True,
        drop_last=True,
        num_workers=min(8, os.cpu_count() or 1),
    )
    loop = Loop(chosen, tuned=False)
    return lambda: loop(iter(loader))


def tuned_torchvision(pixels: Tensor, chosen: argparse.Namespace) -> Callable[[], float]:
    """Return a loop with well-tuned per-image transforms."""
    loader = DataLoader(
        OnPIL(pixels, Twice(torchvision_transform())),
        batch_size=chosen.batch,
        shuffle=True,
        drop_last=True,
        num_workers=min(16, os.cpu_count() or 1),
        persistent_workers=True,
        pin_memory=chosen.device == "cuda",
        prefetch_factor=4,
    )
    loop = Loop(chosen, tuned=True)
    return lambda: loop(iter(loader))


def kornia_on_device(pixels: Tensor, chosen: argparse.Namespace) -> Callable[[], float]:
    """Return a loop with kornia's augmentations of a batch."""
    from kornia import augmentation as k

    v = VIEWS
    mean, std = (torch.tensor(values, device=chosen.device) for values in (v.mean, v.std))
    make = torch.nn.Sequential(
        k.RandomResizedCrop((v.size, v.size), scale=v.scale, ratio=v.ratio, cropping_mode="resample"),
        k.RandomHorizontalFlip(p=v.hflip),
        k.ColorJitter(v.brightness, v.contrast, v.saturation, v.hue, p=v.jitter),
        k.RandomGrayscale(p=v.grayscale),
        k.Normalize(mean, std),
    )
    store = pixels.to(chosen.device)
    loop = Loop(chosen, tuned=True)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(store)).to(chosen.device)
        for rows in order[: len(store) // chosen.batch * chosen.batch].split(chosen.batch):
            images = store[rows].float() / 255
            yield make(images), make(images)

    return lambda: loop(batches())


def ours(chosen: argparse.Namespace, *, cuda_graph: bool = False) -> Callable[[], float]:
    """Return epochs under Lightning with the additions of ``fit``.

    Each is the second one of a Trainer, after its start and the recording of the CUDA graph.
    """
    seconds: list[float] = []

    class Clock(pl.Callback):
        def on_train_epoch_start(self, *args: Any) -> None:
            self.start = time.perf_counter()

        def on_train_epoch_end(self, *args: Any) -> None:
            if chosen.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - self.start)

    model = SimCLR(
        encoder=partial(ResNet, width=chosen.width), compile_mode=chosen.compile_mode, cuda_graph=cuda_graph
    )
    views = Views(compile=chosen.compile_mode is not None)
    data = Some(count=chosen.images, root=chosen.data, batch_size=chosen.batch, views=views, seed=0)

    def epoch() -> float:
        with tempfile.TemporaryDirectory() as folder:
            trainer = pl.Trainer(
                max_epochs=2,
                accelerator="gpu" if chosen.device == "cuda" else "cpu",
                devices=1,
                precision="bf16-mixed",
                limit_val_batches=0,
                log_every_n_steps=10,
                logger=False,
                enable_progress_bar=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                callbacks=[ObjectiveStatistics(), Clock()],
                default_root_dir=folder,
            )
            trainer.fit(model, data)
        return seconds[-1]

    return epoch


def table(record: dict[str, Any]) -> str:
    """Format the medians and their ratios to this package."""
    medians = {name: statistics.median(values) for name, values in record["seconds"].items()}
    lines = ["| | seconds per epoch | relative to ssl_vision |", "|---|---|---|"]
    lines += [
        f"| {name} | {value:.2f} | {value / medians['ssl_vision']:.2f} × |" for name, value in medians.items()
    ]
    lines += [f"| {name} | not installed | |" for name in record["skipped"]]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the official CIFAR-10")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile_mode", choices=["default", "reduce-overhead", "max-autotune"])
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    pixels = Some(count=chosen.images, root=chosen.data).split("train").images
    epochs = {
        "ssl_vision": ours(chosen),
        "lightly": lightly_recipe(pixels, chosen),
        "torchvision, tuned": tuned_torchvision(pixels, chosen),
    }
    if chosen.device == "cuda":
        epochs["ssl_vision, one CUDA graph per step"] = ours(chosen, cuda_graph=True)
    skipped = []
    if find_spec("kornia"):
        epochs["kornia"] = kornia_on_device(pixels, chosen)
    else:
        skipped.append("kornia")
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for turn in range(chosen.rounds + 1):
        for name, epoch in epochs.items():
            value = epoch()
            print(f"{name}: {value:.2f} s", file=sys.stderr, flush=True)
            if turn:  # the first epoch warms up, compiles and starts workers
                seconds[name].append(value)
    record = provenance("lightly", "torchvision", "pytorch-lightning", device=chosen.device) | {
        "options": {key: value for key, value in vars(chosen).items() if key != "data"},
        "skipped": skipped,
        "seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
    }
    save(f"epoch_{chosen.device}", record)
    print(table(record))


if __name__ == "__main__":
    main()
