"""Compare objectives with other libraries: time, peak memory and the error of the gradient in float32.

    python benchmarks/objectives.py                     the tables in docs/speed.md (25 minutes on one core)
    python benchmarks/objectives.py --device cuda       on a GPU, including 2N = 131,072
    python benchmarks/objectives.py --sizes 512 2048    only some batch sizes

A call is a forward and backward pass at D = 128. All implementations of an objective alternate in one
process; times are medians and ratios are those of medians. The error is ‖g − g₆₄‖ / ‖g₆₄‖, where g₆₄ is the
gradient of the same embeddings in float64. The script prints Markdown tables and writes
benchmarks/results/objectives.json. ``--parts`` measures only some parts of it again. Rows of
pytorch-metric-learning are left out if it is not installed.
"""

import argparse
import functools
import importlib
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightly import loss as lightly
from meter import Meter
from provenance import RESULTS, provenance, save
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ssl_vision import objectives as o

DIM = 128
SIZES = (256, 512, 2048, 8192, 16384, 65536)
TEMPERATURES = (1.0, 0.5, 0.1, 0.07, 0.05, 0.03, 0.01)
SECONDS = 10.0
"""Minimum seconds of measurement of an implementation at one size, unless a call takes longer."""
LARGEST = 16384
"""Maximum 2N of other libraries, which store all similarities."""

PML = "pytorch-metric-learning"
MISSING = () if importlib.util.find_spec("pytorch_metric_learning") else (PML,)

Loss = Callable[[Tensor, Tensor], Tensor]


def one_matmul(temperature: float) -> Loss:
    """Return InfoNCE in short torch code: one matrix without its diagonal, and cross entropy."""

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        u = normalize(torch.cat([z1, z2]))
        similarity = (u @ u.T / temperature).fill_diagonal_(-torch.inf)
        return cross_entropy(similarity, torch.arange(len(u), device=u.device).roll(len(z1)))

    return loss


def published(temperature: float, outer: float | None = None) -> Loss:
    """Return MACL at a fixed temperature, or dual temperature, with the published weight of 1 − softmax."""

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        u = normalize(torch.cat([z1, z2]))
        similarity = u @ u.T
        diagonal = torch.eye(len(u), dtype=torch.bool, device=u.device)
        target = torch.arange(len(u), device=u.device).roll(len(z1))

        def probability(tau: float) -> Tensor:
            return (
                (similarity / tau)
                .masked_fill(diagonal, -torch.inf)
                .softmax(1)
                .gather(1, target[:, None])[:, 0]
            )

        p = probability(temperature)
        weight = (1 if outer is None else 1 - probability(outer).detach()) / (1 - p.detach())
        return -(weight * p.log()).mean()

    return loss


