"""Evaluate one checkpoint under several protocols: the table in docs/evaluation.md.

    python benchmarks/protocols.py runs/cifar10 --protocol macl --protocol dkobak

Arguments after the run directory are passed to ``evaluate``. The script prints a row for each measurement,
with the accuracies of the backbone, the untrained network and raw pixels, and writes
benchmarks/results/protocols.json with all rows and the settings of the run.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from provenance import provenance, save

NAMES = {
    "knn_top1": "kNN",
    "linear_top1": "linear",
    "grid_top1": "grid",
    "logistic_top1": "logistic",
    "finetune_top1": "fine-tuned",
    "online_top1": "online",
}
ABOUT = ("distance", "vote", "k", "temperature", "labels", "augmentation")
BACKBONES = {"trained": "backbone", "untrained": "backbone", "pixels": "raw"}
HEADS = {"trained": "top-1 %, trained", "untrained": "untrained", "pixels": "raw pixels"}


def measurement(row: dict[str, Any]) -> str:
    """Describe a measurement."""
    options = {key: row[key] for key in ABOUT if row.get(key) not in (None, "none")}
    words = [
        f"{key[:1] if key == 'k' else 'T'} = {options[key]:g}"
        for key in ("k", "temperature")
        if key in options
    ]
    words = [*(str(options[key]) for key in ("distance", "vote") if key in options), *words]
    words += [f"{options['labels']} of the labels"] if "labels" in options else []
    words += [str(options["augmentation"])] if "augmentation" in options else []
    return ", ".join([NAMES[row["metric"]], *words])


def table(rows: list[dict[str, Any]]) -> str:
    """Format a row for each measurement."""
    lines_of: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["metric"] in NAMES and BACKBONES.get(row["features"]) == row["layer"]:
            line = lines_of.setdefault((row["protocol"], measurement(row)), {})
            line[row["features"]] = 100 * row["value"]
    backbones = [name for name in BACKBONES if any(name in values for values in lines_of.values())]
    head = ["protocol", "measurement", *(HEADS[name] for name in backbones)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (protocol, label), values in lines_of.items():
        cells = [f"{values[name]:.1f}" if name in values else "" for name in backbones]
        lines.append(f"| `{protocol}` | {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Evaluate, print the table and write the record."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    run = Path(sys.argv[1])
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        evaluate = ["evaluate", *sys.argv[1:], "--output", str(output)]
        subprocess.run([sys.executable, "-m", "ssl_vision", *evaluate], check=True)
        rows = json.loads(output.read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    record = provenance("torchvision", "scikit-learn", device="cuda") | {
        "run": {key: config[key] for key in ("seed_everything", "model", "trainer")},
        "epoch": max(row["epoch"] for row in rows),
        "seconds": round(time.perf_counter() - start, 1),
        "rows": rows,
    }
    save("protocols", record)
    print(table(rows))


if __name__ == "__main__":
    main()
