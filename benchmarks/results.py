"""Collect the results of finished runs as rows of JSON, and render them as a table.

    python benchmarks/results.py collect runs/objectives_cifar10_narrow     adds rows of finished runs
    python benchmarks/results.py render objectives_cifar10_narrow           prints the table

Rows are kept in benchmarks/results/NAME.json, where NAME is the directory of the runs. Each has the run's
settings, the last validation, the values of the last epoch on the test split, the command, and the commit of
the checkout in which the runs are. A run that is collected again replaces its row. The table has means over
seeds, with the standard deviation; a setting with fewer than three seeds is marked.
"""

import argparse
import json
import subprocess
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ssl_vision.descriptions import description_of
from ssl_vision.runs.evaluation_summary import evaluation_summary
from ssl_vision.runs.registry import Run, find_runs

RESULTS = Path(__file__).parent / "results"
SETTINGS = {
    "method": "model",
    "objective": "objective",
    "temperature": "model.objective.temperature",
    "seed": "seed",
    "data": "data",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "width": "model.encoder.width",
    "precision": "trainer.precision",
    "k": "metrics.k",
}
METRICS = ("knn_top1", "alignment", "uniformity", "tolerance", "sensitivity", "rankme")
"""Metrics of the last validation, at the encoder, which are columns of the table."""

TEST_METRICS = ("knn_top1", "linear_top1")
"""Metrics on the test split, at the encoder, which are the first columns of the table."""

LIBRARIES = ("torch", "torchvision", "pytorch-lightning", "lightly")
SEEDS = 3
"""Seeds that a mean needs."""


def row(run: Run, commit: str) -> dict[str, Any]:
    """Return the result of a finished run.

    Args:
        run: a finished run.
        commit: of the code that trained it.
    """
    return {
        "run": run.name,
        **{name: run.setting(key) for name, key in SETTINGS.items()},
        "validation": {metric: run.last(f"val/{metric}") for metric in METRICS},
        "validated_on": run.validated_on,
        "seconds": run.seconds,
        "test": evaluation_summary(run.evaluation, run.config, epoch=run.epoch),
        "command": f"ssl-vision sweep configs/sweep/{run.folder.path.parent.name}.yaml",
        "commit": commit,
        "versions": {library: version(library) for library in LIBRARIES},
    }


def collect(folder: Path) -> None:
    """Add the rows of the finished runs below a directory."""
    commit = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    file = RESULTS / f"{folder.resolve().name}.json"
    rows = {each["run"]: each for each in json.loads(file.read_text())} if file.exists() else {}
    finished = [run for run in find_runs([folder]) if run.damage is None and run.status == "finished"]
    rows |= {run.name: row(run, commit) for run in finished}
    file.write_text(json.dumps([rows[name] for name in sorted(rows)], indent=1) + "\n")
    print(f"{len(finished)} finished runs, {len(rows)} rows in {file}")


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table in Markdown, a line for each method, objective and temperature."""
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = defaultdict(list)
    for each in rows:
        groups[each["method"], each["objective"], each["temperature"]].append(each)
    columns = [("test", f"test/{name}", name) for name in TEST_METRICS]
    columns += [("validation", name, name) for name in METRICS]
    titles = [f"{split} {description_of(name).heading}" for split, _, name in columns]
    lines = [["method", "objective", "τ", "seeds", *titles]]
    for (method, objective, temperature), group in sorted(groups.items()):
        count = f"{len(group)}" if len(group) >= SEEDS else f"{len(group)} (of {SEEDS})"
        cells = [_cell([each[split].get(key) for each in group], name) for split, key, name in columns]
        lines.append([method, objective, f"{temperature:g}", count, *cells])
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body])


def _cell(found: list[float | None], metric: str) -> str:
    values = [value for value in found if value is not None]
    if not values:
        return ""
    description = description_of(metric)
    deviation = f" ± {description.shown(stdev(values))}" if len(values) > 1 else ""
    return description.shown(fmean(values)) + deviation


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("collect", "render"))
    parser.add_argument("name", type=Path, help="directory of the runs, or name of the results")
    options = parser.parse_args()
    if options.action == "collect":
        collect(options.name)
    else:
        print(table(json.loads((RESULTS / f"{options.name.name}.json").read_text())))


if __name__ == "__main__":
    main()
