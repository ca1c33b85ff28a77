"""Make the images of docs/start_from_weights.md, and collect the runs of its sweeps as rows of JSON.

    python benchmarks/adaptation.py images data garden others
    python benchmarks/adaptation.py reestimate runs/RUN
    ssl-vision evaluate runs/RUN --other reestimated=runs/RUN/reestimated.pt --protocol macl
    python benchmarks/adaptation.py collect runs/adapt_efficientnet runs/adapt_resnet

``images`` writes CIFAR-100 as folders of PNG files. Twenty classes (flowers, fruit and vegetables, trees,
insects) are in GARDEN: of each, the first 20 train images in train/CLASS, the next 180 without labels
directly in train, and all test images in test/CLASS. The train images of the other classes are in
OTHERS/train, without labels.

``reestimate`` computes the statistics of BatchNorm in the encoder of a run anew, over its plain train images.

``collect`` adds a row to benchmarks/results/adaptation.json for each run that is not running and was
evaluated under the protocols macl and benchmarks/knn20.yaml. A run that is collected again replaces its row.
``benchmarks/results.py render`` writes the tables into the page.
"""

import argparse
import json
import pickle
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from provenance import RESULTS, training_source
from rows import Row
from torch import nn

from ssl_vision.data import ImageFolder
from ssl_vision.pretrained.backbones import read_backbone
from ssl_vision.runs.registry import Run, find_runs

DOMAIN = ("flowers", "fruit_and_vegetables", "trees", "insects")
"""Superclasses of CIFAR-100 whose images are in GARDEN."""

LABELLED, WITHOUT_LABELS = 20, 180
"""Numbers of labelled and of unlabelled train images of each class."""

MEASUREMENTS: dict[str, dict[str, Any]] = {
    "knn": {"protocol": "knn20", "metric": "knn_top1", "k": 20},
    "linear": {"protocol": "macl", "metric": "linear_top1"},
}
"""Fields in evaluation.json of the accuracies of a row."""

SETTINGS = {
    "encoder": "model.encoder",
    "encoder_name": "model.encoder.name",
    "depth": "model.encoder.depth",
    "width": "model.encoder.width",
    "seed": "seed",
    "size": "data.views.size",
    "encoder_statistics": "model.encoder_statistics",
}


