"""Measure listing, decoding and training on large folders of JPEG files beside torchvision and lightly.

    python benchmarks/folders.py --folder /tmp/folders --steps 40       about half an hour on 2 cores
    python benchmarks/folders.py --folder /tmp/folders --files 20000 --images 2560 --simulated 100000

Three parts, each step in a process of its own, with its time and its largest resident memory:

- Listing: a tree of ``--files`` names in a thousand class folders (hard links to a few files), read for the
  first time and again, and a stored listing of ``--simulated`` files that is made without any.
- Decoding: files of 500 × 375 pixels, decoded to squares by one worker process of this package, and by one
  of torchvision's ImageFolder with Resize, CenterCrop and ToTensor in a DataLoader. Speed is the number of
  images for each second of CPU time of all processes; rounds alternate, and values are medians.
- Training: ``--images`` files of 256 × 192 pixels (copies of a thousand), listed, loaded, and trained on for
  ``--steps`` batches of 256 with a narrow ResNet-18 at 64 pixels, with this package and with LightlyDataset
  and lightly's SimCLRTransform. A run of this package is killed after half of the steps and continued; its
  weights are compared with those of the same run without a break.

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
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from provenance import provenance, save
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from ssl_vision.data import ImageFolder, Views
from ssl_vision.data.loading.listing import FilesOfFolder, Listing, StoredListing
from ssl_vision.encoders import ResNet
from ssl_vision.main import main as ssl_vision

BATCH = 256
SIDE = 64
SIDES = (96, 128, 224)
WIDTH = 8


def jpeg(width: int, height: int, seed: int) -> bytes:
    """Return a JPEG file of smooth colours and noise, with Pillow's default quality."""
    random = np.random.default_rng(seed)
    colours = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(colours.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    pixels = (smooth + random.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def make_images(root: Path, count: int, size: tuple[int, int], *, distinct: int) -> None:
    """Write copies of some images in up to a hundred class folders."""
    if root.exists():
        return
    contents = [jpeg(*size, seed) for seed in range(distinct)]
    for number in range(count):
        folder = root / "train" / f"c{number * 100 // count:02}"
        if number * 100 % count < 100:
            folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:07}.jpg").write_bytes(contents[number * 7919 % distinct])
    time.sleep(3)  # folders that have just changed are read again


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
    time.sleep(3)


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


def first_batch(root: Path) -> None:
    """Load one batch."""
    next(iter(data(root).train_dataloader()))


def lightly_first_batch(root: Path) -> None:
    """Load one batch with lightly."""
    next(iter(_lightly_loader(root, _square(SIDE))))


def load(root: Path, limit: int = 0, side: int = SIDE) -> None:
    """Load some batches, or all."""
    for i, _ in enumerate(data(root, side, workers=1).train_dataloader(), 1):
        if i == limit:
            break


def lightly_load(root: Path, limit: int = 0) -> None:
    """Load some batches with lightly, or all."""
    for i, _ in enumerate(_lightly_loader(root, _square(SIDE), workers=1), 1):
        if i == limit:
            break


def torchvision_load(root: Path, limit: int, side: int) -> None:
    """Load batches with torchvision."""
    dataset = datasets.ImageFolder(str(root / "train"), _square(side))
    for _ in DataLoader(dataset, batch_size=BATCH, num_workers=1):
        pass


def lightly_train(root: Path, limit: int) -> None:
    """Train with lightly's data set, transform and loss."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms.simclr_transform import SimCLRTransform

    encoder = ResNet(width=WIDTH)
    head = SimCLRProjectionHead(encoder.num_features, 64, 32)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    loss_function = NTXentLoss(temperature=0.1)
    for i, ((first, second), _, _) in enumerate(_lightly_loader(root, SimCLRTransform(input_size=SIDE)), 1):
        z1, z2 = head(encoder(first)), head(encoder(second))
        loss = loss_function(z1, z2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i == limit:
            break


def train(root: Path, limit: int, *options: str) -> None:
    """Train with this package."""
    arguments = [
        "fit", "--data=ImageFolder", f"--data.root={root}", "--data.stream=true", f"--data.image_size={SIDE}",
        f"--data.views.size={SIDE}", f"--data.batch_size={BATCH}", f"--model.encoder.width={WIDTH}",
        "--model.hidden_dim=64", "--model.output_dim=32", "--trainer.accelerator=cpu", "--seed_everything=0",
        f"--runs_dir={root.parent / 'runs'}", "--trainer.max_epochs=1",
        f"--trainer.limit_train_batches={limit}",
        "--trainer.limit_val_batches=0", "--trainer.enable_progress_bar=false", "--report=false", *options,
    ]  # fmt: skip
    if code := ssl_vision(arguments):
        sys.exit(code)


def simulate(root: Path, count: int) -> None:
    """Store a listing of files that do not exist, in folders that do."""
    shutil.rmtree(root, ignore_errors=True)
    train = root / "train"
    labels = [f"n{label:08}" for label in range(10_000)]
    for label in labels:
        (train / label).mkdir(parents=True)
    folders = {"": train.stat().st_mtime_ns}
    folders |= {f"{label}/": (train / label).stat().st_mtime_ns for label in labels}

    def files() -> Iterator[FilesOfFolder]:
        each = count // len(labels)
        for label in labels:
            names = [f"{label}_{number}.JPEG" for number in range(each)]
            yield FilesOfFolder(f"{label}/", names, [100_000] * each, [0] * each)

    stored = StoredListing(root / ".ssl_vision_cache", train, {root / "val", root / "test"})
    stored.write(Listing.of(train, files()), folders)


def _square(side: int) -> transforms.Compose:
    return transforms.Compose([transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor()])


def _lightly_loader(root: Path, transform: Any, workers: int | None = None) -> DataLoader[Any]:
    from lightly.data import LightlyDataset

    cores = len(os.sched_getaffinity(0))
    dataset = LightlyDataset(str(root / "train"), transform=transform)
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers or cores)


def measured(step: Callable[..., None], root: Path, *arguments: object) -> dict[str, Any]:
    """Run a step in processes of its own; return its seconds, CPU seconds, and peak memory in MB."""
    command = [sys.executable, __file__, "--step", step.__name__, "--folder", str(root)]
    process = subprocess.Popen(
        [*command, "--arguments", *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    memory = 0
    while process.poll() is None:
        memory = max(memory, _memory(process.pid))
        time.sleep(0.2)
    assert process.stdout is not None
    result: dict[str, Any] = json.loads(process.stdout.read().splitlines()[-1])
    result["mb"] = max(result["mb"], memory // 2**20)
    print(step.__name__, *arguments, result, flush=True)
    return result


def _memory(process: int) -> int:
    """Return the memory of a process and its children in bytes; shared pages count once."""
    try:
        folder = Path("/proc", str(process))
        lines = (folder / "smaps_rollup").read_text().splitlines()
        children = (folder / "task" / str(process) / "children").read_text().split()
    except OSError:  # it has just ended
        return 0
    own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return own + sum(_memory(int(child)) for child in children)


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
    listing, lightly_listing, first_batch, lightly_first_batch, load, lightly_load, torchvision_load, train,
    lightly_train, simulate,
)  # fmt: skip


def killed_and_continued(root: Path, steps: int) -> bool:
    """Kill a run in the middle of its epoch and continue it; return True if its weights are the same."""
    runs = root.parent / "runs"
    often = "--save_every_n_steps=2"
    measured(train, root, steps, "--name=whole", often)
    command = [sys.executable, __file__, "--step", "train", "--folder", str(root), "--arguments", str(steps)]
    process = subprocess.Popen([*command, "--name=killed", often], stdout=subprocess.DEVNULL)
    checkpoint = runs / "killed" / "checkpoints" / "last.ckpt"
    while process.poll() is None and not (checkpoint.exists() and _step(checkpoint) >= steps // 2):
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = _step(checkpoint)
    print("killed after step", reached, flush=True)
    assert 0 < reached < steps
    measured(train, root, steps, "--name=killed", often, "--ckpt_path=last")
    whole, continued = (_state(runs / name / "checkpoints" / "last.ckpt") for name in ("whole", "killed"))
    return all(torch.equal(whole[key], continued[key]) for key in whole)


def _state(checkpoint: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return state


def _step(checkpoint: Path) -> int:
    return int(torch.load(checkpoint, weights_only=True)["global_step"])


def listings(folder: Path, count: int, simulated: int) -> list[dict[str, Any]]:
    """Measure cold and warm listings."""
    names = folder / "names"
    make_names(names, count)
    shutil.rmtree(names / ".ssl_vision_cache", ignore_errors=True)
    rows = [{"listing": f"{count:,} files, first start"} | measured(listing, names)]
    rows.append({"listing": f"{count:,} files, next start"} | measured(listing, names))
    rows.append({"listing": f"{count:,} files, lightly"} | measured(lightly_listing, names))
    measured(simulate, folder / "simulated", simulated)
    row = {"listing": f"{simulated:,} simulated files, next start"}
    return [*rows, row | measured(listing, folder / "simulated")]


def decoding(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Measure images for each CPU second, at several working sizes."""
    count = 16 * BATCH
    root = folder / "decoding"
    make_images(root, count, (500, 375), distinct=64)
    rows = []
    for side in SIDES:
        seconds: dict[str, list[float]] = {"torchvision": [], "ssl_vision": []}
        for _ in range(rounds):
            for name, step in (("torchvision", torchvision_load), ("ssl_vision", load)):
                seconds[name].append(measured(step, root, 0, side)["cpu_seconds"])
        speed = {name: round(count / statistics.median(times)) for name, times in seconds.items()}
        rows.append({"side": side} | speed)
    return rows


def training(folder: Path, count: int, steps: int) -> dict[str, Any]:
    """Measure the steps of training on many files beside lightly."""
    root = folder / "training"
    make_images(root, count, (256, 192), distinct=min(count, 1000))
    for old in (root / ".ssl_vision_cache", folder / "runs"):
        shutil.rmtree(old, ignore_errors=True)
    limit = steps
    pairs: dict[str, tuple[Any, Any]] = {
        "listing, first start": ((listing,), (lightly_listing,)),
        "listing, next start": ((listing,), (lightly_listing,)),
        "first batch": ((first_batch,), (lightly_first_batch,)),
        f"loading {limit * BATCH:,} images, 1 worker": ((load, limit), (lightly_load, limit)),
        f"training on {limit * BATCH:,} images": ((train, limit, "--name=timed"), (lightly_train, limit)),
    }
    rows = [
        {"step": name} | {"ssl_vision": measured(ours, root, *own), "lightly": measured(theirs, root, *other)}
        for name, ((ours, *own), (theirs, *other)) in pairs.items()
    ]
    return {"rows": rows, "same_weights": killed_and_continued(root, steps)}


def table(record: dict[str, Any], part: str) -> str:
    """Return a Markdown table of a part: listing, decoding or training."""
    if part == "listing":
        lines = ["| listing | seconds | CPU seconds | MB |", "|---|---|---|---|"]
        lines += [f"| {row['listing']} | {_cells(row)} |" for row in record[part]]
    elif part == "decoding":
        lines = ["| side | torchvision, images/s | ssl_vision, images/s | ratio |", "|---|---|---|---|"]
        for row in record[part]:
            ratio = row["ssl_vision"] / row["torchvision"]
            lines.append(f"| {row['side']} | {row['torchvision']:,} | {row['ssl_vision']:,} | {ratio:.2f} |")
    else:
        lines = ["| step | | seconds | CPU seconds | MB |", "|---|---|---|---|---|"]
        for row in record[part]["rows"]:
            for name in ("ssl_vision", "lightly"):
                lines.append(f"| {row['step']} | {name} | {_cells(row[name])} |")
    return "\n".join(lines)


def _cells(result: dict[str, Any]) -> str:
    return f"{result['seconds']:.1f} | {result['cpu_seconds']:.1f} | {result['mb']:,}"


def main() -> None:
    """Measure, print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the generated files")
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--simulated", type=int, default=10_000_000)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=0, help="steps of training; default: one epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        run_step(options.step, options.folder, options.arguments)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = {"files": options.files, "images": options.images}
    record = (
        sizes
        | provenance("torchvision", "lightly", "pillow", "simplejpeg")
        | {
            "listing": listings(options.folder, options.files, options.simulated),
            "decoding": decoding(options.folder, options.rounds),
            "training": training(options.folder, options.images, options.steps or options.images // BATCH),
        }
    )
    for part in ("listing", "decoding", "training"):
        print(f"\n{table(record, part)}")
    save("folders", record)


if __name__ == "__main__":
    main()
