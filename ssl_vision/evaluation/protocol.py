"""Protocols, lists of measurements in files of the package or of the user."""

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ssl_vision.cli.import_paths import dotted
from ssl_vision.cli.parser import ArgumentParser, one_line
from ssl_vision.cli.recipes import find_recipe, recipes
from ssl_vision.errors import InputError
from ssl_vision.evaluation.measurement import KNN, Measurement, kinds
from ssl_vision.evaluation.probe import Linear, ProbeRule
from ssl_vision.methods import Layers
from ssl_vision.runs.evaluation_file import DEFAULT_PROTOCOL
from ssl_vision.runs.files import parse_yaml, read_text

_SHIPPED = Path(__file__).parent / "protocols"


class Protocol(NamedTuple):
    """A list of measurements. The bank is the labelled training split, and the queries are the test split."""

    name: str
    layers: tuple[str, ...]
    measurements: tuple[Measurement, ...]


def shipped() -> list[str]:
    """Names of the protocols that come with the package."""
    return list(recipes(_SHIPPED))


def read_protocols(names: Iterable[str], *, k: int) -> list[Protocol]:
    """Read protocols by `read_protocol`, each name once; ``all`` stands for those of the package.

    Raises:
        InputError: a protocol is not valid, or two files have one name.
    """
    every = dict.fromkeys(each for name in names for each in (shipped() if name == "all" else [name]))
    protocols = [read_protocol(name, k=k) for name in every]
    if len({protocol.name for protocol in protocols}) < len(protocols):
        raise InputError(f"protocol: two of {', '.join(every)} have one name")
    return protocols


def read_protocol(name: str, *, k: int = KNN.k) -> Protocol:
    """Read a protocol of the package by its name, or one of the user by its path.

    The file contains the lists ``layers`` and ``measurements``. An item of the latter has one key, the kind,
    with the options of that kind, as in ``- knn: {k: 20, temperature: 0.07}``. In a file of the user, the
    kind may also be the import path of a `Measurement`, as in ``- my_module.MyMeasurement: {}``.

    Args:
        name: path of a file, or name of a protocol of the package.
        k: number of neighbours, unless the file states it.

    Raises:
        InputError: there is no such protocol, or the file is invalid or has the name of a protocol of the
            package.
    """
    path = find_recipe(name, _SHIPPED, "protocol")
    own = path.parent != _SHIPPED
    if own and path.stem in shipped():
        raise InputError(f"protocol {name}: rename the file, because the package has a protocol {path.stem}")
    content = parse_yaml(read_text(path), where=f"protocol {name}")
    if not isinstance(content, Mapping) or content.keys() - {"layers", "measurements"}:
        raise InputError(f"protocol {name}: expected the keys layers and measurements")
    layers, items = content.get("layers", ["backbone"]), content.get("measurements")
    if not isinstance(layers, list) or not layers or not set(layers) <= set(Layers._fields):
        raise InputError(
            f"protocol {name}: layers must be a list out of {', '.join(Layers._fields)}, not {layers}"
        )
    if not isinstance(items, list) or not items:
        raise InputError(f"protocol {name}: measurements must be a list")
    measurements = tuple(
        _measurement(item, k, f"protocol {name}: measurement {i}", own=own) for i, item in enumerate(items, 1)
    )
    for each in measurements:
        if each.required_layer not in (None, *layers):
            raise InputError(
                f"protocol {name}: {each.kind} is of the {each.required_layer}, which layers must name"
            )
    return Protocol(path.stem, tuple(layers), measurements)


def _measurement(item: Any, k: int, where: str, *, own: bool) -> Measurement:
    classes = kinds()
    if not isinstance(item, Mapping) or len(item) != 1:
        raise InputError(f"{where}: expected one of {', '.join(classes)} with its options, not {item}")
    ((kind, options),) = item.items()
    if kind in classes:
        cls = classes[kind]
    elif own and dotted(str(kind)):
        cls = _imported(kind, where)
    else:
        raise InputError(f"{where}: expected one of {', '.join(classes)} with its options, not {item}")
    if not isinstance(options or {}, Mapping):
        raise InputError(f"{where}: expected options of {kind} by name, not {options}")
    parser = ArgumentParser()
    parser.add_class_arguments(cls, cls.kind)
    parser.set_defaults({f"{cls.kind}.{name}": value for name, value in cls.defaults(k=k).items()})
    try:
        result: Measurement = parser.instantiate(parser.parse_object({cls.kind: options or {}}))[cls.kind]
    except (InputError, ValueError) as error:
        raise InputError(f"{where}: {one_line(str(error))}") from error
    return result


def _imported(path: str, where: str) -> type[Measurement]:
    """Import the class that a protocol file of the user names."""
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{where}: {path} cannot be imported: {one_line(str(error))}") from error
    if not (isinstance(cls, type) and issubclass(cls, Measurement)):
        raise InputError(
            f"{where}: {path} is not a subclass of ssl_vision.evaluation.measurement.Measurement"
        )
    return cls


def chosen_protocols(options: Any, defaults: Mapping[str, Any]) -> list[Protocol]:
    """Read the requested protocols; options, and the run's own T and k, modify the default protocol.

    Args:
        options: options of the command.
        defaults: k and T of the default protocol, unless protocols are requested or options state them.

    Raises:
        InputError: a protocol is unknown, two have the same name, or an option modifies a protocol that was
            not requested.
    """
    protocols = read_protocols(options.protocol or [DEFAULT_PROTOCOL], k=options.data.knn_k)
    change = {"k": options.k, "temperature": options.temperature}
    if not options.protocol:
        change = {name: defaults.get(name) if value is None else value for name, value in change.items()}
    change = {name: value for name, value in change.items() if value is not None}
    other_probe = options.probe != ProbeRule()
    if DEFAULT_PROTOCOL not in (protocol.name for protocol in protocols):
        if change or other_probe:
            raise InputError(f"--k, --temperature and --probe change the protocol {DEFAULT_PROTOCOL} only")
        return protocols
    try:
        return [_changed(p, change, options.probe) if p.name == DEFAULT_PROTOCOL else p for p in protocols]
    except ValueError as error:
        raise InputError(f"--{error}") from error


def _changed(protocol: Protocol, change: dict[str, Any], probe: ProbeRule) -> Protocol:
    def new(measurement: Any) -> Any:
        if isinstance(measurement, KNN):
            return dataclasses.replace(measurement, **change)
        if isinstance(measurement, Linear):
            return Linear(**dataclasses.asdict(probe))
        return measurement

    return protocol._replace(measurements=tuple(map(new, protocol.measurements)))
