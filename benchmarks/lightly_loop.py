"""SimCLR on CIFAR-10 as a plain loop of lightly's building blocks, evaluated like the runs of this package.

    python benchmarks/lightly_loop.py --data data --epochs 5 --seeds 0 1 2
    python benchmarks/lightly_loop.py --data data --epochs 15 --name lightly_objectives_cifar10

Transform, loss and kNN are lightly's, the transform with the options of lightly's CIFAR-10 benchmark. The
network, its initial weights, optimizer, schedule, batch size, temperature and bfloat16 are those of
configs/pretrain/cifar10_narrow.yaml. Images are decoded before the first epoch, and views are made in the
training process, so that one core does all the work. Adds a row for each seed to benchmarks/results/NAME.json
as soon as it is finished; a seed that has a row is left out. A stopped seed continues from its last epoch.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightly.loss import NTXentLoss
from lightly.transforms.simclr_transform import SimCLRTransform
from lightly.utils.benchmarking import knn_predict
from lightly.utils.scheduler import CosineWarmupScheduler
from provenance import provenance
from rows import add_row, rows_of
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR10

import ssl_vision
from ssl_vision.data import Views
from ssl_vision.encoders import ResNet
from ssl_vision.methods import SimCLR

TRANSFORM = SimCLRTransform(input_size=32, cj_strength=0.5, gaussian_blur=0.0)
VIEWS = Views(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""Size and normalisation of lightly's transform."""

TEMPERATURE, LEARNING_RATE, WEIGHT_DECAY = 0.1, 1e-3, 1e-6
METRICS = ("knn_top1", "linear_top1", "alignment", "uniformity", "tolerance", "sensitivity", "rankme")
KNN = {name: Path(__file__).with_name(f"{name}.yaml") for name in ("knn10", "knn20")}
"""Protocols with fewer neighbours than the 200 of "macl"."""


def train(chosen: argparse.Namespace, seed: int) -> tuple[SimCLR, float]:
    """Train one network.

    Args:
        chosen: options of the command.
        seed: seed of the initial weights, the order of the images and the views.

    Returns:
        The network, and the seconds of CPU time that training took.
    """
    torch.manual_seed(seed)
    images = CIFAR10(chosen.data, train=True, transform=TRANSFORM)
    loader = DataLoader(images, batch_size=chosen.batch, shuffle=True, drop_last=True)
    model = SimCLR(encoder=partial(ResNet, width=chosen.width), seed=seed)
    model.to(memory_format=torch.channels_last).train()
    network = torch.nn.Sequential(model.backbone, model.head)
    criterion = NTXentLoss(temperature=TEMPERATURE)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = chosen.epochs * len(loader)
    scheduler = CosineWarmupScheduler(optimizer, warmup_epochs=0, max_epochs=steps)
    stateful = {"network": network, "optimizer": optimizer, "scheduler": scheduler}
    seconds, finished = 0.0, 0
    checkpoint = chosen.runs_dir / f"{chosen.name}-{chosen.epochs}-{seed}.pt"
    if checkpoint.exists():
        states = torch.load(checkpoint)
        for name, each in stateful.items():
            each.load_state_dict(states[name])
        torch.set_rng_state(states["random"])
        seconds, finished = states["seconds"], states["epochs"]
    for epoch in range(finished, chosen.epochs):
        start = time.process_time()
        for (first, second), _ in loader:
            with torch.autocast("cpu", torch.bfloat16):
                loss = criterion(network(first), network(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        seconds += time.process_time() - start
        states = {name: each.state_dict() for name, each in stateful.items()}
        states |= {"random": torch.get_rng_state(), "seconds": seconds, "epochs": epoch + 1}
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        torch.save(states, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)
        print(f"seed {seed}, epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
    return model.eval(), seconds


def lightly_knn(model: SimCLR, train: CIFAR10, test: CIFAR10) -> float:
    """Return the accuracy of lightly's kNN with its defaults, k = 200 and temperature 0.1, on test images."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (VIEWS.mean, VIEWS.std))

    @torch.no_grad()
    def features(data: CIFAR10) -> Tensor:
        pixels = torch.from_numpy(data.data).permute(0, 3, 1, 2)
        batches = [model.backbone((batch / 255 - mean) / std) for batch in pixels.split(512)]
        return normalize(torch.cat(batches), dim=1)

    bank, labels = features(train).T, torch.tensor(train.targets)
    right: list[int] = [
        (knn_predict(each, bank, labels, num_classes=10)[:, 0] == targets).sum().item()
        for each, targets in zip(
            features(test).split(500), torch.tensor(test.targets).split(500), strict=True
        )
    ]
    return sum(right) / len(test)


def row(chosen: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train and evaluate one seed; return its row."""
    model, seconds = train(chosen, seed)
    bank, test = (CIFAR10(chosen.data, train=split) for split in (True, False))
    protocols = ["macl", *map(str, KNN.values())]
    result = ssl_vision.evaluate(model, train=bank, test=test, protocol=protocols, views=VIEWS)
    return {
        "run": f"seed {seed}",
        "method": "SimCLR, lightly's loop",
        "objective": "NTXentLoss",
        "temperature": TEMPERATURE,
        "seed": seed,
        "data": "CIFAR10",
        "epochs": chosen.epochs,
        "batch_size": chosen.batch,
        "width": chosen.width,
        "precision": "bf16-mixed",
        "k": 200,
        "cpu_seconds": round(seconds, 1),
        "test": {f"test/{name}": result.value(name, layer="backbone", protocol="macl") for name in METRICS}
        | {f"test/{name}/knn_top1": result.value("knn_top1", layer="backbone", protocol=name) for name in KNN}
        | {"test/lightly_knn_top1": lightly_knn(model, bank, test)},
        **provenance("torchvision", "lightly"),
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--name", default="lightly_cifar10_narrow", help="file of the rows")
    parser.add_argument("--runs_dir", type=Path, default=Path("runs/lightly_loop"), help="checkpoints")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    if any(each["epochs"] != chosen.epochs for each in rows_of(chosen.name)):
        parser.error(f"{chosen.name}.json has runs of another length: give another --name")
    for seed in chosen.seeds:
        if all(each["seed"] != seed for each in rows_of(chosen.name)):
            add_row(chosen.name, row(chosen, seed))


if __name__ == "__main__":
    main()
