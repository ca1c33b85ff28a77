"""How well metrics ranked the runs of benchmarks/results/ by test accuracy."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_suffix(".json")
"""The measurements, which ``python benchmarks/choosing.py`` writes."""

Augmentation = Literal["same", "different"]


@dataclass(frozen=True)
class Trust:
    """How well a metric ranked finished runs on one data set by their accuracy on its test images."""

    data: str
    """Class of the data set."""
    augmentation: Augmentation
    """``same`` if all runs have the same augmentation, otherwise ``different``."""
    metric: str
    accuracy: str
    """Metric of ``ssl-vision evaluate``, such as ``linear_top1``."""
    runs: int
    spearman: float
    """Rank correlation, above 0 if better values go with higher accuracy."""
    low: float
    """Lower end of the 95 % bootstrap interval of ``spearman`` over temperatures, which the runs share."""
    high: float
    regret: float
    """Accuracy of the best run minus that of the run with the best value of the metric, in [0, 1]."""
    random_regret: float
    """The same for a run picked at random, on average."""
    gain_low: float
    """Lower end of the 95 % bootstrap interval of ``random_regret`` − ``regret`` over temperatures."""
    gain_high: float


def read_trust(metric: str, data: str, augmentation: Augmentation) -> list[Trust]:
    """Return the measurement of a metric on a data set, or if there is none, those on all others."""
    rows = [Trust(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))]
    every = [each for each in rows if (each.metric, each.augmentation) == (metric, augmentation)]
    return [trust for trust in every if trust.data == data] or every
