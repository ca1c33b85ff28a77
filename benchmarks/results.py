"""Collect the results of finished runs as rows of JSON, and render them in the documentation.

    python benchmarks/results.py collect runs/methods_cifar10_narrow     adds rows of finished runs
    python benchmarks/results.py collect runs/macl --record paper.json   the same for a job of gpu.py
    python benchmarks/results.py render                                  writes the tables of README and docs

Rows are kept in benchmarks/results/NAME.json, where NAME is the directory of the runs. Each has the run's
settings, the last validation, the values of the last epoch on the test split, the command (that of the sweep
NAME, without ``--command``), and the commit of the checkout in which the runs are. A run that is collected
again replaces its row. ``--record`` takes commit, command, device and versions from the record of a job of
gpu.py, whose runs were unpacked from its bundle. Rendering replaces the text between ``<!-- results: TABLE
-->`` and ``<!-- end of results -->`` in the pages by a table of tables.py, draws the figures of figures.py,
and updates the measurements that ``ssl-vision choose`` reads.
"""

import argparse
import json
import re
from pathlib import Path
from statistics import median

import choosing
import figures
from paper_tables import CONJECTURES, DISSIPATION
from provenance import RESULTS, training_source
from rows import CRITIC, Row
from tables import GEOMETRY, TABLES

from ssl_vision.runs.evaluation_file import evaluation_summary
from ssl_vision.runs.files import last_value
from ssl_vision.runs.registry import Run, find_runs

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("results", "choosing", "start_from_weights")),
)
SETTINGS = {
    "method": "model",
    "objective": "objective",
    "temperature": "model.objective.temperature",
    "seed": "seed",
    "data": "data",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "width": "model.encoder.width",
    "jitter": "data.views.jitter",
    "negatives": "model.objective.negatives",
    "nearest": "model.objective.k",
    "weight": "model.objective.weight",
    "margin": "model.objective.gate.margin",
    "negatives_temperature": "model.objective.weight.temperature",
    "ratio": "model.objective.ratio",
    "precision": "trainer.precision",
    "lr": "model.optimizer.lr",
    "cuda_graph": "model.cuda_graph",
    "k": "metrics.k",
}
CURVES = ("val/knn_top1", "train/alignment", *DISSIPATION, *CONJECTURES, *CRITIC)
_POINTS = 10
RANKS = ("effective_rank", "lidar")
"""Metrics that validation measures with ``--metrics.extended true``."""
OF_JOB = ("command", "commit", "device", "gpu", "shared_by_mps", "processor", "python", "versions")

_TABLE = re.compile(r"(<!-- results: ([^>]*) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def row(run: Run, source: Row) -> Row:
    """Return the result of a finished run.

    Args:
        run: a finished run.
        source: commit, command and versions with which it was trained.
    """
    timed = [row for row in run.times if row.get("time/train_seconds")]
    rates = [
        run.setting("batch_size") * row["time/train_batches"] / row["time/train_seconds"] for row in timed
    ]
    return {
        "run": run.name,
        **{name: run.setting(key) for name, key in SETTINGS.items()},
        "validation": {metric: run.last(f"val/{metric}") for metric in ("knn_top1", *GEOMETRY, *RANKS)},
        "curves": {metric: points for metric in CURVES if (points := curve(run, metric))},
        "validated_on": run.validated_on,
        "seconds": run.seconds,
        "images_per_second": round(median(rates)) if rates else None,
        "device_mb": last_value(run.times, "memory/device_mb"),
        "test": evaluation_summary(run.evaluation, run.config, epoch=run.epoch),
        **source,
    }


def curve(run: Run, metric: str) -> list[tuple[int, float]]:
    """Return step and value at up to 10 evenly spaced points of a metric, with the first and the last."""
    points = [(step, value) for step, _, value in run.curve(metric)]
    if len(points) <= _POINTS:
        return points
    return [points[round(i * (len(points) - 1) / (_POINTS - 1))] for i in range(_POINTS)]


def collect(folder: Path, command: str | None = None, record: Path | None = None) -> None:
    """Add the rows of the finished runs below a directory.

    Args:
        folder: directory of the runs.
        command: command that trained them; None is the sweep with the name of the directory.
        record: record of the job of gpu.py that trained them; None describes this checkout.
    """
    name = folder.resolve().name
    if record is None:
        source = training_source(folder, command or f"ssl-vision sweep configs/sweep/{name}.yaml")
    else:
        source = {key: value for key, value in json.loads(record.read_text()).items() if key in OF_JOB}
    file = RESULTS / f"{name}.json"
    rows = {each["run"]: each for each in json.loads(file.read_text())} if file.exists() else {}
    finished = [run for run in find_runs([folder]) if run.damage is None and run.status == "finished"]
    rows |= {run.name: row(run, source) for run in finished}
    file.write_text(json.dumps([rows[name] for name in sorted(rows)], indent=1) + "\n")
    print(f"{len(finished)} finished runs, {len(rows)} rows in {file}")


def rendered(page: str) -> str:
    """Return the text of a page with its tables up to date.

    Raises:
        KeyError: the page names a table that does not exist.
    """
    return _TABLE.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", page)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    collecting = actions.add_parser("collect")
    collecting.add_argument("runs", type=Path, help="directory of the runs")
    collecting.add_argument("--command", help="command that trained the runs, if it is not a sweep")
    collecting.add_argument("--record", type=Path, help="record of the job of gpu.py that trained the runs")
    actions.add_parser("render")
    options = parser.parse_args()
    if options.action == "collect":
        collect(options.runs, options.command, options.record)
        return
    choosing.save()
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
    figures.main()


if __name__ == "__main__":
    main()
