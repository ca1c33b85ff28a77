"""Bitwise comparison of the final states of two runs."""

from pathlib import Path
from typing import Any

import torch

from ssl_vision.runs.folder import RunFolder

_KEYS = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "epoch", "global_step")


def everything(run: Path) -> dict[str, Any]:
    """Return the content of the run's last checkpoint."""
    content: dict[str, Any] = torch.load(RunFolder(run).last, weights_only=True)
    return content


def difference(one: Any, other: Any, path: str = "") -> str:
    """Return where two nested structures of tensors and values first differ; empty if they are equal."""
    if type(one) is not type(other):
        return f"{path}: {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{path}: keys {sorted(map(str, one.keys() ^ other.keys()))}"
        pairs = [(f"{path}.{key}", one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{path}: {len(one)} and {len(other)} items"
        pairs = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    else:
        equal = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        return "" if equal else f"{path}: {one} and {other}"[:200]
    return next((message for place, a, b in pairs if (message := difference(a, b, place))), "")


def difference_of_runs(one: Path, other: Path) -> str:
    """Return where the last checkpoints or the metrics of two runs first differ; empty if they are equal."""
    first, second = everything(one), everything(other)
    for key in _KEYS:
        if message := difference(first[key], second[key], key):
            return message
    rows, others = ((run / "metrics.csv").read_text(encoding="utf-8").splitlines() for run in (one, other))
    return difference(rows, others, "metrics.csv")
