"""Estimate how long an epoch takes on a GPU from counted work and published figures; no GPU is needed.

    python benchmarks/roofline.py                                           every GPU of the table
    python benchmarks/roofline.py --gpu A100                                one of them
    python benchmarks/roofline.py --peak 400 --bandwidth 3.5 --launch 5     another one

An epoch takes at least as long as its arithmetic at the peak rate, its memory traffic at the peak bandwidth,
and its kernel launches one after the other. The estimate is the longest of the three, so it is a lower bound.

- Arithmetic is counted by ``FlopCounterMode`` on a training step of fake tensors at the real batch size. Only
  the objective runs on real embeddings, because on a CPU it reads its temperature.
- Memory traffic: each ATen operation reads its inputs and writes its outputs once. A compiled encoder moves
  only what convolutions, matrix products and BatchNorm read and write, compiled views only what enters and
  leaves them. All other operations are assumed to be fused with these.
- Launches are those of tests/device/launches.json, counted for Adam at batch 64. A CUDA graph is one launch.

Without options, the same estimate for this CPU is compared with the steps and epochs in benchmarks/results/,
and the record is written to benchmarks/results/roofline.json. A CPU's figures are the fastest of several
matrix products, copies and additions, and its launches are the ATen operations of a step.
"""

import argparse
import functools
import json
import statistics
import timeit
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse.typing import PositiveFloat
from provenance import RESULTS, provenance, save
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from traffic import Traffic, size

from ssl_vision.cli.config_objects import built
from ssl_vision.data import Views
from ssl_vision.encoders import ResNet
from ssl_vision.methods import Method, SimCLR

ROOT = Path(__file__).parents[1]
IMAGES = 50_000  # of CIFAR-10


@dataclass(frozen=True)
class Device:
    """Peak of dense bfloat16 arithmetic in TFLOP/s, memory bandwidth in TB/s, µs a launch, and source.

    The time of a launch depends on the host. The default was measured on that of an H100: 16.2 ms for the 411
    launches of a step (step_cuda.json, launches.json).
    """

    peak: float
    bandwidth: float
    launch: float = 39.0
    source: str = ""


GPUS = {
    "H200": Device(989.5, 4.8, source="NVIDIA H200 data sheet, SXM; half of the rate with sparsity"),
    "H100": Device(989.5, 3.35, source="NVIDIA H100 data sheet, SXM; half of the rate with sparsity"),
    "A100": Device(312, 2.039, source="NVIDIA A100 80GB data sheet, SXM"),
    "RTX 4090": Device(165.2, 1.008, source="NVIDIA Ada GPU architecture whitepaper; float32 accumulation"),
    "T4": Device(65, 0.32, source="NVIDIA T4 data sheet; float16, as it has no bfloat16 arithmetic"),
}

GRAPH = "graph, adam, bf16-mixed"
GRAPHED = "one CUDA graph per step"
# Key in the record of launches, whether views are compiled, and whether the encoder is.
CASES = {
    "eager": ("infonce", False, False),
    "compiled views": ("compiled views", True, False),
    "compiled views and encoder": ("compiled views and encoder", True, True),
    "`cuda_graph`": (GRAPH, False, False),
}
# Files of configs/pretrain, images in a batch, and cases.
CONFIGS = [
    *(("cifar10", batch, case) for batch in (256, 1024) for case in CASES),
    ("cifar10_speedrun", 512, "compiled views and encoder"),
]
# Operations of a compiled network that read and write memory.
KEPT = {*flop_registry, torch.ops.aten.native_batch_norm, torch.ops.aten.native_batch_norm_backward}