def images(root: Path, garden: Path, others: Path) -> None:
    """Write the folders of PNG files.

    Args:
        root: directory that contains cifar-100-python.
        garden: folder of the 20 classes.
        others: folder of the other classes.
    """
    source = root / "cifar-100-python"
    names = unpickled(source / "meta")
    for split in ("train", "test"):
        data = unpickled(source / split)
        pixels = data["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        seen = Counter[str]()
        labels = zip(data["fine_labels"], data["coarse_labels"], strict=True)
        for number, (fine, coarse) in enumerate(labels):
            name = names["fine_label_names"][fine]
            file = f"{number}.png"
            if names["coarse_label_names"][coarse] not in DOMAIN:
                if split == "train":
                    save_image(pixels[number], others / "train" / file)
                continue
            seen[name] += 1
            if split == "test" or seen[name] <= LABELLED:
                save_image(pixels[number], garden / split / name / file)
            elif seen[name] <= LABELLED + WITHOUT_LABELS:
                save_image(pixels[number], garden / "train" / file)


def unpickled(file: Path) -> dict[str, Any]:
    """Return the contents of an official file of CIFAR-100."""
    with file.open("rb") as stream:
        contents: dict[str, Any] = pickle.load(stream, encoding="latin1")
    return contents


def save_image(pixels: Any, file: Path) -> None:
    """Save an array of shape (32, 32, 3) as a file, whose directories are created."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@torch.no_grad()
def reestimate(path: Path) -> None:
    """Write the encoder of a run with statistics of BatchNorm over its plain train images."""
    encoder, about = read_backbone(path)
    images = ImageFolder(root=Run(path).setting("data.root"), image_size=about.decoded_size).split("pretrain")
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches
            module.train()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    for rows in order.split(256):
        encoder(about.views.plain(images.at(rows)))
    torch.save(encoder.state_dict(), path / "reestimated.pt")


def row(run: Run, source: Row) -> Row | None:
    """Return the result of a run; None if it was not evaluated under both protocols.

    Args:
        run: a run of a sweep.
        source: commit, command and versions with which it was trained.
    """
    accuracies = {name: accuracy(run, fields) for name, fields in MEASUREMENTS.items()}
    if None in accuracies.values():
        return None
    return {
        "sweep": run.folder.path.resolve().parent.name,
        "run": run.name,
        "arm": arm(run.name),
        **{name: run.setting(key) for name, key in SETTINGS.items()},
        "epochs": run.epoch,
        **accuracies,
        "validations": sum(epoch >= 0 for _, epoch, _ in run.curve("val/knn_top1")),
        "below_start": len(run.curve("val/below_start")),
        "seconds": run.seconds,
        **source,
    }


def arm(name: str) -> str | None:
    """Return the recipe of a run, from the config file in its name; None if the sweep has no configs.

    Example:
        >>> arm("config=configs_pretrain_adapt.yaml,seed_everything=0-fe26d5")
        'adapt'
    """
    match = re.search(r"\bconfig=(?:[^,]*_)?([^_,]+)\.yaml", name)
    return match and match[1]


def accuracy(run: Run, fields: dict[str, Any]) -> Row | None:
    """Return the latest measurement of an accuracy of the trained backbone, with its start and its gain.

    Args:
        run: a run.
        fields: fields of its rows in evaluation.json.

    Returns:
        The value, its epoch, the values of the start and with re-estimated statistics, the gain with its
        interval, and the number of test images. Start and gain are None for a run from random weights. None
        if there is no such row.
    """
    fields = {"layer": "backbone", "split": "test"} | fields
    rows = [each for each in run.evaluation if fields.items() <= each.items()]
    latest = {each["features"]: each for each in rows}
    if "trained" not in latest:
        return None
    names = ("value", "epoch", "gain", "gain_low", "gain_high", "test_images")
    others = {name: latest.get(name, {}).get("value") for name in ("start", "reestimated")}
    return {name: latest["trained"].get(name) for name in names} | others


def collect(sweeps: Sequence[Path], command: str | None = None, commit: str | None = None) -> None:
    """Add the rows of the evaluated runs of sweeps.

    Args:
        sweeps: directories of the runs.
        command: command that trained them; None is the sweep of benchmarks/ with the name of the directory.
        commit: commit with which they were trained; None is that of the checkout in which they are.
    """
    file = RESULTS / "adaptation.json"
    before = json.loads(file.read_text()) if file.exists() else []
    rows = {(each["sweep"], each["run"]): each for each in before}
    for sweep in sweeps:
        source = training_source(sweep, command or f"ssl-vision sweep benchmarks/{sweep.resolve().name}.yaml")
        source |= {"commit": commit} if commit else {}
        for run in find_runs([sweep]):
            new = None if run.damage or run.status == "running" else row(run, source)
            if new is None:
                print(f"left out: {sweep.name}/{run.name} is running, or not evaluated under both protocols")
            else:
                rows[new["sweep"], new["run"]] = new
    file.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n")
    print(f"{len(rows)} rows in {file}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    making = actions.add_parser("images")
    making.add_argument("root", type=Path, metavar="CIFAR100_ROOT", help="contains cifar-100-python")
    making.add_argument("garden", type=Path, metavar="GARDEN", help="folder of the 20 classes")
    making.add_argument("others", type=Path, metavar="OTHERS", help="folder of the other classes")
    estimating = actions.add_parser("reestimate")
    estimating.add_argument("run", type=Path, metavar="RUN", help="directory of the run")
    collecting = actions.add_parser("collect")
    collecting.add_argument("sweeps", type=Path, nargs="+", metavar="SWEEP", help="directory of the runs")
    collecting.add_argument("--command", help="command that trained the runs, if not a sweep of benchmarks/")
    collecting.add_argument("--commit", help="commit, if the runs are outside of the checkout")
    options = parser.parse_args()
    if options.action == "images":
        images(options.root, options.garden, options.others)
    elif options.action == "reestimate":
        reestimate(options.run)
    else:
        collect(options.sweeps, options.command, options.commit)


if __name__ == "__main__":
    main()
