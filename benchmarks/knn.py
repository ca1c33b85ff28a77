"""Compare time and memory of kNN with lightly's knn_predict.

    python benchmarks/knn.py                       the table in docs/evaluation.md (5 minutes on one core)
    python benchmarks/knn.py --device cuda         on a GPU

There are 50,000 features of 512 dimensions, 10,000 queries and 10 classes, with k = 200 and T = 0.1. Each
implementation maps features of any length to classes. All alternate in one process; times are medians and
ratios are those of medians. CPU time is that of the process, which depends less on the load of the machine.
Memory is the peak of additionally allocated memory. The script prints a Markdown table and writes
benchmarks/results/knn.json.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightly.utils.benchmarking import knn_predict
from meter import Meter
from provenance import provenance, save
from torch import Tensor
from torch.nn.functional import normalize

from ssl_vision.metrics import faiss_kind, knn_table, nearest, vote

BANK, QUERIES, DIM, CLASSES, K, TEMPERATURE = 50_000, 10_000, 512, 10, 200, 0.1
BATCH = 512
"""Number of queries per call in lightly's second row, as in its validation steps."""
KS, TEMPERATURES = (1, 5, 10, 20, 50, 100, 200), (0.05, 0.07, 0.1, 0.5, None)

Predict = Callable[[], Tensor]


def features(seed: int, rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Draw overlapping classes: random rows, shifted slightly by a centre for each class."""
    centres = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=g)
    return (0.15 * centres[labels] + torch.randn(rows, DIM, generator=g)).to(device), labels.to(device)


def implementations(queries: Tensor, bank: Tensor, labels: Tensor) -> dict[str, Predict]:
    """Return functions that predict the classes of the queries, shape (Q,)."""

    def ours(backend: Any) -> Tensor:
        neighbours = nearest(queries, bank, K, backend=backend)
        return vote(neighbours, labels, CLASSES, k=K, temperature=TEMPERATURE).argmax(dim=1)

    def lightly(batch: int) -> Tensor:
        rows = normalize(bank).T
        parts = (
            knn_predict(part, rows, labels, CLASSES, K, TEMPERATURE)[:, 0]
            for part in normalize(queries).split(batch)
        )
        return torch.cat(list(parts))

    calls: dict[str, Predict] = {"ssl_vision, torch": lambda: ours("torch")}
    if faiss_kind() != "none":
        calls = {"ssl_vision, FAISS": lambda: ours("faiss")} | calls
    return calls | {
        "lightly, one call": lambda: lightly(QUERIES),
        f"lightly, {BATCH} queries a call": lambda: lightly(BATCH),
    }


def speed(calls: dict[str, Predict], truth: Tensor, rounds: int, device: str) -> list[dict[str, Any]]:
    """Measure each implementation and return a row for it."""
    meter = Meter(device)
    predicted: dict[str, Tensor] = {}

    def first(name: str) -> None:
        predicted[name] = calls[name]()

    peak = {name: meter.peak(partial(first, name)) for name in calls}
    print(peak, file=sys.stderr, flush=True)
    times: dict[str, list[float]] = {name: [] for name in calls}
    work: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            before = time.process_time()
            times[name].append(meter.seconds(call))
            work[name].append(time.process_time() - before)
        print({name: round(values[-1], 2) for name, values in times.items()}, file=sys.stderr, flush=True)
    peer = predicted["lightly, one call"]
    return [
        {
            "implementation": name,
            "seconds": round(statistics.median(times[name]), 3),
            "cpu_seconds": round(statistics.median(work[name]), 3),
            "megabytes": round(peak[name] / 1e6, 1),
            "accuracy": round((predicted[name] == truth).double().mean().item(), 4),
            "as_lightly": (predicted[name] == peer).double().mean().item(),
            "rounds": rounds,
        }
        for name in calls
    ]


def every_k(queries: Tensor, truth: Tensor, bank: Tensor, labels: Tensor, device: str) -> dict[str, Any]:
    """Measure one search for all k and temperatures."""
    call = partial(knn_table, num_classes=CLASSES, ks=KS, temperatures=TEMPERATURES)
    seconds = Meter(device).seconds(lambda: call(queries, truth, bank, labels))
    return {"accuracies": len(KS) * len(TEMPERATURES), "seconds": round(seconds, 3)}


def table(record: dict[str, Any]) -> str:
    """Format time and memory with ratios to this package."""
    reference = record["speed"][0]
    lines = [
        "| 10,000 queries, k = 200 | time | CPU time | peak memory | accuracy |",
        "|---|---|---|---|---|",
    ]
    for row in record["speed"]:
        cells = []
        for field, unit in (("seconds", "s"), ("cpu_seconds", "s"), ("megabytes", "MB")):
            ratio = "" if row is reference else f" ({row[field] / reference[field]:.2f} ×)"
            cells.append(f"{row[field]:,.{0 if unit == 'MB' else 2}f} {unit}{ratio}")
        lines.append(f"| {row['implementation']} | {' | '.join(cells)} | {100 * row['accuracy']:.2f} % |")
    every = record["every_k"]
    lines.append(f"| ssl_vision, {every['accuracies']} pairs of k and T | {every['seconds']:.2f} s | | | |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if faiss_kind() != "none":
        import faiss

        faiss.omp_set_num_threads(chosen.threads)
    bank, labels = features(1, BANK, chosen.device)
    queries, truth = features(2, QUERIES, chosen.device)
    record = provenance("lightly", device=chosen.device) | {"faiss": faiss_kind()}
    calls = implementations(queries, bank, labels)
    record["speed"] = speed(calls, truth, chosen.rounds, chosen.device)
    record["every_k"] = every_k(queries, truth, bank, labels, chosen.device)
    save("knn" if chosen.device == "cpu" else f"knn_{chosen.device}", record)
    print(table(record))


if __name__ == "__main__":
    main()
