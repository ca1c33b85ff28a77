"""Train and evaluate several objectives and seeds of one pretraining config through the command line.

    python benchmarks/pretrain.py                                  the demo's table in README
    python benchmarks/pretrain.py --config configs/pretrain/cifar10.yaml \
        --objectives InfoNCE DCL DualTemperature MACL MACLb --seeds 1 --data.root data

Unknown options are passed to ``fit``. The script prints a Markdown table and writes
benchmarks/results/<config>.json: the rows of every evaluation with the command, the commit, the versions, the
device and the seconds of each run. Checkpoints are deleted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import provenance, save

HERE = Path(__file__).parent
LINES = {
    ("trained", "backbone"): "trained backbone",
    ("untrained", "backbone"): "untrained backbone",
    ("pixels", "raw"): "raw pixels",
}


def one_run(config: Path, objective: str | None, seed: int, options: list[str], runs: Path) -> dict[str, Any]:
    """Train and evaluate one objective with one seed."""
    fit = ["fit", "--config", str(config), "--name", "run", "--runs_dir", str(runs)]
    fit += ["--seed_everything", str(seed), "--trainer.enable_progress_bar", "false", *options]
    fit += ["--model.objective", objective] if objective else []
    program = [sys.executable, "-m", "ssl_vision"]
    start = time.perf_counter()
    subprocess.run([*program, *fit], check=True, stdout=sys.stderr)
    trained = time.perf_counter()
    subprocess.run([*program, "evaluate", str(runs / "run")], check=True, stdout=sys.stderr)
    return {
        "objective": objective or "as in the config",
        "seed": seed,
        "fit_seconds": round(trained - start, 1),
        "seconds": round(time.perf_counter() - start, 1),
        "rows": json.loads((runs / "run" / "evaluation.json").read_text()),
    }


def table(results: list[dict[str, Any]]) -> str:
    """Format kNN and linear accuracy of every run with the untrained network and raw pixels."""
    several = len({result["objective"] for result in results}) > 1
    names = [(f"{r['objective']}, " if several else "") + f"seed {r['seed']}" for r in results]
    head = [f"{metric}, {name}" for metric in ("kNN %", "linear %") for name in names]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for (features, layer), name in LINES.items():
        cells = [
            f"{100 * row['value']:.1f}"
            for metric in ("knn_top1", "linear_top1")
            for result in results
            for row in result["rows"]
            if (row["features"], row["layer"], row["metric"]) == (features, layer, metric)
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run all, print the table and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE.parent / "configs" / "pretrain" / "digits.yaml")
    parser.add_argument("--objectives", nargs="+", default=[None])
    parser.add_argument("--seeds", type=int, default=3)
    chosen, options = parser.parse_known_args()
    results = []
    for objective in chosen.objectives:
        for seed in range(chosen.seeds):
            with tempfile.TemporaryDirectory() as runs:
                results.append(one_run(chosen.config, objective, seed, options, Path(runs)))
    save(chosen.config.stem, provenance("pytorch-lightning") | {"runs": results})
    print(table(results))
    print(f"\nseconds for fit and evaluate: {', '.join(str(result['seconds']) for result in results)}")


if __name__ == "__main__":
    main()
