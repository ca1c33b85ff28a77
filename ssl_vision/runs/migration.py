"""Migration of configs and checkpoints of version 0.1 to the current names of options and classes."""

from collections.abc import Mapping
from typing import Any

from ssl_vision.runs.settings import last_part

_ENCODER_OPTIONS = ("depth", "width", "stem")
"""Options of the model in version 0.1 that are now options of its encoder."""

_RESNET = "ssl_vision.encoders.ResNet"

_CLASSES = {
    "ssl_vision.models.SimCLR": "ssl_vision.methods.SimCLR",
    "ssl_vision.models.Backbone": _RESNET,
    "ssl_vision.models.backbone.Backbone": _RESNET,
}
"""Current names of classes by their names in version 0.1."""

_ORIGINAL_CLASSES = {current: old for old, current in _CLASSES.items() if current != _RESNET}

_CALLBACKS = {"FiniteSteps": "SkipNonFiniteSteps"}
"""Current names of callbacks that have a state in checkpoints."""


def migrated_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with the current names of callbacks; see `migrated_config` for its config.

    Example:
        >>> migrated_checkpoint({"callbacks": {"FiniteSteps": {"skipped": 2}}})
        {'callbacks': {'SkipNonFiniteSteps': {'skipped': 2}}}
    """
    states = checkpoint.get("callbacks")
    if not isinstance(states, dict):
        return checkpoint
    return {**checkpoint, "callbacks": {_CALLBACKS.get(key, key): state for key, state in states.items()}}


def migrated_config(config: Any) -> Any:
    """Return a run's config, or part of one, with the current names of options and classes.

    Configs without old names are returned as they are.

    Example:
        >>> old = {"model": {"class_path": "SimCLR", "init_args": {"width": 8}}}
        >>> migrated_config(old)["model"]["init_args"]
        {'encoder': {'class_path': 'ssl_vision.encoders.ResNet', 'init_args': {'width': 8}}}
    """
    config = _with_current_classes(config)
    model = config.get("model") if isinstance(config, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(model.get("init_args"), Mapping):
        return config
    if last_part(model.get("class_path", "SimCLR")) != "SimCLR":
        return config
    options = dict(model["init_args"])
    old = {name: options.pop(name) for name in _ENCODER_OPTIONS if name in options}
    if not old or "encoder" in options:
        return config
    encoder = {"class_path": _RESNET, "init_args": old}
    return {**config, "model": {**model, "init_args": {"encoder": encoder, **options}}}


def migrated_description(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an exported encoder with the current names.

    Example:
        >>> old = {"depth": 18, "width": 8, "stem": "small", "size": 32}
        >>> migrated_description(old)["encoder"]["init_args"]
        {'depth': 18, 'width': 8, 'stem': 'small'}
    """
    if "encoder" in metadata or not set(_ENCODER_OPTIONS) <= metadata.keys():
        return dict(metadata)
    options = {name: metadata[name] for name in _ENCODER_OPTIONS}
    others = {name: value for name, value in metadata.items() if name not in _ENCODER_OPTIONS}
    return {"encoder": {"class_path": _RESNET, "init_args": options}} | others


def migrated_key(key: str) -> str:
    """Return the current name of a dotted key of config.yaml.

    Example:
        >>> migrated_key("model.width"), migrated_key("model.init_args.stem"), migrated_key("model.bn")
        ('model.encoder.width', 'model.init_args.encoder.init_args.stem', 'model.bn')
    """
    section, _, name = key.rpartition(".")
    if name in _ENCODER_OPTIONS and section == "model":
        return f"model.encoder.{name}"
    if name in _ENCODER_OPTIONS and section == "model.init_args":
        return f"model.init_args.encoder.init_args.{name}"
    return key


def original_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's flat settings under the keys of version 0.1, so that derived run names stay the same.

    Settings that version 0.1 did not have keep their keys.
    """
    settings = {
        key: _ORIGINAL_CLASSES.get(value, value) if key.endswith("class_path") else value
        for key, value in settings.items()
    }
    prefix = "model.init_args.encoder."
    if settings.get(f"{prefix}class_path") != _RESNET:
        return settings
    names = {f"{prefix}init_args.{name}": f"model.init_args.{name}" for name in _ENCODER_OPTIONS}
    return {names.get(key, key): value for key, value in settings.items() if key != f"{prefix}class_path"}


def _with_current_classes(value: Any) -> Any:
    if isinstance(value, Mapping):
        changed = {key: _with_current_classes(item) for key, item in value.items()}
        if isinstance(name := changed.get("class_path"), str):
            changed["class_path"] = _CLASSES.get(name, name)
        return changed
    return [_with_current_classes(item) for item in value] if isinstance(value, list) else value
