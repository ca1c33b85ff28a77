"""Train, evaluate and compare three objectives with five seeds on the digits: the example of docs/compare.md.

    python benchmarks/compare.py                  about ten minutes on 2 cores
    python benchmarks/compare.py --workers 1

The script trains and evaluates the trials of a sweep and compares them by kNN and by the linear layer. It
prints the comparisons as Markdown and writes benchmarks/results/compare.json, with the values of every seed.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from provenance import provenance, save

from ssl_vision.experiments.compare.comparison_tables import as_dict, part_of
from ssl_vision.experiments.compare.paired_comparison import compare
from ssl_vision.runs.registry import find_runs

SWEEP = Path(__file__).parent.parent / "configs" / "sweep" / "objectives_digits.yaml"
METRICS = ("knn_top1", "linear_top1")


def table(record: dict[str, Any]) -> str:
    """Format the comparisons one after the other."""
    return "\n\n".join(record["tables"])


def main() -> None:
    """Train, evaluate and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sweep", type=Path, default=SWEEP)
    parser.add_argument("--by", default="objective")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    program = [sys.executable, "-m", "ssl_vision"]
    with tempfile.TemporaryDirectory() as folder:
        sweep = ["sweep", str(chosen.sweep), "--runs_dir", folder, "--workers", str(chosen.workers)]
        subprocess.run([*program, *sweep], check=True, stdout=sys.stderr, cwd=SWEEP.parent.parent.parent)
        runs = find_runs([folder])
        for run in runs:
            evaluate = ["evaluate", str(run.folder.path), "--baselines", "false", "--report", "false"]
            subprocess.run([*program, *evaluate], check=True, stdout=sys.stderr)
        comparisons = [compare(runs, by=chosen.by, metric=metric) for metric in METRICS]
        record = provenance("pytorch-lightning", device="cuda") | {
            "tables": [part_of(comparison).markdown.strip() for comparison in comparisons],
            "comparisons": [_without_folder(as_dict(comparison), folder) for comparison in comparisons],
        }
    save("compare", record)
    print(table(record))


def _without_folder(value: Any, folder: str) -> Any:
    """Return the record with run directories relative to that of the sweep."""
    if isinstance(value, dict):
        return {key: _without_folder(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folder(item, folder) for item in value]
    return value.removeprefix(f"{folder}/") if isinstance(value, str) else value


if __name__ == "__main__":
    main()
