"""Compare the generation of two views of every image with lightly, torchvision and kornia.

    python benchmarks/views.py                        32 and 96 pixels on a CPU, one thread
    python benchmarks/views.py --device cuda --batch 256 1024

All generate SimCLR's views for small images, from uint8 images in memory to one batch on the device: crops of
0.08 to 1 of the area, flips, colour jitter of 0.4, 0.4, 0.4 and 0.1 with probability 0.8, grayscale with
probability 0.2, and normalisation. The variants alternate in one process, so that all have the same load. The
first call of a compiled variant includes compilation without a cache. The script prints Markdown tables and
writes benchmarks/results/views.json, or views_cuda.json.
"""

import argparse
import importlib.util
import os
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch._inductor.config
from lightly.transforms.simclr_transform import SimCLRTransform
from meter import Meter
from PIL import Image
from provenance import provenance, save
from torch import Tensor
from torch.nn import functional as F
from torchvision import transforms as v1
from torchvision.transforms import v2

from ssl_vision.data import Views

BASE = "lightly, PIL"
MEAN, STD = Views.mean, Views.std
JITTER = (0.4, 0.4, 0.4, 0.1)


def make_images(count: int, size: int) -> Tensor:
    """Draw uint8 images with smooth colours, shape (count, 3, size, size)."""
    noise = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return F.interpolate(noise, size=(size, size), mode="bicubic").clamp(0, 1).mul(255).byte()


def variants(images: Tensor, size: int, device: torch.device) -> dict[str, Callable[[], Tensor]]:
    """Return functions that generate the views of a batch, shape (2N, 3, size, size)."""
    pil = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    on_device, indices = images.to(device), torch.arange(len(images), device=device)
    lightly: Callable[[Any], Any] = SimCLRTransform(
        input_size=size,
        cj_strength=0.5,  # of (0.8, 0.8, 0.8, 0.2)
        gaussian_blur=0.0,
        normalize={"mean": list(MEAN), "std": list(STD)},
    )
    old = v1.Compose(
        [
            v1.RandomResizedCrop(size),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([v1.ColorJitter(*JITTER)], p=0.8),
            v1.RandomGrayscale(0.2),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )
    new = v2.Compose(
        [
            v2.RandomResizedCrop(size),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(*JITTER)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def batch(pairs: Iterable[Sequence[Tensor]]) -> Tensor:
        return torch.stack([view for views in zip(*pairs, strict=True) for view in views]).to(device)

    def one_by_one(transform: Callable[[Any], Tensor], source: Iterable[Any]) -> Tensor:
        return batch((transform(image), transform(image)) for image in source)

    def by_lightly() -> Tensor:
        return batch(map(lightly, pil))

    def ours(views: Views, **options: Any) -> Tensor:
        return views(on_device, indices, seed=0, epoch=0, **options)

    half = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    renderers: dict[str, Callable[[], Tensor]] = {
        BASE: by_lightly,
        "torchvision v1, PIL": partial(one_by_one, old, pil),
        "torchvision v2, uint8 tensors": partial(one_by_one, new, list(images)),
        "ssl_vision": partial(ours, Views(size=size, compile=False)),
        "ssl_vision, bf16 channels_last": partial(ours, Views(size=size, compile=False), **half),
        "ssl_vision compiled": partial(ours, Views(size=size, compile=True)),
        "ssl_vision compiled, bf16 channels_last": partial(ours, Views(size=size, compile=True), **half),
    }
    if importlib.util.find_spec("kornia"):
        for name, mode in (("kornia", "slice"), ("kornia, crop by resampling", "resample")):
            renderers[name] = kornia(on_device, size, mode)
        renderers["kornia compiled, crop by resampling"] = kornia(on_device, size, "resample", compiled=True)
    return renderers


def kornia(images: Tensor, size: int, mode: str, *, compiled: bool = False) -> Callable[[], Tensor]:
    """Return a function that calls kornia's pipeline twice for the whole batch.

    What torch.compile cannot trace in a compiled pipeline runs eagerly.
    """
    from kornia import augmentation as k

    pipeline: Callable[[Tensor], Tensor] = torch.nn.Sequential(
        k.RandomResizedCrop((size, size), scale=(0.08, 1.0), cropping_mode=mode),
        k.RandomHorizontalFlip(),
        k.ColorJitter(*JITTER, p=0.8),
        k.RandomGrayscale(p=0.2),
        k.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    ).to(images.device)
    if compiled:
        pipeline = torch.compile(pipeline, dynamic=False)

    def make() -> Tensor:
        pixels = images.float() / 255
        return torch.cat((pipeline(pixels), pipeline(pixels)))

    return make


def measure(size: int, batch: int, rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """Measure each variant: microseconds per image for both views, and the speed-up over lightly."""
    meter, renderers = Meter(device.type), variants(make_images(batch, size), size, device)
    first = meter.rounds(renderers, 1)
    seconds = meter.rounds(renderers, rounds)
    times = {name: [value / batch * 1e6 for value in values] for name, values in seconds.items()}
    rows = []
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        rows.append(
            {
                "size": size,
                "batch": batch,
                "name": name,
                "us_per_image": {
                    "median": round(median, 1),
                    "quartiles": [round(low, 1), round(high, 1)],
                    "minimum": round(min(values), 1),
                },
                "times_lightly": {
                    "median": round(statistics.median(times[BASE]) / median, 2),
                    "minimum": round(min(times[BASE]) / min(values), 2),
                },
                "first_call_seconds": round(first[name][0], 1),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| | µs per image | quartiles | minimum | × lightly | by minima | first call, s |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        time, factor = row["us_per_image"], row["times_lightly"]
        low, high = time["quartiles"]
        lines.append(
            f"| {row['name']} | {time['median']:.0f} | {low:.0f} to {high:.0f} | {time['minimum']:.0f} "
            f"| {factor['median']:.1f} | {factor['minimum']:.1f} | {row['first_call_seconds']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all sizes and batches, print the tables and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--size", type=int, nargs="+", default=[32, 96])
    parser.add_argument("--batch", type=int, nargs="+", default=[256])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(chosen.threads)
    torch._inductor.config.force_disable_caches = True
    peers = ["lightly", "torchvision", "pillow", "kornia"]
    skipped = [] if importlib.util.find_spec("kornia") else [peers.pop()]
    record = provenance(*peers, device=chosen.device.type) | {"skipped": skipped}
    print("\n".join(f"{key}: {value}" for key, value in record.items()))
    record["rows"] = []
    for size in chosen.size:
        for batch in chosen.batch:
            rows = measure(size, batch, chosen.rounds, chosen.device)
            record["rows"] += rows
            print(f"\n{size} pixels, {batch} images\n\n{table(rows)}", flush=True)
    record["load_after"] = round(os.getloadavg()[0], 2)
    print(f"\nload after: {record['load_after']}")
    save("views" if chosen.device.type == "cpu" else f"views_{chosen.device.type}", record)


if __name__ == "__main__":
    main()
