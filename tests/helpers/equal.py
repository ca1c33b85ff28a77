"""Whether two runs came to the same end, to the bit."""

from pathlib import Path
from typing import Any

import torch

from ssl_vision.runs.folder import RunFolder

_KEYS = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "epoch", "global_step")


def everything(run: Path) -> dict[str, Any]:
    """All that the run's last checkpoint holds."""
    content: dict[str, Any] = torch.load(RunFolder(run).last, weights_only=True)
    return content


def difference(one: Any, other: Any, path: str = "") -> str:
    """Where two nests of tensors and values first differ; empty where they do not."""
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
    return next((found for place, a, b in pairs if (found := difference(a, b, place))), "")


def difference_of_runs(one: Path, other: Path) -> str:
    """Where the last checkpoints or the metrics of two runs first differ; empty where they do not."""
    first, second = everything(one), everything(other)
    for key in _KEYS:
        if found := difference(first[key], second[key], key):
            return found
    rows, others = ((run / "metrics.csv").read_text(encoding="utf-8").splitlines() for run in (one, other))
    return difference(rows, others, "metrics.csv")
