"""Profile a training step that is one CUDA graph, kernel by kernel, and time changes to it.

    python benchmarks/profile_step.py                                     all parts, minutes on an H100
    python benchmarks/profile_step.py --only ceilings convolutions        some of them

The step is that of ``ssl-vision fit`` with configs/pretrain/cifar10_gpu.yaml: 256 images of 32 pixels, two
views, ResNet-18, InfoNCE and Adam. A part that fails does not stop the others:

- ceilings: bandwidth of a copy and rate of a matrix product;
- convolutions: time and rate of each convolution of the network, with and without cuDNN's benchmark mode, and
  of the first one with padded channels;
- step: time of a replay, and of every kernel in it, with the operation that launched it and its shapes;
- streams: replays of one, two and three networks at the same time;
- logging: what it costs to read loss and statistics at every tenth step;
- options: time of a replay and number of its kernels, without and with each option that may make a step
  faster: cuDNN's benchmark mode, a compiled loss, and kernels that Inductor combines or tunes.

The script writes benchmarks/results/NAME.json.
"""

import argparse
import json
import statistics
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

import torch
from provenance import provenance, save
from torch.nn.functional import conv2d

from ssl_vision.data import Batch, Views
from ssl_vision.data.augment.random_views import EpochViews
from ssl_vision.encoders import ResNet
from ssl_vision.methods import SimCLR
from ssl_vision.methods.cuda_graph import GraphedTraining

CONVOLUTIONS = [  # channels in and out, pixels, stride, kernel, how often in the network
    (3, 64, 32, 1, 3, 1), (4, 64, 32, 1, 3, 0), (8, 64, 32, 1, 3, 0), (64, 64, 32, 1, 3, 4),
    (64, 128, 32, 2, 3, 1), (64, 128, 32, 2, 1, 1), (128, 128, 16, 1, 3, 3),
    (128, 256, 16, 2, 3, 1), (128, 256, 16, 2, 1, 1), (256, 256, 8, 1, 3, 3),
    (256, 512, 8, 2, 3, 1), (256, 512, 8, 2, 1, 1), (512, 512, 4, 1, 3, 3),
]  # fmt: skip
GROUPS = {
    "weight gradient": ("wgrad",),
    "data gradient": ("dgrad",),
    "convolution": ("fprop", "conv"),
    "reductions, compiled": ("triton_red", "triton_per"),
    "elementwise, compiled": ("triton_poi",),
    "objective": ("_sums_kernel", "_gradient_kernel"),
    "views": ("embeddingbag",),
    "optimizer": ("fused_adam",),
    "products": ("gemm", "nvjet"),
    "copies": ("mem",),
}
"""Kinds of kernels, with texts of which their names contain one; a kernel is of the first kind that fits."""

TUNED = {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}
OPTIONS: dict[str, tuple[bool, dict[str, Any]]] = {
    "none": (False, {}),
    "benchmark": (True, {}),
    "compile_loss": (False, {"compile_loss": True}),
    "combo_kernels": (False, {"compile_loss": True, "compile_options": {"combo_kernels": True}}),
    "tuned": (False, {"compile_options": TUNED}),
    "all": (True, {"compile_loss": True, "compile_options": {"combo_kernels": True, **TUNED}}),
}
"""Value of cuDNN's benchmark mode, and options of the method."""

Rows = list[dict[str, Any]]


def milliseconds(call: Callable[[], Any], repeats: int = 20, warm: int = 3) -> float:
    """Return the median time of a call between CUDA events."""
    for _ in range(warm):
        call()
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in marks))