def counted(model: Method, views: Views, batch: int, case: str = "eager") -> dict[str, int]:
    """Return FLOPs, bytes and ATen operations ("launches") of a step; the weights do not change."""
    _, compiled_views, compiled_encoder = CASES[case]
    optimizer = model.optimizer_rule.optimizer(model)
    for group in optimizer.param_groups:
        group["fused"] = True  # as on a GPU
    rendering, network, objective, update = (Traffic() for _ in range(4))
    embeddings = torch.randn(2, batch, model.output_dim).bfloat16().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        with objective:
            model.objective(*embeddings).backward()
        with FakeTensorMode(allow_non_fake_inputs=True):
            pixels = torch.zeros(batch, 3, views.size, views.size, dtype=torch.uint8)
            views, rows = replace(views, compile=False), torch.arange(batch)
            with rendering:
                pair = views(pixels, rows, seed=0, epoch=0, dtype=torch.bfloat16)
            with network:
                with torch.autocast("cpu", torch.bfloat16):
                    both = model.embed_views(pair).embeddings
                both.backward(torch.empty_like(both))
            optimizer.step()  # makes the optimizer's state
            with update:
                optimizer.step()
            moved = size([pixels, pair]) if compiled_views else rendering.bytes
            kept = sum(each.bytes for each in network.operations if each.function in KEPT)
            moved += kept if compiled_encoder else network.bytes
    operations = sum(len(part.operations) for part in (rendering, network, objective, update))
    moved += objective.bytes + update.bytes
    return {"flops": counter.get_total_flops(), "bytes": moved, "launches": operations}


def on_gpu(model: Method, views: Views, batch: int, case: str) -> dict[str, int]:
    """Return FLOPs, bytes and launches of a training step on a GPU."""
    key = CASES[case][0]
    recorded = json.loads((ROOT / "tests/device/launches.json").read_text())["launches"]
    return counted(model, views, batch, case) | {"launches": recorded[key] + (key == GRAPH)}


def bound(work: Mapping[str, Any], device: Device) -> tuple[str, float]:
    """Return which of arithmetic, memory and launches takes longest on a device, and its seconds."""
    arithmetic, memory = work["flops"] / device.peak / 1e12, work["bytes"] / device.bandwidth / 1e12
    times = {"arithmetic": arithmetic, "memory": memory, "launches": work["launches"] * device.launch / 1e6}
    return max(times.items(), key=lambda each: each[1])


