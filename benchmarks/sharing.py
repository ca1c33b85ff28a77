"""Measure the rate of several training processes that share one device.

    python benchmarks/sharing.py --device cuda --compile_mode default    1, 2, 4, 8 processes; batch 64, 256
    python benchmarks/sharing.py --width 8 --processes 1 2 --batches 64   a short test on the CPU

Each process runs the plain loop of benchmarks/step.py on its own network. All start together, and the rate is
that of all processes. The script writes benchmarks/results/sharing_<device>.json.
"""

import argparse
import multiprocessing
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from provenance import provenance, save
from step import Bench


def one(chosen: argparse.Namespace, together: Barrier, rates: Any) -> None:
    """Warm up, wait for the others, and send the steps per second."""
    torch.set_num_threads(1)
    loop = Bench(chosen).bare()
    loop(chosen.warm)
    together.wait()
    rates.put(1 / loop(chosen.steps))


def rate(chosen: argparse.Namespace, count: int) -> float:
    """Measure the steps per second of ``count`` processes together."""
    context = multiprocessing.get_context("spawn")
    together, rates = context.Barrier(count), context.Queue()
    processes = [context.Process(target=one, args=(chosen, together, rates)) for _ in range(count)]
    for process in processes:
        process.start()
    total: float = sum(rates.get(timeout=1800) for _ in processes)
    for process in processes:
        process.join()
    return total


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--compile_mode", choices=["default", "reduce-overhead", "max-autotune"])
    parser.set_defaults(size=32, stem="small", precision="bf16-mixed")
    chosen = parser.parse_args()
    rows = []
    print("| batch | processes | total steps/s | relative to one process |\n|---|---|---|---|")
    for batch in chosen.batches:
        for count in chosen.processes:
            chosen.batch = batch
            rows.append({"batch": batch, "processes": count, "steps_per_second": rate(chosen, count)})
            alone = next(row["steps_per_second"] for row in rows if row["batch"] == batch)
            value = rows[-1]["steps_per_second"]
            print(f"| {batch} | {count} | {value:.2f} | {value / alone:.2f} × |", flush=True)
    record = provenance(device=chosen.device) | {"options": vars(chosen), "rows": rows}
    save(f"sharing_{chosen.device}", record)


if __name__ == "__main__":
    main()
