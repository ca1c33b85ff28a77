"""Parameter groups with their own learning rate and weight decay, and frozen parameters."""

import difflib
from collections.abc import Sequence
from typing import Any

from torch import nn

from ssl_vision.encoders import Encoder
from ssl_vision.errors import InputError


def parameter_groups(
    module: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    exclude_bias_and_norm: bool,
    layer_decay: float,
    separate_encoder: bool = False,
) -> list[dict[str, Any]]:
    """Return the parameter groups of the trainable parameters of a module, the largest learning rate first.

    A parameter of an encoder has the learning rate lr · layer_decay^n, n layers below the projection head.
    All other parameters have lr.

    Args:
        module: the module, whose encoders state the order of their layers.
        lr: learning rate.
        weight_decay: weight decay.
        exclude_bias_and_norm: use no weight decay for parameters with at most one dimension, and for those
            that an encoder names in ``undecayed``.
        layer_decay: factor per layer.
        separate_encoder: put parameters of encoders into groups of their own, with ``encoder`` set to True,
            after the other groups.

    Raises:
        InputError: layer_decay is not 1, and an encoder does not state the order of its layers.
    """
    scales: dict[str, float] = {}
    undecayed: set[str] = set()
    of_encoder: set[str] = set()
    for path, part in module.named_modules():
        if not isinstance(part, Encoder):
            continue
        prefix = f"{path}." if path else ""
        undecayed |= {f"{prefix}{name}" for name in part.undecayed}
        if separate_encoder:
            of_encoder |= {f"{prefix}{name}" for name, _ in part.named_parameters()}
        if layer_decay == 1 or not any(each.requires_grad for each in part.parameters()):
            continue
        try:
            distances = part.layers_to_head()
        except NotImplementedError as error:
            raise InputError(f"optimizer.layer_decay {layer_decay}: {error}") from error
        scales |= {f"{prefix}{name}": layer_decay**distance for name, distance in distances.items()}
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        excluded = exclude_bias_and_norm and (parameter.ndim <= 1 or name in undecayed)
        rate, decay = lr * scales.get(name, 1.0), 0.0 if excluded else weight_decay
        key = (name not in of_encoder, rate, decay)
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "weight_decay": decay} | ({} if other else {"encoder": True})
        for (other, rate, decay), parameters in sorted(
            groups.items(), key=lambda group: group[0], reverse=True
        )
    ]


def freeze(module: nn.Module, names: Sequence[str]) -> None:
    """Exclude parameters from training, and put the named modules into evaluation mode.

    Args:
        module: the module.
        names: names of its submodules or parameters, such as ``"backbone.layer1"``.

    Raises:
        InputError: a name does not match any parameter.
    """
    parameters = dict(module.named_parameters())
    for name in names:
        chosen = [key for key in parameters if key == name or key.startswith(f"{name}.")]
        if not chosen:
            prefixes = {key.rsplit(".", count)[0] for key in parameters for count in range(key.count("."))}
            near = difflib.get_close_matches(name, [*prefixes, *parameters], n=1)
            raise InputError(
                f"optimizer.freeze: {type(module).__name__} has no parameters named '{name}'"
                + (f", did you mean '{near[0]}'?" if near else "")
            )
        for key in chosen:
            parameters[key].requires_grad_(False)
    evaluate_frozen(module, names)


def evaluate_frozen(module: nn.Module, names: Sequence[str]) -> None:
    """Put submodules, and their copies in a momentum network, into evaluation mode.

    Args:
        module: the module.
        names: names of the submodules; others are ignored.
    """
    for name, submodule in module.named_modules():
        if name.removeprefix("momentum_") in names:
            submodule.eval()
