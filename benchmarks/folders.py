"""Measure listing, decoding, training and evaluation on large folders of JPEG files beside lightly.

    python benchmarks/folders.py --folder /tmp/folders           about 10 minutes of CPU time, 3 GB of disk
    python benchmarks/folders.py --folder /tmp/folders --files 70000 --images 5120

There are three parts. Each step of the first and the last runs in its own process. Recorded are its time
without imports, and the peak resident memory of the process and its workers, with shared pages counted once.

- Listing: a tree of ``--files`` names in a thousand class folders (hard links to a few files).
- Decoding: files of 500 × 375 pixels, decoded to squares by one worker process of this package, and by one
  of torchvision's ImageFolder with Resize, CenterCrop and ToTensor in a DataLoader. Speed is the number of
  images for each second of CPU time of all processes; rounds alternate, and values are medians.
- Chain: ``--images`` files of 128 × 96 pixels (hard links to a thousand), trained on at 32 pixels for
  ``--steps`` batches of 256 with a narrow ResNet-18, evaluated by kNN on 2,000 more, embedded, and reported.
  A run is killed after half of the steps and continued, and its weights are compared with those of a run
  without a break. The same network is trained, evaluated and used for embedding with LightlyDataset and
  lightly's SimCLRTransform, NTXentLoss and knn_predict, on ``--steps`` batches of images: compare the time
  per image.

The script writes benchmarks/results/folders.json.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from provenance import provenance, save
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms

from ssl_vision.data import ImageFolder, Views
from ssl_vision.encoders import ResNet
from ssl_vision.main import main as ssl_vision

BATCH = 256
SIDE = 32
SIDES = (96, 128, 224)
WIDTH = 8
DECODED = 1024
TEST = 2000


def jpeg(width: int, height: int, seed: int) -> bytes:
    """Return a JPEG file of smooth colours and noise, with Pillow's default quality."""
    random = np.random.default_rng(seed)
    colours = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(colours.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    pixels = (smooth + random.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def make_images(folder: Path, count: int, size: tuple[int, int], *, distinct: int) -> None:
    """Write files in a hundred class folders, hard links to a number of distinct ones."""
    if folder.exists():
        return
    for number in range(count):
        path = folder / f"c{number * 100 // count:02}" / f"{number:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < distinct:
            path.write_bytes(jpeg(*size, number))
        else:
            source = number * 7919 % distinct
            os.link(folder / f"c{source * 100 // count:02}" / f"{source:07}.jpg", path)


def make_names(root: Path, count: int) -> None:
    """Write hard links in a thousand class folders."""
    if root.exists():
        return
    content = jpeg(64, 48, 0)
    for label in range(1000):
        folder = root / "train" / f"n{label:08}"
        folder.mkdir(parents=True)
        first = folder / f"n{label:08}_0.JPEG"
        first.write_bytes(content)
        for number in range(1, count // 1000):
            os.link(first, folder / f"n{label:08}_{number}.JPEG")


def data(root: Path, side: int = SIDE, **options: Any) -> ImageFolder:
    """Return the data module of this package."""
    return ImageFolder(
        root=root, image_size=side, views=Views(size=side), batch_size=BATCH, seed=0, stream=True, **options
    )


def listing(root: Path) -> None:
    """List the files and make the first order of an epoch."""
    module = data(root)
    images = module.split("train")
    module.train_dataloader().sampler.rows()
    print(len(images), "files")


def lightly_listing(root: Path) -> None:
    """List the files with lightly."""
    from lightly.data import LightlyDataset

    print(len(LightlyDataset(str(root / "train"))), "files")


def load(root: Path, side: int) -> None:
    """Load all images."""
    for _ in data(root, side, workers=1).train_dataloader():
        pass


def torchvision_load(root: Path, side: int) -> None:
    """Load all images with torchvision."""
    dataset = datasets.ImageFolder(str(root / "train"), _square(side))
    for _ in DataLoader(dataset, batch_size=BATCH, num_workers=1):
        pass


def train(root: Path, steps: int, name: str, *options: str) -> None:
    """Train with this package."""
    command(
        "fit", "--data=ImageFolder", f"--data.root={root}", "--data.stream=true", f"--data.image_size={SIDE}",
        f"--data.views.size={SIDE}", f"--data.batch_size={BATCH}", f"--model.encoder.width={WIDTH}",
        "--model.hidden_dim=64", "--model.output_dim=32", "--trainer.accelerator=cpu", "--seed_everything=0",
        f"--runs_dir={root.parent / 'runs'}", f"--name={name}", "--trainer.max_epochs=1",
        f"--trainer.limit_train_batches={steps}", "--trainer.limit_val_batches=0", "--save_every_n_steps=2",
        "--trainer.enable_progress_bar=false", "--report=false", *options,
    )  # fmt: skip


def lightly_train(root: Path, steps: int) -> None:
    """Train with lightly's data set, transform and loss, and save the encoder."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms.simclr_transform import SimCLRTransform

    encoder = ResNet(width=WIDTH)
    head = SimCLRProjectionHead(encoder.num_features, 64, 32)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    loss_function = NTXentLoss(temperature=0.1)
    loader = _lightly_loader(root / "train", SimCLRTransform(input_size=SIDE), steps * BATCH)
    for (first, second), _, _ in loader:
        z1, z2 = head(encoder(first)), head(encoder(second))
        loss = loss_function(z1, z2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(encoder.state_dict(), root.parent / "lightly.pt")


def evaluate(root: Path) -> None:
    """Evaluate the killed run with kNN."""
    run = root.parent / "runs" / "killed"
    command("evaluate", str(run), "--protocol=lightly", "--baselines=false", "--report=false")


def lightly_evaluate(root: Path, steps: int) -> None:
    """Evaluate lightly's encoder by kNN."""
    from lightly.utils.benchmarking import knn_predict

    bank, labels = _lightly_features(root / "train", steps * BATCH)
    queries, truth = _lightly_features(root / "test", TEST)
    bank, queries = (nn.functional.normalize(each, dim=1) for each in (bank, queries))
    k = min(200, len(bank))
    nearest = [knn_predict(part, bank.T, labels, 100, knn_k=k) for part in queries.split(BATCH)]
    print((torch.cat(nearest)[:, 0] == truth).float().mean())


def embed(root: Path) -> None:
    """Write the features of all files."""
    run, output = root.parent / "runs" / "killed", root.parent / "features.npz"
    command("embed", str(root / "train"), f"--weights={run}", f"--output={output}")


def lightly_embed(root: Path, steps: int) -> None:
    """Write features with lightly."""
    features, labels = _lightly_features(root / "train", steps * BATCH)
    np.savez(root.parent / "lightly.npz", features=features.numpy(), labels=labels.numpy())


def report(root: Path) -> None:
    """Write the report of the run that was killed."""
    command("report", str(root.parent / "runs" / "killed"))


def command(*arguments: str) -> None:
    """Run a command of this package."""
    if code := ssl_vision(arguments):
        sys.exit(code)


def _square(side: int) -> transforms.Compose:
    return transforms.Compose([transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor()])


def _lightly_loader(folder: Path, transform: Any, limit: int) -> DataLoader[Any]:
    from lightly.data import LightlyDataset

    dataset: Any = LightlyDataset(str(folder), transform=transform)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:limit]
    workers = len(os.sched_getaffinity(0))
    return DataLoader(Subset(dataset, order.tolist()), batch_size=BATCH, num_workers=workers)


@torch.inference_mode()
def _lightly_features(folder: Path, limit: int) -> tuple[Tensor, Tensor]:
    encoder = ResNet(width=WIDTH).eval()
    encoder.load_state_dict(torch.load(folder.parent.parent / "lightly.pt"))
    batches = [
        (encoder(images), labels) for images, labels, _ in _lightly_loader(folder, _square(SIDE), limit)
    ]
    features, labels = zip(*batches, strict=True)
    return torch.cat(features), torch.cat(labels)


def measured(step: Callable[..., None], root: Path, *arguments: object) -> dict[str, Any]:
    """Run a step in a process of its own; return its seconds, CPU seconds, and peak memory in MB."""
    process = started(step, root, *arguments)
    memory = 0
    while process.poll() is None:
        memory = max(memory, _memory(process.pid))
        time.sleep(0.5)
    assert process.stdout is not None
    result: dict[str, Any] = json.loads(process.stdout.read().splitlines()[-1])
    result["mb"] = max(result["mb"], memory // 2**20)
    print(step.__name__, *arguments, result, flush=True)
    return result


def started(step: Callable[..., None], root: Path, *arguments: object) -> "subprocess.Popen[str]":
    """Start a step in a process of its own."""
    line = [sys.executable, __file__, "--step", step.__name__, "--folder", str(root)]
    return subprocess.Popen([*line, "--arguments", *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def _memory(process: int) -> int:
    """Return the memory of a process and its children in bytes; shared pages count once."""
    try:
        folder = Path("/proc", str(process))
        lines = (folder / "smaps_rollup").read_text().splitlines()
        children = (folder / "task" / str(process) / "children").read_text().split()
    except OSError:  # it has just ended
        return 0
    proportional = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return proportional + sum(_memory(int(child)) for child in children)


def run_step(name: str, root: Path, arguments: list[str]) -> None:
    """Run a step and print its measurements as JSON; the imports of this file are not timed."""
    steps = {step.__name__: step for step in STEPS}
    started, before = time.perf_counter(), _cpu_seconds()
    steps[name](root, *(int(each) if each.isdigit() else each for each in arguments))
    seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": round(seconds, 2), "cpu_seconds": round(cpu_seconds, 2), "mb": memory}))


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


STEPS: tuple[Callable[..., None], ...] = (
    listing, lightly_listing, train, lightly_train, evaluate, lightly_evaluate, embed,
    lightly_embed, report,
)  # fmt: skip


def kill(root: Path, steps: int) -> int:
    """Start a run and kill it in the middle of its epoch; return the steps of its last checkpoint."""
    process = started(train, root, steps, "killed")
    checkpoint = root.parent / "runs" / "killed" / "checkpoints" / "last.ckpt"
    while process.poll() is None and not (checkpoint.exists() and _step(checkpoint) >= steps // 2):
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = _step(checkpoint)
    print("killed after step", reached, flush=True)
    if not 0 < reached < steps:
        raise RuntimeError(f"the run was killed after step {reached} of {steps}; set more --steps")
    return reached


def _state(checkpoint: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return state


def _step(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True)["global_step"])


def listings(folder: Path, count: int) -> list[dict[str, Any]]:
    """Measure listings of both libraries."""
    names = folder / "names"
    make_names(names, count)
    rows = [{"listing": f"{count:,} files"} | measured(listing, names)]
    return [*rows, {"listing": f"{count:,} files, lightly"} | measured(lightly_listing, names)]


def decoding(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Measure images for each CPU second, at several working sizes."""
    root = folder / "decoding"
    make_images(root / "train", DECODED, (500, 375), distinct=64)
    rows = []
    for side in SIDES:
        seconds: dict[str, list[float]] = {"torchvision": [], "ssl_vision": []}
        for _ in range(rounds):
            for name, step in (("torchvision", torchvision_load), ("ssl_vision", load)):
                before = _cpu_seconds()
                step(root, side)
                seconds[name].append(_cpu_seconds() - before)
        rows.append({"side": side} | {name: DECODED / statistics.median(s) for name, s in seconds.items()})
        print(rows[-1], flush=True)
    return rows


def chain(folder: Path, count: int, steps: int) -> dict[str, Any]:
    """Measure all steps from the first listing to the report beside lightly."""
    root, few = folder / "chain", steps * BATCH
    make_images(root / "train", count, (128, 96), distinct=min(count, 1000))
    make_images(root / "test", TEST, (128, 96), distinct=TEST)
    for old in (root / ".ssl_vision_cache", folder / "runs"):
        shutil.rmtree(old, ignore_errors=True)
    rows: list[dict[str, Any]] = []

    def add(step: str, library: str, images: int, function: Callable[..., None], *arguments: object) -> None:
        about = {"step": step, "library": library, "images": images}
        rows.append(about | measured(function, root, *arguments))

    add("listing", "ssl_vision", count, listing)
    add("listing", "lightly", count, lightly_listing)
    add("training", "ssl_vision", few, train, steps, "whole")
    reached = kill(root, steps)
    add(
        "continued after a kill",
        "ssl_vision",
        few - reached * BATCH,
        train,
        steps,
        "killed",
        "--ckpt_path=last",
    )
    add("training", "lightly", few, lightly_train, steps)
    add("evaluation, kNN", "ssl_vision", count + TEST, evaluate)
    add("evaluation, kNN", "lightly", few + TEST, lightly_evaluate, steps)
    add("features of the folder", "ssl_vision", count, embed)
    add("features of the folder", "lightly", few, lightly_embed, steps)
    add("report", "ssl_vision", TEST, report)
    uninterrupted, continued = (
        _state(folder / "runs" / name / "checkpoints/last.ckpt") for name in ("whole", "killed")
    )
    return {
        "rows": rows,
        "same_weights": all(torch.equal(uninterrupted[key], continued[key]) for key in uninterrupted),
    }


def table(record: dict[str, Any]) -> str:
    """Return the Markdown tables of all parts."""
    lines = ["| listing | seconds | CPU seconds | MB |", "|---|---|---|---|"]
    lines += [f"| {row['listing']} | {_cells(row)} |" for row in record["listing"]]
    lines += [
        "",
        "| pixels of the square | torchvision, images/s | ssl_vision, images/s | ratio |",
        "|---|---|---|---|",
    ]
    for row in record["decoding"]:
        rate, peer_rate = row["ssl_vision"], row["torchvision"]
        lines.append(f"| {row['side']} | {peer_rate:,.0f} | {rate:,.0f} | {rate / peer_rate:.2f} |")
    lines += ["", "| step | library | images | seconds | CPU seconds | MB | CPU ms per image |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in record["chain"]["rows"]:
        each = f"{1000 * row['cpu_seconds'] / row['images']:.2f}"
        lines.append(f"| {row['step']} | {row['library']} | {row['images']:,} | {_cells(row)} | {each} |")
    return "\n".join(lines)


def _cells(result: dict[str, Any]) -> str:
    return f"{result['seconds']:.1f} | {result['cpu_seconds']:.1f} | {result['mb']:,}"


def main() -> None:
    """Measure, print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the generated files")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20, help="steps of training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        run_step(options.step, options.folder, options.arguments)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    record = provenance("torchvision", "lightly", "pillow", "simplejpeg") | {
        "listing": listings(options.folder, options.files),
        "decoding": decoding(options.folder, options.rounds),
        "chain": chain(options.folder, options.images, options.steps),
    }
    print(f"\n{table(record)}\nsame weights after the kill: {record['chain']['same_weights']}")
    save("folders", record)


if __name__ == "__main__":
    main()