@functools.cache
def pml_loss(name: str, temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss of pytorch-metric-learning."""
    loss: Callable[[Tensor, Tensor], Tensor] = getattr(
        importlib.import_module("pytorch_metric_learning.losses"), name
    )(temperature=temperature)
    return loss


def pml_ntxent(temperature: float) -> Loss:
    """Return pytorch-metric-learning's NTXentLoss, which compares every positive and negative pair."""

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        labels = torch.arange(len(z1), device=z1.device).repeat(2)
        return pml_loss("NTXentLoss", temperature)(torch.cat([z1, z2]), labels)

    return loss


def with_classes(loss: Callable[..., Tensor]) -> Loss:
    """Return a supervised loss with ten classes."""
    return lambda z1, z2: loss(z1, z2, torch.arange(len(z1), device=z1.device) % 10)


def pml_supcon(z1: Tensor, z2: Tensor, labels: Tensor) -> Tensor:
    """Return pytorch-metric-learning's SupConLoss."""
    return pml_loss("SupConLoss", 0.2)(torch.cat([z1, z2]), labels.repeat(2))


SPEED: dict[str, dict[str, Loss]] = {
    "InfoNCE, τ = 0.2": {
        "ssl_vision": o.InfoNCE(temperature=0.2),
        "lightly": lightly.NTXentLoss(temperature=0.2),
        "torch, one matmul": one_matmul(0.2),
    },
    "InfoNCE, small batches": {
        "ssl_vision": o.InfoNCE(temperature=0.2),
        PML: pml_ntxent(0.2),
    },
    "InfoNCE, τ = 0.02": {
        "ssl_vision": o.InfoNCE(temperature=0.02),
        "lightly": lightly.NTXentLoss(temperature=0.02),
    },
    "DCL": {"ssl_vision": o.DCL(temperature=0.2), "lightly": lightly.DCLLoss(temperature=0.2)},
    "DCLW": {"ssl_vision": o.DCLW(temperature=0.2), "lightly": lightly.DCLWLoss(temperature=0.2)},
    "MACL": {
        "ssl_vision": o.MACLICML(temperature=0.2),
        "lightly": lightly.MACLLoss(temperature=0.2, alpha=0.5, A_0=0.0),
    },
    "dual temperature": {
        "ssl_vision": o.DualTemperature(temperature=0.2),
        "torch, as published": published(0.2, 1.0),
    },
    "SupCon, 10 classes": {
        "ssl_vision": with_classes(o.SupCon(temperature=0.2)),
        PML: with_classes(pml_supcon),
    },
}
LIMITS = {
    "InfoNCE, small batches": 512,
    "DCL": LARGEST,
    "DCLW": LARGEST,
    "MACL": LARGEST,
    "dual temperature": LARGEST,
}
"""Objectives with a smaller limit. pytorch-metric-learning would take 34 GB in one tensor at 2N = 2,048."""

EXACT: dict[str, Callable[[float], Loss]] = {
    "InfoNCE": lambda tau: o.InfoNCE(temperature=tau),
    "DCL": lambda tau: o.DCL(temperature=tau),
    "MACL": lambda tau: o.MACL(temperature=tau, alpha=1.0),
    "dual temperature": lambda tau: o.DualTemperature(temperature=tau),
}
PEERS: dict[tuple[str, str], Callable[[float], Loss]] = {
    ("InfoNCE", "lightly"): lambda tau: lightly.NTXentLoss(temperature=tau),
    ("InfoNCE", PML): pml_ntxent,
    ("InfoNCE", "torch, one matmul"): one_matmul,
    ("DCL", "lightly"): lambda tau: lightly.DCLLoss(temperature=tau),
    ("MACL", "lightly"): lambda tau: lightly.MACLLoss(temperature=tau, alpha=0.0, A_0=0.0),
    ("MACL", "torch, as published"): published,
    ("dual temperature", "torch, as published"): lambda tau: published(tau, 1.0),
}
"""Objectives at a fixed temperature; exact is ours in float64, which tests hold against a double loop."""


def views(n: int, noise: float, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Draw embeddings of ``n`` images; less noise separates the positives better."""
    g = torch.Generator().manual_seed(n)
    z1 = torch.randn(n, dim, generator=g)
    return z1, z1 + noise * torch.randn(n, dim, generator=g)


def gradient(loss: Loss, z1: Tensor, z2: Tensor) -> Tensor:
    """Compute the gradient of the loss by both views in float64."""
    z1, z2 = z1.clone().requires_grad_(), z2.clone().requires_grad_()
    return torch.cat(torch.autograd.grad(loss(z1, z2), (z1, z2))).double()


def error(loss: Loss, z1: Tensor, z2: Tensor, exact: Loss | None = None) -> float | None:
    """Compute the relative gradient error in float32; None if float32 cannot represent the gradient."""
    true = gradient(exact or loss, z1.double(), z2.double())
    if true.norm() < 1e-30:
        return None
    return float((gradient(loss, z1, z2) - true).norm() / true.norm())


def step(loss: Loss, z1: Tensor, z2: Tensor) -> None:
    """Run forward and backward pass."""
    torch.autograd.grad(loss(z1, z2), (z1, z2))


def speed(sizes: list[int], device: str) -> list[dict[str, Any]]:
    """Measure each objective, implementation and size."""
    meter, rows = Meter(device), []
    for size in sizes:
        z1, z2 = (z.to(device).requires_grad_() for z in views(size // 2, 1.0))
        for objective, implementations in SPEED.items():
            if size > LIMITS.get(objective, size):
                continue
            calls = {
                name: partial(step, loss, z1, z2)
                for name, loss in implementations.items()
                if name not in MISSING and (size <= LARGEST or name == "ssl_vision")
            }
            first = meter.rounds(calls, 1)
            peaks = {name: meter.peak(call) for name, call in calls.items()}
            slowest = max(seconds for (seconds,) in first.values())
            rounds = int(min(50, max(2, SECONDS / slowest))) if size <= LARGEST else 0
            times = meter.rounds(calls, rounds) if rounds else first
            for name in calls:
                row = {
                    "objective": objective,
                    "implementation": name,
                    "size": size,
                    "milliseconds": round(1e3 * statistics.median(times[name]), 3),
                    "megabytes": round(peaks[name] / 1e6, 1),
                    "rounds": rounds,
                }
                print(row, file=sys.stderr, flush=True)
                rows.append(row)
    return rows


def precision(device: str) -> list[dict[str, Any]]:
    """Measure errors for 128 pairs of 128 dimensions with cosines of positives of at least 0.96."""
    z1, z2 = (z.to(device) for z in views(128, 0.2))
    named = {(objective, "ssl_vision"): make for objective, make in EXACT.items()} | PEERS
    return [
        {
            "objective": objective,
            "implementation": name,
            "temperature": tau,
            "error": error(make(tau), z1, z2, EXACT[objective](tau)),
        }
        for (objective, name), make in sorted(named.items(), key=lambda item: list(EXACT).index(item[0][0]))
        if name not in MISSING
        for tau in TEMPERATURES
    ]


def contrastive_presets() -> list[type[o.Contrastive]]:
    """Return the objectives of the InfoNCE family that need no labels."""
    classes = [each for each in vars(o).values() if isinstance(each, type)]
    presets = [each for each in classes if issubclass(each, o.Contrastive) and each is not o.Contrastive]
    return [preset for preset in presets if not preset.required_inputs]


def sweep(device: str) -> list[dict[str, Any]]:
    """Measure the largest error of each preset over N (to 4,096 at three τ, else 128) and pairs.

    Collapsed embeddings are equal except for 1 % noise. bfloat16 embeddings are random and rounded to
    bfloat16, as from a network under autocast, and are compared with unrounded ones.
    """
    rows = []
    presets = contrastive_presets()
    for kind in ("random", "separated", "collapsed", "bfloat16"):
        for tau in TEMPERATURES:
            worst: dict[str, float] = {}
            large = kind in ("random", "separated") and tau in (0.1, 0.03, 0.01)
            for n in (2, 3, 16, 128, 1024, 4096) if large else (2, 3, 16, 128):
                z1, z2 = views(n, 0.03 if kind == "separated" else 1.0)
                if kind == "collapsed":
                    z1, z2 = 1 + 0.01 * z1, 1 + 0.01 * z2
                z1, z2 = z1.to(device), z2.to(device)
                for preset in presets:
                    for pairs in ("both", "cross") if n <= 128 else ("both",):
                        loss = preset(temperature=tau, pairs=pairs)
                        relative_error: float | None
                        if kind == "bfloat16":
                            exact = gradient(loss, z1.double(), z2.double())
                            rounded = gradient(loss, z1.bfloat16(), z2.bfloat16())
                            relative_error = float((rounded - exact).norm() / exact.norm())
                        else:
                            relative_error = error(loss, z1, z2)
                        if relative_error is not None:
                            worst[preset.__name__] = max(worst.get(preset.__name__, 0.0), relative_error)
            print(kind, tau, worst, file=sys.stderr, flush=True)
            rows += [
                {"preset": name, "temperature": tau, "kind": kind, "error": value}
                for name, value in worst.items()
            ]
    return rows


def speed_table(rows: list[dict[str, Any]]) -> str:
    """Format milliseconds and megabytes by size, with the ratios of other libraries."""
    sizes = sorted({row["size"] for row in rows})
    lines = [
        "| objective | | " + " | ".join(f"2N = {size:,}" for size in sizes) + " |",
        "|---|---" + "|---" * len(sizes) + "|",
    ]
    row_of = {(row["objective"], row["implementation"], row["size"]): row for row in rows}
    for objective, implementations in SPEED.items():
        for name in implementations:
            cells = []
            for size in sizes:
                row, reference = (
                    row_of.get((objective, name, size)),
                    row_of.get((objective, "ssl_vision", size)),
                )
                if row is None or reference is None:
                    cells.append("–")
                    continue
                milliseconds, digits = row["milliseconds"], 1 if row["milliseconds"] < 100 else 0
                cell = f"{milliseconds:,.{digits}f} ms, {row['megabytes']:,.0f} MB"
                if name != "ssl_vision":
                    cell += f" ({milliseconds / reference['milliseconds']:.1f} ×)"
                cells.append(cell)
            lines.append(f"| {objective} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _scientific(value: float | None) -> str:
    return "–" if value is None else "NaN" if value != value else f"{value:.0e}".replace("e-0", "e-")


def precision_table(rows: list[dict[str, Any]]) -> str:
    """Format the errors by temperature."""
    lines = [
        "| relative gradient error at τ | | " + " | ".join(f"{tau:g}" for tau in TEMPERATURES) + " |",
        "|---" * (len(TEMPERATURES) + 2) + "|",
    ]
    for objective, name in dict.fromkeys((row["objective"], row["implementation"]) for row in rows):
        errors = [
            row["error"] for row in rows if (row["objective"], row["implementation"]) == (objective, name)
        ]
        lines.append(f"| {objective} | {name} | " + " | ".join(map(_scientific, errors)) + " |")
    return "\n".join(lines)


def sweep_table(rows: list[dict[str, Any]]) -> str:
    """Format the largest error of all presets by temperature and kind of batch."""
    lines = [
        "| largest error at τ | " + " | ".join(f"{tau:g}" for tau in TEMPERATURES) + " |",
        "|---" * (len(TEMPERATURES) + 1) + "|",
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        errors = [
            max(row["error"] for row in rows if (row["kind"], row["temperature"]) == (kind, tau))
            for tau in TEMPERATURES
        ]
        lines.append(f"| {kind} | " + " | ".join(map(_scientific, errors)) + " |")
    return "\n".join(lines)


PARTS = {"precision": precision, "sweep": sweep}
TABLES = {"speed": speed_table, "precision": precision_table, "sweep": sweep_table}


def main() -> None:
    """Measure, print the tables and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", nargs="+", default=list(TABLES), choices=list(TABLES))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    sizes = chosen.sizes or [*SIZES, *([131072] if chosen.device == "cuda" else [])]
    file = "objectives" if chosen.device == "cpu" else f"objectives_{chosen.device}"
    record = json.loads((RESULTS / f"{file}.json").read_text()) if (RESULTS / f"{file}.json").exists() else {}
    for part in chosen.parts:
        origin = provenance("lightly", PML, device=chosen.device)
        rows = speed(sizes, chosen.device) if part == "speed" else PARTS[part](chosen.device)
        record[part] = origin | {"rows": rows}
        save(file, record)
        print(TABLES[part](rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
