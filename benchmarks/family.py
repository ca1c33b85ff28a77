"""Train every objective on CIFAR-10 at a small scale, and compare accuracy and gradient diagnostics.

    python benchmarks/family.py --data data                                     a narrow network, on a CPU
    python benchmarks/family.py --data data --width 64 --epochs 50 --limit 1.0 --precision bf16-mixed
    python benchmarks/family.py --data data --start runs/pretrained --lr 1e-4

Each file of configs/objective trains the same network on the same views from the same weights. These are
random, or with --start those of another run, which then has a row of its own. The columns are

- the kNN and linear accuracy of the backbone on the test split;
- Spearman's correlation between the cosines of test views and the grade of the pair (same image, same class,
  other);
- means over the last quarter of the logged values of the mean gate, the gap between the angles of different
  images and of two views, the hardest negative's share of the push, pull over push, and the share of
  embeddings that a small step moves closer to their positive.

Below the table, the script prints Spearman's correlation of these columns with kNN over the objectives.
Existing runs are not trained again. The script writes benchmarks/results/family.json, or
family_continued.json with --start; on a GPU, the names end with _cuda.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from provenance import provenance, save
from scipy.stats import spearmanr

from ssl_vision.data import CIFAR10
from ssl_vision.evaluation.features import embed_views
from ssl_vision.metrics import rank_correlation
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.registry import Run

CONFIGS = Path(__file__).parent.parent / "configs"
PROGRAM = [sys.executable, "-m", "ssl_vision", "--quiet"]
PROTOCOL = "measurements: [knn: {k: 200}, linear: {epochs: 20, lr: 0.1}]\n"
COLUMNS = {
    "knn": ("kNN %", 1),
    "linear": ("linear %", 1),
    "spearman": ("ρ", 3),
    "gate": ("mean gate", 2),
    "angle_gap": ("angle gap, rad", 2),
    "hardest_share": ("hardest share", 2),
    "ratio": ("ratio", 2),
    "lemma_share": ("lemma share", 2),
}
LOGGED = [key for key in COLUMNS if key not in ("knn", "linear", "spearman")]

call = partial(subprocess.run, check=True, stdout=sys.stderr)


def one(file: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one objective."""
    runs, run = Path(chosen.runs), Path(chosen.runs) / file.stem
    fit = ["fit", "--config", str(CONFIGS / "pretrain/cifar10.yaml"), "--config", str(file)]
    fit += ["--name", file.stem, "--runs_dir", str(runs), "--data.root", chosen.data]
    fit += ["--model.encoder.width", str(chosen.width), "--data.batch_size", str(chosen.batch)]
    fit += ["--trainer.max_epochs", str(chosen.epochs), "--trainer.limit_train_batches", chosen.limit]
    fit += ["--trainer.precision", chosen.precision, "--trainer.limit_val_batches", "0"]
    fit += ["--model.optimizer.lr", str(chosen.lr), "--seed_everything", str(chosen.seed)]
    fit += ["--trainer.log_every_n_steps", "10", "--report", "false", "--gradients", "true"]
    fit += ["--initial_checkpoint", chosen.start] if chosen.start else []
    if not (run / "config.yaml").exists():
        call([*PROGRAM, *fit])
    elif not (run / "evaluation.json").exists():
        call([*PROGRAM, *fit, "--ckpt_path", "last"])
    record = {"objective": file.stem, **measured(run, chosen), **logged(run)}
    print(time.strftime("%H:%M"), json.dumps(record), file=sys.stderr, flush=True)
    return record


def measured(run: Path, chosen: argparse.Namespace) -> dict[str, float]:
    """Return kNN and linear accuracy in percent, and ρ."""
    if not evaluated(run):
        evaluate = ["evaluate", str(run), "--baselines", "false", "--report", "false"]
        call([*PROGRAM, *evaluate, "--protocol", str(Path(chosen.runs) / "family.yaml")])
    accuracies = {row["metric"].removesuffix("_top1"): 100 * row["value"] for row in evaluated(run)}
    return accuracies | {"spearman": spearman(run, chosen)}


