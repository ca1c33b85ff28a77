"""The writer of catalogue.json, from which commands without torch read what the package offers.

    python -m ssl_vision.catalogue

Run it, or ``make catalogue``, after changes of metrics.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import ssl_vision.callbacks
import ssl_vision.methods  # noqa: F401
from ssl_vision.descriptions import CATALOGUE, DescribedMetric, described
from ssl_vision.evaluation.measurement import kinds


def catalogue() -> dict[str, Any]:
    """Return the contents of the file."""
    kinds()  # imports the classes of all measurements
    classes = (cls for cls in _subclasses(DescribedMetric) if cls.__module__.startswith("ssl_vision."))
    names = {cls.metric_name for cls in classes}
    return {"metrics": [dataclasses.asdict(each) for each in described() if each.name in names]}


def text() -> str:
    """Return the contents of the file as it is written."""
    return json.dumps(catalogue(), indent=1, ensure_ascii=False) + "\n"


def _subclasses(cls: type[DescribedMetric]) -> Iterator[type[DescribedMetric]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


if __name__ == "__main__":
    CATALOGUE.write_text(text(), encoding="utf-8")
