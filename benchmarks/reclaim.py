"""Compare time and memory of a step of RECLAIM with its inner objective, by the kind of negatives.

    python benchmarks/reclaim.py                     on a CPU
    python benchmarks/reclaim.py --device cuda       on a GPU, including 80 % random negatives

A step is a forward and backward pass of the ResNet of configs/pretrain/cifar10.yaml on two views of a batch,
with InfoNCE or with RECLAIM. All alternate in one process, and times are medians. Rows without the network
use given features and embeddings, so they measure only the objective. Memory is the peak of additionally
allocated memory, without the banks, which have their own column. The script prints a Markdown table and
writes benchmarks/results/reclaim.json.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from meter import Meter
from provenance import provenance, save
from torch import Tensor

from ssl_vision.methods import SimCLR
from ssl_vision.objectives import RECLAIM, InfoNCE, Objective

KINDS: dict[str, dict[str, Any]] = {
    "K = 10": {"k": 10},
    "K = 100": {"k": 100},
    "K = 300": {"k": 300},
    "in-batch": {"negatives": "batch"},
    "random 80 %": {"negatives": "random"},
}
PLAIN = "InfoNCE"


def built(options: dict[str, Any], images: int, model: SimCLR, device: str) -> RECLAIM:
    """Create a RECLAIM objective after its warm-up, with every row of the banks written."""
    objective = RECLAIM(warmup_epochs=0, **options)
    objective.prepare(images=images, embeddings=128, features=model.backbone.num_features, shallow=256)
    for bank in (objective.u_bank, objective.v_bank):
        rows = torch.randn(bank.rows.shape, generator=torch.Generator().manual_seed(0))
        for part in torch.arange(images).split(10_000):
            bank.write(part, torch.nn.functional.normalize(rows[part]), rho=0.0)
    return objective.to(device)


def step(
    objective: Objective, model: SimCLR, views: Tensor, given: tuple[Tensor, Tensor] | None, own: Tensor
) -> None:
    """Run forward and backward pass, through the network unless features and embeddings are given."""
    if given is None:
        layers = model(views)
        features, z = layers.backbone, layers.projector
    else:
        features, z = (rows.clone().requires_grad_() for rows in given)
    inputs = {"indices": own, "features": features.chunk(2), "labels": torch.full_like(own, -1)}
    loss = objective(*z.chunk(2), **{name: inputs[name] for name in objective.required_inputs})
    loss.backward()
    model.zero_grad(set_to_none=True)
    objective.zero_grad(set_to_none=True)


def measured(
    objectives: dict[str, Objective], network: bool, images: int, batch: int, rounds: int, device: str
) -> list[dict[str, Any]]:
    """Measure each objective, with time and memory relative to the first one, InfoNCE."""
    meter, model = Meter(device), SimCLR(seed=0).to(device)
    g = torch.Generator().manual_seed(0)
    views = torch.randn(2 * batch, 3, 32, 32, generator=g).to(device)
    features = torch.randn(2 * batch, model.backbone.num_features, generator=g).to(device)
    network_outputs = features, torch.randn(2 * batch, 128, generator=g).to(device)
    indices = torch.randperm(images, generator=g)[:batch].to(device)
    calls: dict[str, Callable[[], None]] = {
        name: partial(step, objective, model, views, None if network else network_outputs, indices)
        for name, objective in objectives.items()
    }
    for call in calls.values():
        call()
    peaks = {name: meter.peak(call) for name, call in calls.items()}
    seconds = {name: statistics.median(values) for name, values in meter.rounds(calls, rounds).items()}
    rows = [
        {
            "objective": name,
            "network": network,
            "images": images,
            "batch": batch,
            "milliseconds": round(1e3 * seconds[name], 3),
            "time_ratio": round(seconds[name] / seconds[PLAIN], 3),
            "peak_megabytes": round(peaks[name] / 1e6, 1),
            "extra_megabytes": round((peaks[name] - peaks[PLAIN]) / 1e6, 1),
            "bank_megabytes": round(sum(b.nbytes for b in objective.buffers()) / 1e6, 1),
            "rounds": rounds,
        }
        for name, objective in objectives.items()
    ]
    for row in rows:
        print(row, file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = [
        "| | through the network | time | relative to InfoNCE | peak memory | more than InfoNCE | banks |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['objective']} | {'yes' if row['network'] else 'no'} | {row['milliseconds']:,.1f} ms "
            f"| {row['time_ratio']:.2f} × | {row['peak_megabytes']:,.0f} MB "
            f"| {row['extra_megabytes']:+,.0f} MB | {row['bank_megabytes']:,.0f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS))
    parser.add_argument(
        "--alone", action="store_true", help="measure only the objectives, without the network"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    kinds = chosen.kinds or [kind for kind in KINDS if kind != "random 80 %" or chosen.device == "cuda"]
    record = provenance("pytorch-lightning", device=chosen.device)
    model = SimCLR(seed=0)
    objectives: dict[str, Objective] = {PLAIN: InfoNCE()}
    objectives |= {kind: built(KINDS[kind], chosen.images, model, chosen.device) for kind in kinds}
    record["rows"] = [
        row
        for network in ([False] if chosen.alone else [False, True])
        for row in measured(objectives, network, chosen.images, chosen.batch, chosen.rounds, chosen.device)
    ]
    save("reclaim" if chosen.device == "cpu" else f"reclaim_{chosen.device}", record)
    print(table(record["rows"]))


if __name__ == "__main__":
    main()