def evaluated(run: Path) -> list[dict[str, Any]]:
    """Return the rows of the backbone under the protocol of this script."""
    file, wanted = run / "evaluation.json", {"protocol": "family", "features": "trained", "layer": "backbone"}
    rows = json.loads(file.read_text()) if file.exists() else []
    return [row for row in rows if wanted.items() <= row.items()]


def logged(run: Path) -> dict[str, float]:
    """Compute means over the last quarter of each diagnostic that the objective has."""
    means = {}
    for key in LOGGED:
        values = [value for _, _, value in Run(run).curve(f"gradient/{key}")]
        last = values[-max(1, len(values) // 4) :]
        if last:
            means[key] = sum(last) / len(last)
    return means


def spearman(run: Path, chosen: argparse.Namespace) -> float:
    """Compute ρ over all pairs of two views of the first ``--ranked`` test images."""
    data = CIFAR10(root=chosen.data)
    test = data.split("test").select(torch.arange(len(data.split("test"))) < chosen.ranked)
    pair = embed_views(open_run(run).trained(), test, data.views, seed=0)
    levels = torch.stack([test.labels, torch.arange(len(test))], dim=1).repeat(2, 1)
    return float(rank_correlation(pair["backbone"].flatten(0, 1), levels).spearman)


def refuse_others(chosen: argparse.Namespace) -> None:
    """Exit if the directory contains runs with other options."""
    file = Path(chosen.runs) / "options.json"
    free = ("data", "objectives", "jobs", "runs")
    options = {key: value for key, value in vars(chosen).items() if key not in free}
    if file.exists() and json.loads(file.read_text()) != options:
        sys.exit(f"{chosen.runs} has runs with other options: choose another --runs")
    file.write_text(json.dumps(options))


def table(records: list[dict[str, Any]]) -> str:
    """Format a row for each objective, the best kNN first."""
    lines = ["| objective | " + " | ".join(title for title, _ in COLUMNS.values()) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for record in sorted(records, key=lambda record: -record["knn"]):
        cells = [f"{record[key]:.{digits}f}" if key in record else "" for key, (_, digits) in COLUMNS.items()]
        lines.append(f"| `{record['objective']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def conjectures(records: list[dict[str, Any]]) -> dict[str, float]:
    """Compute Spearman's correlation with kNN over the objectives that have the diagnostic."""
    correlations = {}
    for key in LOGGED:
        both = [(record[key], record["knn"]) for record in records if key in record]
        if len(both) > 2:
            correlations[key] = float(spearmanr(*zip(*both, strict=True)).statistic)
    return correlations


def main() -> None:
    """Train, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="data", help="folder of the official CIFAR-10")
    parser.add_argument("--objectives", nargs="*", help="names of files in configs/objective (default: all)")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--limit", default="250", help="number of batches of an epoch, or a share such as 1.0"
    )
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", help="run with the initial weights of all objectives")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--ranked", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1, help="objectives trained at a time")
    parser.add_argument("--runs", default="runs/family", help="directory of the runs")
    chosen = parser.parse_args()
    files = sorted((CONFIGS / "objective").glob("*.yaml"))
    files = [file for file in files if not chosen.objectives or file.stem in chosen.objectives]
    Path(chosen.runs).mkdir(parents=True, exist_ok=True)
    (Path(chosen.runs) / "family.yaml").write_text(PROTOCOL)
    refuse_others(chosen)
    torch.set_num_threads(1)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        records = list(pool.map(partial(one, chosen=chosen), files))
    if chosen.start:
        records.append({"objective": "start", **measured(Path(chosen.start), chosen)})
    name = "family" + ("_continued" if chosen.start else "") + ("_cuda" if torch.cuda.is_available() else "")
    correlations = conjectures(records)
    results = {"objectives": records, "correlation_with_knn": correlations}
    save(name, provenance("torchvision") | {"options": vars(chosen)} | results)
    print(table(records))
    print("\ncorrelation with kNN over the objectives: ", end="")
    print(", ".join(f"{COLUMNS[key][0]} {value:+.2f}" for key, value in correlations.items()))


if __name__ == "__main__":
    main()