def epochs() -> list[dict[str, Any]]:
    """Return the work of an epoch of each of `CONFIGS`."""
    rows = []
    for name, batch, case in CONFIGS:
        file = ROOT / f"configs/pretrain/{name}.yaml"
        config = yaml.safe_load(file.read_text())
        model = built(
            pl.LightningModule, "model", config | {"seed_everything": 0}, where=file, allow_class=()
        )
        step = on_gpu(model, Views(**config["data"]["init_args"].get("views", {})), batch, case)
        work = {key: IMAGES // batch * value for key, value in step.items()}
        rows.append({"config": name, "batch": batch, "case": case, **work})
    return rows


@functools.cache
def this_cpu(threads: int) -> Device:
    """Measure this CPU: a bfloat16 matrix product, a copy, and an addition of two numbers."""
    torch.set_num_threads(threads)
    matrix, (block, target), scalar = torch.ones(2048, 2048).bfloat16(), torch.ones(2, 2**26), torch.ones(1)

    def fastest(call: Callable[[], Any], repeats: int = 300) -> float:
        return min(timeit.repeat(call, number=1, repeat=repeats))

    peak = 2 * 2048**3 / fastest(lambda: matrix @ matrix) / 1e12
    bandwidth = 2 * block.nbytes / fastest(lambda: target.copy_(block)) / 1e12
    launch = 1e6 * fastest(lambda: scalar + scalar, 10_000)
    return Device(round(peak, 3), round(bandwidth, 4), round(launch, 2), "measured")


def comparisons() -> list[dict[str, Any]]:
    """Return work and times of measured steps and epochs in bfloat16, on this CPU or a GPU of the table."""
    rows = []
    for file in sorted([*RESULTS.glob("step_*.json"), *RESULTS.glob("epoch_*.json")]):
        record = json.loads(file.read_text())
        options = {"precision": "bf16-mixed", "stem": "small", "size": 32} | record["options"]
        gpus = [gpu for name, gpu in GPUS.items() if name in record["device"]]
        is_this_cpu = record["device"] == "cpu" and record["processor"] == provenance()["processor"]
        if options["precision"] != "bf16-mixed" or not (gpus or is_this_cpu):
            continue
        model = SimCLR(encoder=partial(ResNet, width=options["width"], stem=options["stem"]))
        step = partial(on_gpu, case="compiled views and encoder" if options["compile_mode"] else "eager")
        work = (step if gpus else counted)(model, Views(size=options["size"]), options["batch"])
        steps = options["images"] // options["batch"] if "seconds" in record else 1
        device = gpus[0] if gpus else this_cpu(record["threads"])
        for name, measured in seconds(record).items():
            launches = work["launches"] if name != GRAPHED else 1
            done = {key: steps * value for key, value in (work | {"launches": launches}).items()}
            median = statistics.median(measured)
            label = f"{file.stem}, {name}" if name else file.stem
            rows.append({"measurement": label, **done, "device": asdict(device), "seconds": median})
    return rows


def seconds(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the measured times of a step or an epoch with this package, by "" or `GRAPHED`."""
    if "bare_ms" in record:
        milliseconds = {"": record["bare_ms"]}
        milliseconds |= {GRAPHED: record["graph_ms"]} if "graph_ms" in record else {}
        return {name: [value / 1e3] for name, value in milliseconds.items()}
    if record["options"].get("cuda_graph"):
        return {GRAPHED: record["seconds"]["ssl_vision"]}
    names = {"": "ssl_vision", GRAPHED: f"ssl_vision, {GRAPHED}"}
    return {name: record["seconds"][key] for name, key in names.items() if key in record["seconds"]}


def estimates(rows: list[dict[str, Any]], gpus: Mapping[str, Device]) -> str:
    """Return a table of an epoch's work, and of its time on each GPU."""
    lines = [f"| configuration | batch | case | TFLOP | TB | launches | {' | '.join(gpus)} |"]
    lines.append("|---" * (6 + len(gpus)) + "|")
    for row in rows:
        bounds = [bound(row, gpu) for gpu in gpus.values()]
        times = " | ".join(f"{time:.2f} s, {name}" for name, time in bounds)
        work = f"{row['flops'] / 1e12:.0f} | {row['bytes'] / 1e12:.2f} | {row['launches']:,}"
        lines.append(f"| {row['config']} | {row['batch']:,} | {row['case']} | {work} | {times} |")
    return "\n".join(lines)


def shown(duration: float) -> str:
    """Return a duration in seconds, or in milliseconds below 0.1 s."""
    return f"{duration:.2f} s" if duration >= 0.1 else f"{1e3 * duration:.1f} ms"


def table(record: dict[str, Any]) -> str:
    """Return three tables: the GPUs' figures, the estimates, and their comparison with measurements."""
    figures = ["| GPU | TFLOP/s | TB/s | µs a launch | source |", "|---|---|---|---|---|"]
    figures += [f"| {name} | {' | '.join(map(str, asdict(gpu).values()))} |" for name, gpu in GPUS.items()]
    lines = ["| measurement | TFLOP/s | TB/s | µs an operation | estimate | measured | ratio |"]
    lines.append("|---" * 7 + "|")
    for row in record["comparisons"]:
        device = Device(**row["device"])
        name, estimate = bound(row, device)
        lines.append(
            f"| {row['measurement']} | {device.peak} | {device.bandwidth} | {device.launch} "
            f"| {shown(estimate)}, {name} | {shown(row['seconds'])} | {row['seconds'] / estimate:.2f} × |"
        )
    return "\n\n".join(["\n".join(figures), estimates(record["epochs"], GPUS), "\n".join(lines)])


def main() -> None:
    """Print the tables; without options, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpu", choices=GPUS, help="a GPU of the table")
    for name, unit in {"peak": "TFLOP/s", "bandwidth": "TB/s", "launch": "µs a launch"}.items():
        parser.add_argument(f"--{name}", type=PositiveFloat, help=f"{unit}, instead of the table's")
    options = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    if not options:
        record = provenance() | {"epochs": epochs(), "comparisons": comparisons()}
        save("roofline", record)
        print(table(record))
        return
    name = options.pop("gpu", None)
    if name is None and not {"peak", "bandwidth"} <= options.keys():
        parser.error("give --gpu, or --peak and --bandwidth")
    print(estimates(epochs(), {name or "GPU": replace(GPUS[name], **options) if name else Device(**options)}))


if __name__ == "__main__":
    main()
