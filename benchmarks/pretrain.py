"""Train and evaluate several objectives and seeds of one pretraining config through the command line.

    python benchmarks/pretrain.py --protocols few_labels macl --name demo    the demo
    python benchmarks/pretrain.py --config configs/pretrain/cifar10.yaml \
        --objectives InfoNCE DCL DualTemperature MACL MACLb --seeds 1 --data.root data

Unknown options are passed to ``fit``. The script prints a Markdown table, with the accuracies of all seeds in
each cell, and writes benchmarks/results/<name>.json, by default named like the config: the rows of every
evaluation with the command, the commit, the versions, the device and the seconds of each run. Checkpoints are
deleted.
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
BASELINES = {("untrained", "backbone"): "untrained backbone", ("pixels", "raw"): "raw pixels"}
COLUMNS = {
    ("logistic_top1", "1%"): "logistic regression, 1 % of the labels",
    ("linear_top1", "1%"): "linear probe, 1 % of the labels",
    ("logistic_top1", "10%"): "logistic regression, 10 % of the labels",
    ("linear_top1", "10%"): "linear probe, 10 % of the labels",
    ("linear_top1", None): "linear probe, all labels",
    ("knn_top1", None): "kNN, all labels",
}
"""Headings of the measured accuracies, by metric and share of the labels."""


def one_run(
    config: Path, objective: str | None, seed: int, protocols: list[str], options: list[str], runs: Path
) -> dict[str, Any]:
    """Train and evaluate one objective with one seed."""
    fit = ["fit", "--config", str(config), "--name", "run", "--runs_dir", str(runs)]
    fit += ["--seed_everything", str(seed), "--trainer.enable_progress_bar", "false", *options]
    fit += ["--model.objective", objective] if objective else []
    program = [sys.executable, "-m", "ssl_vision"]
    start = time.perf_counter()
    subprocess.run([*program, *fit], check=True, stdout=sys.stderr)
    trained = time.perf_counter()
    chosen = [f"--protocol={protocol}" for protocol in protocols]
    subprocess.run([*program, "evaluate", str(runs / "run"), *chosen], check=True, stdout=sys.stderr)
    return {
        "objective": objective or "as in the config",
        "seed": seed,
        "fit_seconds": round(trained - start, 1),
        "seconds": round(time.perf_counter() - start, 1),
        "rows": json.loads((runs / "run" / "evaluation.json").read_text()),
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the accuracies in percent of all seeds, of each objective and of the baselines."""
    objectives = list(dict.fromkeys(result["objective"] for result in results))
    several = len(objectives) > 1
    lines = {
        f"trained backbone{f', {objective}' if several else ''}": (("trained", "backbone"), objective)
        for objective in objectives
    }
    lines |= {name: (source, objectives[0]) for source, name in BASELINES.items()}
    measured = {_column(row) for result in results for row in result["rows"]}
    columns = {column: heading for column, heading in COLUMNS.items() if column in measured}
    head = ["top-1 %", *columns.values()]
    cells = [
        [name, *(", ".join(_values(results, objective, source, column)) for column in columns)]
        for name, (source, objective) in lines.items()
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *cells))


def _values(
    results: list[dict[str, Any]], objective: str, source: tuple[str, str], column: tuple[str, str | None]
) -> list[str]:
    return [
        f"{100 * row['value']:.1f}"
        for result in results
        if result["objective"] == objective
        for row in result["rows"]
        if (row["features"], row["layer"]) == source and _column(row) == column
    ]


def _column(row: dict[str, Any]) -> tuple[str, str | None]:
    return row["metric"], row.get("labels")


def main() -> None:
    """Run all, print the table and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE.parent / "configs" / "pretrain" / "digits.yaml")
    parser.add_argument("--objectives", nargs="+", default=[None])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--protocols",
        nargs="+",
        default=["macl"],
        help="protocols; each accuracy must be measured by only one of them",
    )
    parser.add_argument("--name")
    chosen, options = parser.parse_known_args()
    results = []
    for objective in chosen.objectives:
        for seed in range(chosen.seeds):
            with tempfile.TemporaryDirectory() as runs:
                results.append(one_run(chosen.config, objective, seed, chosen.protocols, options, Path(runs)))
    save(
        chosen.name or chosen.config.stem, provenance("pytorch-lightning", device="cuda") | {"runs": results}
    )
    print(table(results))
    print(f"\nseconds for fit and evaluate: {', '.join(str(result['seconds']) for result in results)}")


if __name__ == "__main__":
    main()