def seconds(call: Callable[[], Any]) -> float:
    """Return the time until the device has finished what a call has launched."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def ceilings(chosen: argparse.Namespace) -> dict[str, float]:
    """Measure the bandwidth of a copy, read and written, and the rate of a bfloat16 product."""
    source, target = torch.ones(2, 2**28, device="cuda")
    a, b = torch.randn(2, 8192, 8192, dtype=torch.bfloat16, device="cuda")
    copy, product = milliseconds(lambda: target.copy_(source)), milliseconds(lambda: a @ b)
    return {"copy_tb_s": 2 * source.nbytes / copy / 1e9, "matmul_tflop_s": 2 * 8192**3 / product / 1e9}


def convolutions(chosen: argparse.Namespace) -> Rows:
    """Time forward pass, data gradient and weight gradient of each convolution."""
    rows, n = [], 2 * chosen.batch

    def tensor(*shape: int) -> torch.Tensor:
        made = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        return made.to(memory_format=torch.channels_last)

    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        for i, o, size, stride, kernel, count in CONVOLUTIONS:
            x, w, y = (
                tensor(n, i, size, size),
                tensor(o, i, kernel, kernel),
                tensor(n, o, size // stride, size // stride),
            )
            options = ([0], [stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1)
            backward = partial(torch.ops.aten.convolution_backward, y, x, w, *options)
            calls = {
                "forward": partial(conv2d, x, w, stride=stride, padding=kernel // 2),
                "data": partial(backward, [True, False, False]),
                "weight": partial(backward, [False, True, False]),
            }
            if i < 64:
                del calls["data"]  # images have no gradient
            flops = 2 * n * (size // stride) ** 2 * i * o * kernel**2
            for name, call in calls.items():
                us = 1e3 * milliseconds(call, repeats=10, warm=2)
                rows.append({
                    "convolution": f"{i}-{o} {kernel}x{kernel} /{stride} {size}px",
                    "pass": name, "count": count,
                    "benchmark": benchmark, "us": round(us, 1), "tflop_s": round(flops / us / 1e6, 1),
                })  # fmt: skip
    torch.backends.cudnn.benchmark = False
    return rows


class Step:
    """A training step on a fixed batch.

    Args:
        chosen: options of the script.
        seed: seed of weights and images.
        **options: options of the method.
    """

    def __init__(self, chosen: argparse.Namespace, seed: int = 0, **options: Any) -> None:
        device = torch.device("cuda")
        encoder = partial(ResNet, width=chosen.width)
        self.model = SimCLR(encoder=encoder, seed=seed, compile_mode="default", **options).to(device)
        self.model.setup("fit")
        optimizer = self.model.optimizer_rule.optimizer(self.model, capturable=True)
        views = EpochViews(lambda epoch: Views(size=chosen.size), seed=0, dtype=torch.bfloat16, device=device)
        views.set_epoch(0)
        self.graphed = GraphedTraining(self.model, optimizer, views=views)
        pixels = torch.randint(0, 256, (chosen.batch, 3, chosen.size, chosen.size), dtype=torch.uint8)
        rows = torch.arange(chosen.batch, device=device)
        self.batch = Batch(pixels.to(device), rows, rows)

    def __call__(self) -> torch.Tensor:
        """Run the step: eagerly at first, then as a recording."""
        with torch.autocast("cuda", torch.bfloat16):
            return self.graphed(self.batch)

    def replay(self) -> Callable[[], None]:
        """Record the step, if it has not been, and return the function that launches it."""
        while self.graphed._recorded is None:
            self()
        torch.cuda.synchronize()
        return self.graphed._recorded[1]


def kernels(call: Callable[[], Any], times: int) -> list[Rows]:
    """Return the kernels of each graph launch, or of all calls together, with the operation of each."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiled:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    events = [event | {"args": event.get("args", {})} for event in events]
    operations = {each["args"].get("External id"): each for each in events if each.get("cat") == "cpu_op"}
    found = [each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    found.sort(key=lambda each: float(each["ts"]))
    graph = 10 * len({each["args"].get("correlation") for each in found}) < len(found)
    launches: dict[Any, Rows] = defaultdict(list)
    for each in found:
        operation = operations.get(each["args"].get("External id"), {"args": {}})
        launches[each["args"].get("correlation") if graph else 0].append({
            "name": each["name"], "start": each["ts"], "us": each["dur"],
            "op": operation.get("name", ""), "shapes": str(operation["args"].get("Input Dims", ""))[:60],
        })  # fmt: skip
    return [each for each in launches.values() if len(each) > 50]


def step(chosen: argparse.Namespace) -> dict[str, Any]:
    """Time a replay and describe its kernels; operations and shapes are those of an eager step."""
    one = Step(chosen)
    start = seconds(one)
    eager = kernels(one, 1)
    replay = one.replay()
    record: dict[str, Any] = {"first_step_s": start, "replay_ms": milliseconds(replay, repeats=100)}
    begin = time.perf_counter()
    for _ in range(100):
        one()
    record["host_ms"] = 10 * (time.perf_counter() - begin)
    record["loop_ms"] = 10 * seconds(lambda: [one() for _ in range(100)])
    replays = kernels(replay, 10)
    if not (replays and eager):
        return record | {"note": "the profiler returned no kernels"}
    length = statistics.mode(map(len, replays))
    replays = [each for each in replays if len(each) == length]
    record["kernels"] = described(replays, eager[0])
    record["eager_kernels"] = len(eager[0])
    return record | {"groups": grouped(record["kernels"])}


def described(replays: list[Rows], eager: Rows) -> Rows:
    """Return a row for each kernel of a replay: medians of its time and of the gap before it, in µs.

    Args:
        replays: kernels of several replays.
        eager: kernels of an eager step, which has the same ones in the same order, and a few more.
    """
    ours, others = ([str(each["name"]) for each in rows] for rows in (replays[0], eager))
    blocks = SequenceMatcher(None, others, ours, autojunk=False).get_matching_blocks()
    origin = {b + i: eager[a + i] for a, b, count in blocks for i in range(count)}
    rows = []
    for i, first in enumerate(replays[0]):
        gaps = [each[i]["start"] - each[i - 1]["start"] - each[i - 1]["us"] if i else 0.0 for each in replays]
        rows.append({
            "name": first["name"][:45] + "…" * (len(first["name"]) > 70) + first["name"][45:][-24:],
            "us": round(statistics.median(each[i]["us"] for each in replays), 2),
            "gap": round(statistics.median(gaps), 2),
            "op": origin[i]["op"][:40] if i in origin else "",
            "shapes": origin[i]["shapes"] if i in origin else "",
        })  # fmt: skip
    return rows


def grouped(rows: Rows) -> dict[str, dict[str, float]]:
    """Sum kernels, milliseconds and gaps by kind, the longest first."""
    sums: dict[str, dict[str, float]] = {}
    for row in rows:
        name = row["name"].lower()
        kind = next((kind for kind, texts in GROUPS.items() if any(text in name for text in texts)), "other")
        total = sums.setdefault(kind, {"kernels": 0, "ms": 0.0, "gap_ms": 0.0})
        total["kernels"] += 1
        total["ms"] += row["us"] / 1e3
        total["gap_ms"] += row["gap"] / 1e3
    return dict(sorted(sums.items(), key=lambda item: -item[1]["ms"]))


def streams(chosen: argparse.Namespace) -> dict[str, float]:
    """Time a step of each of one, two and three networks, replayed on a stream each."""
    replays = [Step(chosen, seed).replay() for seed in range(3)]
    lanes = [torch.cuda.Stream() for _ in replays]

    def run(count: int) -> None:
        for _ in range(100):
            for replay, lane in zip(replays[:count], lanes, strict=False):
                with torch.cuda.stream(lane):
                    replay()

    return {f"{count}_ms": 10 * seconds(partial(run, count)) for count in (1, 2, 3)}


def logging(chosen: argparse.Namespace) -> dict[str, float]:
    """Time a step if loss and statistics are read at every tenth step, and if they never are."""
    one = Step(chosen)
    one.replay()
    objective: Any = one.model.objective

    def run(every: int) -> None:
        for number in range(1, 201):
            loss = one()
            if number % every == 0:
                for value in (loss, *objective.statistics().values()):
                    value.cpu()

    return {f"every_{every}_ms": 5 * seconds(partial(run, every)) for every in (1000, 10)}


def options(chosen: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Time a replay with each option, and count its kernels."""
    record = {}
    for name, (benchmark, settings) in OPTIONS.items():
        start = time.perf_counter()
        torch.backends.cudnn.benchmark = benchmark
        replay = Step(chosen, **settings).replay()
        torch.backends.cudnn.benchmark = False
        record[name] = {
            "replay_ms": milliseconds(replay, repeats=100),
            "kernels": sum(map(len, kernels(replay, 1))),
            "start_s": round(time.perf_counter() - start, 1),
        }
    return record


PARTS = {each.__name__: each for each in (ceilings, convolutions, step, streams, logging, options)}


def main() -> None:
    """Run the parts and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--name", default="profile_step", help="name of the file of results")
    chosen = parser.parse_args()
    record = provenance(device="cuda") | {"options": vars(chosen), "seconds": {}}
    for part in chosen.only:
        start = time.perf_counter()
        try:
            record[part] = PARTS[part](chosen)
        except Exception as error:
            traceback.print_exc()
            record[part] = {"error": f"{type(error).__name__}: {error}"[:500]}
        record["seconds"][part] = round(time.perf_counter() - start, 1)
        shown = record[part]
        if part == "step":
            shown = {key: each for key, each in shown.items() if key != "kernels"}
        print(part, json.dumps(shown)[:1500], flush=True)
        torch.cuda.empty_cache()
    save(chosen.name, record)


if __name__ == "__main__":
    main()
