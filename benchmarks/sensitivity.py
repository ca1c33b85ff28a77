"""Measure semantic sensitivity over the temperature, by layer and by the pairs of images that are averaged.

    python benchmarks/sensitivity.py runs/choosing_cifar10 --where jitter=0.8

The networks are those of the finished InfoNCE runs below a directory. The MACL paper states S over the
temperature only for STL-10 (configs/paper/macl.yaml, Table 2), and neither the layer nor the pairs. The
script prints a row for each choice of both, with S at each temperature and whether S has the paper's order at
those temperatures that are also in the paper, and writes benchmarks/results/sensitivity.json.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytorch_lightning as pl
import torch
import yaml
from choosing import sensitivity_table
from provenance import provenance, save
from scipy import stats
from torch import Tensor
from torch.nn.functional import normalize

from ssl_vision.cli.config_objects import built
from ssl_vision.data import ImageData
from ssl_vision.evaluation.features import embed, embed_views
from ssl_vision.experiments.compare.runs_table import filtered
from ssl_vision.methods import Layers
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.registry import Run, find_runs

PAPER = Path(__file__).parent.parent / "configs" / "paper" / "macl.yaml"

Choice = tuple[str, str, str]
"""Layer, split and pairs."""


def sensitivities(first: Tensor, second: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the mean of exp(−(H_xy − f(x)·g(y))²) over different sets of pairs.

    Args:
        first: features f of N images, shape (N, F), which are L2-normalised.
        second: features g of the same images.
        labels: class numbers, shape (N,).

    Returns:
        S over all ordered pairs x ≠ y; over all pairs, including x = y; and as the mean of S over pairs of
        the same class and S over pairs of different classes.
    """
    f, g = normalize(first.double()), normalize(second.double())
    same = labels[:, None] == labels
    terms = (-((2.0 * same - 1 - f @ g.T) ** 2)).exp()
    other = ~torch.eye(len(labels), dtype=torch.bool)
    return {
        "x ≠ y": float(terms[other].mean()),
        "with x = y": float(terms.mean()),
        "classes balanced": float((terms[same & other].mean() + terms[~same].mean()) / 2),
    }


def measured(run: Run, images: int, root: str | None) -> dict[Choice, float]:
    """Return S of the last checkpoint of a run by layer, split and pairs."""
    opened = open_run(run.folder.path)
    if root is not None:
        opened.config["data"]["init_args"]["root"] = root
    data: ImageData = built(pl.LightningDataModule, "data", opened.config, where=run.name, allow_class=())
    model = opened.trained()
    values: dict[Choice, float] = {}
    for name in ("train", "test"):
        split = data.split("train" if name == "train" else "test")
        count = min(images, len(split))
        rows = torch.arange(count) * len(split) // count
        part = split.select(rows)
        plain = embed(model, part, data.views)
        views = embed_views(model, part, data.views, seed=0)
        for layer in Layers._fields:
            first, second = views[layer]
            for kind, f, g in (("", plain[layer], plain[layer]), ("two views, ", first, second)):
                for pairs, value in sensitivities(f, g, part.labels).items():
                    values[layer, name, kind + pairs] = value
    return values


def paper_order() -> dict[float, float]:
    """Return the paper's S of InfoNCE by temperature."""
    table = yaml.safe_load(PAPER.read_text())["tables"][2]
    temperatures = table["columns"]["Temperature"]["at"]
    return dict(zip(temperatures, table["values"]["InfoNCE"]["S"], strict=False))


def agreement(values: dict[float, float]) -> float | None:
    """Return Spearman's correlation with the paper's S; None for fewer than three common temperatures."""
    paper = paper_order()
    common = sorted(paper.keys() & values.keys())
    if len(common) < 3:
        return None
    return float(stats.spearmanr([paper[each] for each in common], [values[each] for each in common])[0])


def main() -> None:
    """Measure, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="directories of the runs")
    parser.add_argument("--where", action="append", default=[], help="KEY=VALUE that the runs must have")
    parser.add_argument("--images", type=int, default=2000, help="evenly spaced images of each split")
    parser.add_argument("--root", help="directory of the data, instead of that of the runs")
    options = parser.parse_args()
    runs = [run for run in find_runs(options.runs) if run.status == "finished"]
    runs = filtered(runs, ["objective=InfoNCE", *options.where])
    values: dict[Choice, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: float(run.setting("model.objective.temperature"))):
        for choice, value in measured(run, options.images, options.root).items():
            values[choice][float(run.setting("model.objective.temperature"))].append(value)
    record = provenance("torchvision", device="cuda") | {
        "images": options.images,
        "runs": [run.name for run in runs],
    }
    record["rows"] = []
    for (layer, split, pairs), by_temperature in values.items():
        means = {temperature: fmean(each) for temperature, each in by_temperature.items()}
        row = {"layer": layer, "split": split, "pairs": pairs, "spearman": agreement(means)}
        record["rows"].append(row | {"values": {str(each): round(mean, 6) for each, mean in means.items()}})
    save("sensitivity", record)
    for line in sensitivity_table():
        print(" | ".join(line))


if __name__ == "__main__":
    main()
