"""The demo over several seeds, each through the command line: the table in README.

    python benchmarks/demo.py [--seeds 3]

Prints a Markdown table and writes benchmarks/results/demo.json with the rows, the command, the versions and
the time that each seed took.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
CONFIG = HERE.parent / "configs" / "pretrain" / "digits.yaml"
LINES = {
    ("trained", "backbone"): "trained backbone",
    ("untrained", "backbone"): "untrained backbone",
    ("pixels", "raw"): "raw pixels",
}


def command(*args: str) -> list[str]:
    """A command of this interpreter's ssl_vision."""
    return [sys.executable, "-m", "ssl_vision", *args]


def one_seed(seed: int, runs: Path) -> dict:
    """Trains and evaluates one seed."""
    start = time.perf_counter()
    options = ["--config", str(CONFIG), "--name", f"s{seed}", "--runs_dir", str(runs)]
    quiet = ["--seed_everything", str(seed), "--trainer.enable_progress_bar", "false"]
    subprocess.run(command("fit", *options, *quiet), check=True, stdout=sys.stderr)
    subprocess.run(command("evaluate", str(runs / f"s{seed}")), check=True, stdout=sys.stderr)
    seconds = time.perf_counter() - start
    return {
        "seconds": round(seconds, 1),
        "rows": json.loads((runs / f"s{seed}" / "evaluation.json").read_text()),
    }


def value(result: dict, features: str, layer: str, metric: str) -> float:
    """One number of a seed's evaluation, in per cent."""
    (row,) = [
        row
        for row in result["rows"]
        if (row["features"], row["layer"], row["metric"]) == (features, layer, metric)
    ]
    return 100 * row["value"]


def table(results: dict[int, dict]) -> str:
    """kNN and linear accuracy of each seed, trained beside untrained and raw pixels."""
    head = [f"{metric}, seed {seed}" for metric in ("kNN %", "linear %") for seed in results]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for (features, layer), name in LINES.items():
        cells = [
            f"{value(result, features, layer, metric):.1f}"
            for metric in ("knn_top1", "linear_top1")
            for result in results.values()
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Runs the seeds, prints the table, writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as folder:
        results = {seed: one_seed(seed, Path(folder)) for seed in range(seeds)}
    import torch

    record = {
        "command": f"python benchmarks/demo.py --seeds {seeds}",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
        ).stdout.strip(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "seeds": results,
    }
    (HERE / "results" / "demo.json").write_text(json.dumps(record, indent=1) + "\n")
    print(table(results))
    print(f"\nseconds for fit and evaluate: {', '.join(str(r['seconds']) for r in results.values())}")


if __name__ == "__main__":
    main()
