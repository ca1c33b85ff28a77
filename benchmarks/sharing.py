"""Measure the rate of several training processes that share one device.

    python benchmarks/sharing.py --device cuda                            1, 2, 3 processes, batch 256
    python benchmarks/sharing.py --width 8 --processes 1 2 --batches 64   a short test on the CPU

Each process trains its own network: on a GPU with the step of profile_step.py, which is one CUDA graph, and
on a CPU with the plain loop of step.py. All start together, and the rate is that of all processes. The script
writes benchmarks/results/sharing_<device>.json.
"""

import argparse
import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from profile_step import Step, seconds
from provenance import provenance, save
from step import Bench


def one(chosen: argparse.Namespace, together: Barrier, rates: Any) -> None:
    """Warm up, wait for the others, and send the steps per second."""
    torch.set_num_threads(1)
    if chosen.device == "cuda":
        step = Step(chosen)
        step.replay()
        together.wait()
        rates.put(chosen.steps / seconds(lambda: [step() for _ in range(chosen.steps)]))
        return
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
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--batches", type=int, nargs="+", default=[256])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm", type=int, default=5)
    parser.set_defaults(size=32, stem="small", precision="bf16-mixed", compile_mode=None)
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
    mps = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    record = provenance(device=chosen.device) | {"options": vars(chosen), "mps": mps, "rows": rows}
    save(f"sharing_{chosen.device}", record)


if __name__ == "__main__":
    main()
