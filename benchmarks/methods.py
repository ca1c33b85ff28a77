"""Compare the step of each method with the same step built from lightly, and the memory of a long queue.

    python benchmarks/methods.py                                on the CPU
    python benchmarks/methods.py --device cuda --width 64 --batch 256
    python benchmarks/methods.py --parts queue                  the queue only

Both implementations train one ResNet-18 on the same random views, which are generated before the measurement.
A step consists of forward passes, loss, backward pass, Adam, the update of the momentum network, and the
queue. The rounds alternate, and the table contains medians and their ratio. The queue is measured with N
embeddings of 128 dimensions against K keys, forward and backward. The script writes
benchmarks/results/methods_<device>.json.
"""

import argparse
import copy
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightly.loss import NTXentLoss
from lightly.models.utils import update_momentum
from meter import Meter
from provenance import provenance, save
from torch import Tensor, nn

from ssl_vision.data import Batch
from ssl_vision.encoders import ResNet
from ssl_vision.methods import Method, MoCo, SimCLR, SimCo, SimMoCo
from ssl_vision.methods.moco import KeyQueue
from ssl_vision.objectives import InfoNCE

Step = Callable[[], None]
WIDTH_OF_KEYS = 128
METHODS: dict[str, Callable[..., Method]] = {
    "SimCLR": lambda **options: SimCLR(objective=InfoNCE(), bn="per_view", **options),
    "SimCo": lambda **options: SimCo(objective=InfoNCE(), **options),
    "SimMoCo": lambda **options: SimMoCo(objective=InfoNCE(), **options),
    "MoCo v2": MoCo,
    "MoCo v2, symmetric": lambda **options: MoCo(symmetric=True, bn="per_view", **options),
}
PEERS = ("SimCLR", "MoCo v2", "MoCo v2, symmetric")
"""Methods that lightly's building blocks and examples have, too."""


def our_step(method: Method, views: Tensor) -> Step:
    """Return a training step of a method."""
    optimizer = method.optimizer_rule.optimizer(method)
    images = len(views) // 2
    rows = torch.arange(images, device=views.device)
    batch = Batch(torch.empty(images, 0, device=views.device), rows, rows, views)

    def step() -> None:
        loss = method.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        method.after_backward()
        optimizer.step()
        method.after_update()

    return step


def lightly_step(method: Method, views: Tensor, name: str, queue: int) -> Step:
    """Return the same step, written as in lightly's examples, with the networks of a method."""
    backbone, head = method.backbone, method.head
    slow_backbone, slow_head = (copy.deepcopy(part).requires_grad_(False) for part in (backbone, head))
    optimizer = method.optimizer_rule.optimizer(nn.ModuleList([backbone, head]))
    size: Any = (queue, method.output_dim) if name != "SimCLR" else 0
    criterion = NTXentLoss(temperature=0.1, memory_bank_size=size).to(views.device)
    first, second = views.chunk(2)

    def key(images: Tensor) -> Tensor:
        keys: Tensor = slow_head(slow_backbone(images))
        return keys.detach()

    def step() -> None:
        if name == "SimCLR":
            loss = criterion(head(backbone(first)), head(backbone(second)))
        else:
            update_momentum(backbone, slow_backbone, m=0.99)
            update_momentum(head, slow_head, m=0.99)
            loss = criterion(head(backbone(first)), key(second))
            if "symmetric" in name:
                loss = (loss + criterion(head(backbone(second)), key(first))) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def steps(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the milliseconds of a step of each method, here and with lightly's building blocks."""
    device, rows = torch.device(chosen.device), []
    meter = Meter(chosen.device)
    views = torch.randn(2 * chosen.batch, 3, chosen.size, chosen.size, device=device)
    views = views.to(memory_format=torch.channels_last)
    encoder = partial(ResNet, width=chosen.width)
    for name, make in METHODS.items():
        options = {"queue_size": chosen.queue} if name.startswith("MoCo") else {}
        calls = {"ssl_vision": our_step(make(encoder=encoder, seed=0, **options).to(device), views)}
        if name in PEERS:
            other = SimCLR(encoder=encoder, seed=0).to(device)
            calls["lightly"] = lightly_step(other, views, name, chosen.queue)
        times = meter.rounds(calls, chosen.rounds + 2)
        medians = {each: round(1e3 * statistics.median(values[2:]), 2) for each, values in times.items()}
        rows.append({"method": name, "milliseconds": medians})
    return rows


def queue(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure time and peak memory of a queue of ``--keys`` keys, forward and backward, in both libraries."""
    device, meter = torch.device(chosen.device), Meter(chosen.device)
    key_queue = KeyQueue(chosen.keys, WIDTH_OF_KEYS).to(device)
    objective = InfoNCE(pairs="queue")
    lightly_loss = NTXentLoss(temperature=0.1, memory_bank_size=(chosen.keys, WIDTH_OF_KEYS)).to(device)
    anchors = torch.randn(chosen.anchors, WIDTH_OF_KEYS, device=device, requires_grad=True)
    keys = torch.randn(chosen.anchors, WIDTH_OF_KEYS, device=device)

    def our_call() -> None:
        objective(anchors, keys, negatives=key_queue.keys).backward()
        key_queue.enqueue(keys)

    calls: dict[str, Step] = {
        "ssl_vision": our_call,
        "lightly": lambda: lightly_loss(anchors, keys).backward(),
    }
    for call in calls.values():
        call()
    peaks = {name: meter.peak(call) for name, call in calls.items()}
    return [
        {
            "implementation": name,
            "milliseconds": round(1e3 * statistics.median(values), 1),
            "megabytes": round(peaks[name] / 1e6, 1),
        }
        for name, values in meter.rounds(calls, chosen.rounds).items()
    ]


def table(record: dict[str, Any]) -> str:
    """Format the results as Markdown tables."""
    lines = []
    if "steps" in record:
        lines += ["| method | ssl_vision | lightly's building blocks | ratio |", "|---|---|---|---|"]
        for row in record["steps"]:
            our_time, lightly_time = row["milliseconds"]["ssl_vision"], row["milliseconds"].get("lightly")
            other = (
                "– | –" if lightly_time is None else f"{lightly_time:.0f} ms | {lightly_time / our_time:.2f}"
            )
            lines.append(f"| {row['method']} | {our_time:.0f} ms | {other} |")
    if "queue" in record:
        lines += ["", "| queue | time | peak memory |", "|---|---|---|"]
        lines += [
            f"| {row['implementation']} | {row['milliseconds']:.0f} ms | {row['megabytes']:.0f} MB |"
            for row in record["queue"]
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--parts", nargs="+", default=["steps", "queue"], choices=("steps", "queue"))
    for name, default in (("width", 16), ("batch", 128), ("size", 32), ("queue", 4096), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--keys", type=int, default=65536, help="number of keys of the separately measured queue"
    )
    parser.add_argument(
        "--anchors", type=int, default=256, help="number of embeddings that are compared with the queue"
    )
    chosen = parser.parse_args()
    torch.manual_seed(0)
    record: dict[str, Any] = {"options": vars(chosen)} | provenance("lightly", device=chosen.device)
    for part in chosen.parts:
        record[part] = {"steps": steps, "queue": queue}[part](chosen)
    print(table(record))
    save(f"methods_{chosen.device}", record)


if __name__ == "__main__":
    main()
