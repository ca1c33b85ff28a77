"""Every objective on CIFAR-10 in small: accuracy beside what its gradient does.

    python benchmarks/family.py --data data                                     a narrow network, on a CPU
    python benchmarks/family.py --data data --width 64 --epochs 50 --limit 1.0 --precision bf16-mixed

Each file of configs/objective trains the same network from the same weights on the same views. The columns
are the kNN and linear accuracy of the backbone on test; Spearman's correlation of the cosines of test views
with the grade of the pair (same image, same class, other); and, of the last logged step, the mean gate and
the gap between the angles of different images and of two views. Writes benchmarks/results/family.json.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from provenance import provenance, save

from ssl_vision.data import CIFAR10
from ssl_vision.evaluation.features import embed_views
from ssl_vision.evaluation.rebuild import trained_model
from ssl_vision.metrics import rank_correlation
from ssl_vision.runs.checkpoint import read_checkpoint

CONFIGS = Path(__file__).parent.parent / "configs"
COLUMNS = {
    "knn": "kNN %",
    "linear": "linear %",
    "spearman": "ρ",
    "gate": "mean gate",
    "angle_gap": "angle gap, rad",
}


def one(file: Path, chosen: argparse.Namespace, runs: Path) -> dict:
    """Trains and measures one objective."""
    run = runs / file.stem
    program = [sys.executable, "-m", "ssl_vision"]
    fit = ["fit", "--config", str(CONFIGS / "pretrain/cifar10.yaml"), "--config", str(file)]
    fit += ["--name", file.stem, "--runs_dir", str(runs), "--data.root", chosen.data]
    fit += ["--model.width", str(chosen.width), "--data.batch_size", str(chosen.batch)]
    fit += ["--trainer.max_epochs", str(chosen.epochs), "--trainer.limit_train_batches", chosen.limit]
    fit += ["--trainer.precision", chosen.precision, "--trainer.limit_val_batches", "0"]
    fit += ["--trainer.enable_progress_bar", "false", "--trainer.log_every_n_steps", "10"]
    diagnosed = file.stem != "reclaim"  # which wants more than embeddings
    start = time.perf_counter()
    subprocess.run([*program, *fit, "--gradients", str(diagnosed).lower()], check=True, stdout=sys.stderr)
    seconds = time.perf_counter() - start
    evaluate = ["evaluate", str(run), "--baselines", "false", "--protocol", str(chosen.protocol)]
    subprocess.run([*program, *evaluate], check=True, stdout=sys.stderr)
    rows = json.loads((run / "evaluation.json").read_text())
    found = {row["metric"].removesuffix("_top1"): row["value"] for row in rows}
    with (run / "metrics.csv").open(newline="") as metrics:
        logged = [row for row in csv.DictReader(metrics) if row.get("gradient/gate")]
    last = {key: float(logged[-1][f"gradient/{key}"]) for key in ("gate", "angle_gap")} if logged else {}
    record = {"objective": file.stem, "fit_seconds": round(seconds, 1), "knn": 100 * found["knn"]}
    record |= {"linear": 100 * found["linear"], "spearman": spearman(run, chosen), **last}
    print(json.dumps(record), file=sys.stderr, flush=True)
    return record


def spearman(run: Path, chosen: argparse.Namespace) -> float:
    """ρ over the pairs of two views of the first ``--ranked`` test images."""
    data = CIFAR10(root=chosen.data)
    test = data.split("test").select(torch.arange(len(data.split("test"))) < chosen.ranked)
    pair = embed_views(trained_model(read_checkpoint(run)), test, data.views, seed=0)
    levels = torch.stack([test.labels, torch.arange(len(test))], dim=1).repeat(2, 1)
    return float(rank_correlation(torch.cat([layers.backbone for layers in pair]), levels).spearman)


def table(records: list[dict]) -> str:
    """A line for each objective, the best kNN first."""
    lines = ["| objective | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for record in sorted(records, key=lambda record: -record["knn"]):
        cells = [
            f"{record[key]:.{1 if key in ('knn', 'linear') else 2}f}" if key in record else ""
            for key in COLUMNS
        ]
        lines.append(f"| `{record['objective']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Trains, prints the table, writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="data", help="folder of the official CIFAR-10")
    parser.add_argument("--objectives", nargs="*", help="names of files in configs/objective; all by default")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", default="200", help="batches of an epoch, or as 1.0 their share")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--ranked", type=int, default=2000)
    chosen = parser.parse_args()
    files = sorted((CONFIGS / "objective").glob("*.yaml"))
    files = [file for file in files if not chosen.objectives or file.stem in chosen.objectives]
    with tempfile.TemporaryDirectory() as folder:
        chosen.protocol = Path(folder) / "family.yaml"
        chosen.protocol.write_text("measurements: [knn: {k: 200}, linear: {epochs: 20, lr: 0.1}]\n")
        records = [one(file, chosen, Path(folder)) for file in files]
    del chosen.protocol
    save("family", provenance("torchvision") | {"options": vars(chosen), "objectives": records})
    print(table(records))


if __name__ == "__main__":
    main()
