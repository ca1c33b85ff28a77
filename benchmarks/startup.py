"""Measure the CPU time until a command has read its arguments, and that of importing its libraries.

    python benchmarks/startup.py               five rounds, on one core

Each command runs as a process that prints its help or, if the help does not import torch, ends with the error
of a run that does not exist. Commands and imports alternate, so that all have the same load. Times are
medians of user and system time. Lightning imports torch, torchvision, torchmetrics and SciPy. A method is a
LightningModule, so commands that build a method import Lightning. They import libraries without garbage
collection; the rows of imports are those of a plain ``import``. The script prints a Markdown table and writes
benchmarks/results/startup.json.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from typing import Any

from provenance import provenance, save

IMPORTS = ("torch", "torchvision", "pytorch_lightning")

COMMANDS = {
    "ssl-vision fit --help": "fit --help",
    "ssl-vision list objectives": "list objectives",
    "ssl-vision runs --help": "runs --help",
    "ssl-vision doctor": "doctor",
    "ssl-vision fit, unknown option": "fit --no_such_option=1",
    "ssl-vision evaluate, no such run": "evaluate no/such/run",
    "ssl-vision export, no such run": "export no/such/run",
    "ssl-vision embed, no such run": "embed no/such/images --weights=no/such/run --output=features.npz",
    "ssl-vision report, no such run": "report no/such/run",
}
"""Arguments of what is measured, by its name in the table."""


def cpu_seconds(*command: str) -> float:
    """Return the user and system time of a process and of what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], capture_output=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measured(rounds: int) -> list[dict[str, Any]]:
    """Return the median of each process's CPU time; one round before the others fills the file cache."""
    processes: dict[str, tuple[str, ...]] = {f"import {name}": ("-c", f"import {name}") for name in IMPORTS}
    processes |= {name: ("-m", "ssl_vision", *args.split()) for name, args in COMMANDS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in processes}
    for _ in range(rounds + 1):
        for name, command in processes.items():
            seconds[name].append(cpu_seconds(*command))
    return [
        {"process": name, "seconds": round(statistics.median(all_[1:]), 2)} for name, all_ in seconds.items()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the rows."""
    floor = next(row["seconds"] for row in rows if row["process"] == "import pytorch_lightning")
    lines = ["| process | CPU time | relative to `import pytorch_lightning` |", "|---|---|---|"]
    lines += [
        f"| `{row['process']}` | {row['seconds']:.2f} s | {row['seconds'] / floor:.2f} × |" for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    versions = provenance("torchvision", "torchmetrics", "pytorch-lightning", "timm")
    record = {"rounds": rounds} | versions | {"rows": measured(rounds)}
    print(table(record["rows"]))
    save("startup", record)


if __name__ == "__main__":
    main()
