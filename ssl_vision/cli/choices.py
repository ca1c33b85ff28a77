"""Options of ``fit`` that name a class, and the options of those classes, without importing them."""

import ast
from functools import cache
from typing import Any

from ssl_vision.cli.sources import Definition, Option, added_options, definition, public_classes, read_module
from ssl_vision.runs.settings import named_settings

_RUN_OPTIONS = "ssl_vision.cli.run_options"


CHOICES = {
    "data": ("ssl_vision.data", "ImageData"),
    "model": ("ssl_vision.methods", "Method"),
    "encoder": ("ssl_vision.encoders", "Encoder"),
    "network": ("ssl_vision.encoders", "Encoder"),
    "objective": ("ssl_vision.objectives", "Objective"),
    "temperature": ("ssl_vision.objectives", "TemperatureRule"),
    "margin_loss": ("ssl_vision.objectives", "MarginLoss"),
    "weight": ("ssl_vision.objectives", "NegativeWeight"),
    "gate": ("ssl_vision.objectives", "Gate"),
    "ratio": ("ssl_vision.objectives", "Ratio"),
}
"""Package and base classes of the classes that an option accepts, by the last part of the option's name."""


def classes_of(option: str) -> dict[str, Definition]:
    """Return the classes that an option such as ``model.objective`` accepts, by name, without abstract ones.

    The result is empty for an option that does not name a class of this package.
    """
    package, *bases = CHOICES.get(option.rpartition(".")[2], ("",))
    return {name: each for base in bases for name, each in public_classes(package, base).items()}


@cache
def defaults() -> dict[str, str]:
    """Return the defaults that ``fit`` sets itself, by option; a class is given by its name."""
    settings = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in named_settings(_literal("DEFAULTS"))
    }
    return {"data": _literal("DEFAULT_DATA"), **settings}


def _literal(name: str) -> Any:
    """Return a constant of the module that defines the options of ``fit``."""
    module = read_module(_RUN_OPTIONS)
    if module is None:
        raise ValueError(f"no module {_RUN_OPTIONS}")
    return ast.literal_eval(module.constants[name])


def default_class(option: str) -> Definition | None:
    """Return the class that an option names by default."""
    return classes_of(option).get(defaults().get(option, ""))


@cache
def known_options() -> dict[str, Option]:
    """Return the options of ``fit`` by dotted name, with their defaults.

    Options of the default classes have their defaults; those of other classes follow, without defaults.
    """
    options: dict[str, Option] = {}
    for prefix in ("data", "model", "model.encoder", "model.objective"):
        first = default_class(prefix)
        for cls in (first, *classes_of(prefix).values()):
            for option in cls.options if cls else ():
                name = f"{prefix}.{option.name}"
                shown = option if cls is first else option._replace(default=None)
                options.setdefault(name, shown._replace(name=name))
    trainer = definition("pytorch_lightning.trainer.trainer.Trainer")
    metrics = definition("ssl_vision.callbacks.RepresentationMetrics")
    for prefix, owner in (("trainer", trainer), ("metrics", metrics)):
        for option in owner.options if owner else ():
            if prefix == "trainer" or option.name not in _literal("NOT_OPTIONS"):
                options[f"{prefix}.{option.name}"] = option._replace(name=f"{prefix}.{option.name}")
    options |= {option.name: option for option in added_options(f"{_RUN_OPTIONS}.add_run_options")}
    for name, default in defaults().items():
        option_of_fit = options.get(name, Option(name, default, "", ""))
        options[name] = option_of_fit._replace(default=default)
    return options
