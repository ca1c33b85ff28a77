"""The writer of catalogue.json, from which commands without torch read what the package offers.

    python -m ssl_vision.catalogue

Run it, or ``make catalogue``, after changes of a metric, of a class that an option of ``fit`` names, or of
the options of ``fit``. The file holds

- "classes": for each kind of option, the classes that it accepts, with the first sentence of the docstring
  and the options of the constructor (name, default, values, description);
- "options": the options of ``fit`` outside these classes, of the run, the metrics and the trainer;
- "defaults": the options of ``fit`` that name a class by default;
- "torchvision": the names of torchvision's data sets that can be read;
- "metrics": the descriptions of the metrics.
"""

import dataclasses
import inspect
import json
import sys
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.cli import LightningArgumentParser

import ssl_vision.callbacks  # noqa: F401
from ssl_vision.cli.parser import describe_class, options
from ssl_vision.cli.run_options import DEFAULT_DATA, DEFAULTS, add_run_options
from ssl_vision.data import ImageData
from ssl_vision.data.datasets.torchvision_data import DATASETS
from ssl_vision.descriptions import CATALOGUE, DescribedMetric, defined
from ssl_vision.encoders import Encoder
from ssl_vision.evaluation.measurement import kinds
from ssl_vision.methods import Method
from ssl_vision.objectives import Gate, MarginLoss, NegativeWeight, Objective, Ratio, TemperatureRule
from ssl_vision.runs.config import named_settings

BASES: dict[str, tuple[type, ...]] = {
    "data": (ImageData,),
    "model": (Method,),
    "encoder": (Encoder,),
    "network": (Encoder,),
    "objective": (Objective,),
    "temperature": (TemperatureRule,),
    "margin_loss": (MarginLoss,),
    "weight": (NegativeWeight,),
    "gate": (Gate,),
    "ratio": (Ratio,),
}
"""Base classes of the classes that an option accepts, by the last part of the option's name."""

ABSTRACT = {"AlignmentRule", "EpochRule", "MomentumMethod", "TwoViews"}
"""Further base classes, which options cannot name."""


def catalogue() -> dict[str, Any]:
    """Return the contents of the file."""
    kinds()  # imports the classes of all measurements
    metrics = [DescribedMetric]
    for cls in metrics:  # which grows meanwhile
        metrics += cls.__subclasses__()
    names = {cls.metric_name for cls in metrics if cls.__module__.startswith("ssl_vision.")}
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_lightning_class_args(pl.Trainer, "trainer")
    parser.add_lightning_class_args(pl.LightningModule, "model", subclass_mode=True)
    add_run_options(parser)
    return {
        "classes": {
            option: [describe_class(cls) for base in bases for cls in public_classes(base)]
            for option, bases in BASES.items()
        },
        "options": [option for option in options(parser) if option.name != "model"],
        "defaults": {"data": DEFAULT_DATA}
        | {name: value for name, value in named_settings(DEFAULTS) if name.startswith("model")},
        "torchvision": list(DATASETS),
        "metrics": [dataclasses.asdict(defined[name]) for name in sorted(names - {""})],
    }


def public_classes(base: type) -> list[type]:
    """Return the classes that the package of a base class exports and that derive from it."""
    package = sys.modules[".".join(base.__module__.split(".")[:2])]
    names = sorted({*package.__all__} - {base.__name__, *ABSTRACT}, key=str.lower)
    classes = [vars(package)[name] for name in names]
    return [cls for cls in classes if inspect.isclass(cls) and issubclass(cls, base)]


if __name__ == "__main__":
    CATALOGUE.write_text(json.dumps(catalogue(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
