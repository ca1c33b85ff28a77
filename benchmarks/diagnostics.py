"""Measure how much time ``--gradients true`` adds to training.

    python benchmarks/diagnostics.py                     on a CPU
    python benchmarks/diagnostics.py --device cuda       on a GPU

A step is forward pass, loss and backward pass of the ResNet-18 of configs/pretrain/cifar10.yaml with InfoNCE,
at several widths and batch sizes. The diagnostics of its embeddings use at most 256 images of a batch. Both
alternate in one process, and times are medians. The script prints a Markdown table and writes
benchmarks/results/diagnostics.json, or diagnostics_cuda.json.
"""

import argparse
import statistics
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from meter import Meter
from provenance import provenance, save

from ssl_vision.callbacks import GradientDiagnostics
from ssl_vision.encoders import ResNet
from ssl_vision.methods import SimCLR

EVERY = 50
"""Number of steps between diagnostics: the default."""


def measured(width: int, batch: int, rounds: int, device: str) -> dict[str, float]:
    """Measure the milliseconds of a step and of the diagnostics."""
    meter, model = Meter(device), SimCLR(encoder=partial(ResNet, width=width), seed=0).to(device)
    views = torch.randn(2 * batch, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    callback = GradientDiagnostics(every=EVERY)
    trainer: Any = SimpleNamespace(
        global_step=0,
        log_every_n_steps=1,
        accumulate_grad_batches=1,
        strategy=SimpleNamespace(reduce=lambda values, reduce_op: values),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=0)),
        callback_metrics={},
        loggers=[],
    )
    callback.on_train_start(trainer, model)

    def step() -> None:
        z1, z2 = model(views).projector.chunk(2)
        model.objective(z1, z2).backward()
        model.zero_grad(set_to_none=True)

    def diagnose() -> None:
        callback.on_train_batch_end(trainer, model, None, SimpleNamespace(labels=labels), 0)

    calls = {"step": step, "diagnostics": diagnose}
    for call in calls.values():
        call()
    return {"width": width, "batch": batch} | {
        name: round(1e3 * statistics.median(values), 3)
        for name, values in meter.rounds(calls, rounds).items()
    }


def table(rows: list[dict[str, float]]) -> str:
    """Format the rows as Markdown."""
    lines = ["| width | batch | step | diagnostics | of the time, every 50th step |", "|---|---|---|---|---|"]
    for row in rows:
        share = row["diagnostics"] / (EVERY * row["step"])
        lines.append(
            f"| {row['width']} | {row['batch']} | {row['step']:,.1f} ms | {row['diagnostics']:,.1f} ms "
            f"| {100 * share:.2f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256])
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows = [
        measured(width, batch, chosen.rounds, chosen.device)
        for width in chosen.widths
        for batch in chosen.batches
    ]
    save(
        "diagnostics" if chosen.device == "cpu" else f"diagnostics_{chosen.device}",
        provenance("pytorch-lightning", device=chosen.device) | {"rows": rows},
    )
    print(table(rows))


if __name__ == "__main__":
    main()
