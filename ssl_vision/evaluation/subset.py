"""Subsets of the labels, which are the same images for everyone."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ssl_vision.data import CIFAR10
from ssl_vision.evaluation.stratified import stratified

Labels = Literal["all", "1%", "5%", "10%", "20%", "30%", "50%"]

SHARES = {"1%": 0.01, "5%": 0.05, "10%": 0.1, "20%": 0.2, "30%": 0.3, "50%": 0.5}
_LISTED = ("1%", "10%")
"""Shares with an index file for CIFAR-10."""

SEED = 0
_SHIPPED = files("ssl_vision.evaluation") / "subsets"


def label_subset(labels: Tensor, share: Labels, data: str) -> Tensor:
    """Return the labels of a training split with -1 outside a subset.

    If the package has an index file for the data set, it lists the rows. Otherwise, `stratified` draws them
    with seed 0, as it did for the files.

    Args:
        labels: labels of the whole training split, int64 of shape (N,).
        share: share of the labels to keep.
        data: name of the class of the data set.

    Raises:
        ValueError: the file is for a training split of another size.
    """
    if share == "all":
        return labels
    file = _SHIPPED / _name(data, share)
    if file.is_file():
        rows = torch.tensor([int(word) for word in file.read_text(encoding="utf-8").split()])
        if int(rows.max()) >= len(labels):
            raise ValueError(f"labels {share}: the subset is of a larger train split than {len(labels)} rows")
        keep = torch.zeros(len(labels), dtype=torch.bool)
        keep[rows] = True
    else:
        keep = stratified(labels, SHARES[share], seed=SEED)
    return labels.where(keep.to(labels.device), -1)


def write(folder: Path, root: Path) -> None:
    """Write the subsets of CIFAR-10, with official files below ``root``, as sorted rows, ten in a line."""
    labels = CIFAR10(root=root).split("train").labels
    for share in _LISTED:
        rows = stratified(labels, SHARES[share], seed=SEED).nonzero()[:, 0].tolist()
        lines = [" ".join(map(str, rows[start : start + 10])) for start in range(0, len(rows), 10)]
        (folder / _name("CIFAR10", share)).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _name(data: str, share: str) -> str:
    return f"{data.lower()}_{share.removesuffix('%')}_percent.txt"


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
