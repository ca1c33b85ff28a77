"""LARS: SGD with a step size that is adapted to the norm of each weight tensor."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT


class LARS(Optimizer):
    """SGD with momentum and layer-wise adaptive rate scaling (You et al. 2017, Chen et al. 2020).

        v ← momentum · v + s · (g + weight_decay · w),    w ← w − lr · v
        s = trust_coefficient · ‖w‖ / (‖g‖ + weight_decay · ‖w‖ + eps)

    for each tensor w with gradient g. s is 1 for a w of zeros, and in groups with ``adapt=False``, which are
    meant for biases and normalization layers. An adapted w whose gradient is zero is not decayed. Adapted
    groups with weight decay are updated as in lightly's LARS, which adapts no others.

    The norms stay on the device, so a step does not synchronise. `torch.amp.GradScaler` sets ``grad_scale``
    and ``found_inf`` as for torch's fused optimizers: the step divides the gradients by the former, and does
    nothing if the latter is not 0.

    Args:
        params: parameters or parameter groups, each with any of the options below.
        lr: learning rate, as a number or a scalar tensor.
        momentum: factor of the momentum buffer.
        weight_decay: factor of the L2 penalty.
        trust_coefficient: length of an adapted update per unit of ‖w‖ and lr, without momentum.
        eps: added to the denominator of s.
        adapt: False leaves s at 1.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> groups = [{"params": [layer.weight]}, {"params": [layer.bias], "adapt": False}]
        >>> optimizer = LARS(groups, lr=0.3, momentum=0.9)
        >>> layer(torch.ones(1, 3)).sum().backward()
        >>> optimizer.step()
    """

    _step_supports_amp_scaling = True  # GradScaler sets grad_scale and found_inf, without synchronisation

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient.

        Args:
            closure: function that computes the loss again and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        gradients = [cast(Tensor, p.grad) for p in parameters]
        if grad_scale is not None:
            torch._foreach_div_(gradients, grad_scale)
        updates = gradients
        if group["weight_decay"]:
            updates = list(torch._foreach_add(gradients, parameters, alpha=group["weight_decay"]))
        if group["adapt"]:
            updates = list(torch._foreach_mul(updates, _scales(group, parameters, gradients)))
        if found_inf is not None:
            skip = found_inf != 0
            updates = [update.masked_fill(skip, 0.0) for update in updates]
            lr = torch.where(skip, 0.0, lr)
        if momentum:
            buffers = [self._buffer(p) for p in parameters]
            torch._foreach_mul_(buffers, momentum if found_inf is None else torch.where(skip, 1.0, momentum))
            torch._foreach_add_(buffers, updates)
            updates = buffers
        torch._foreach_sub_(parameters, torch._foreach_mul(updates, lr))

    def _buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _scales(group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]) -> tuple[Tensor, ...]:
    """Return s of each tensor, as scalar tensors on the device."""
    weight, gradient = (torch.stack(torch._foreach_norm(each)) for each in (parameters, gradients))
    scale = group["trust_coefficient"] * weight / (gradient + group["weight_decay"] * weight + group["eps"])
    scale = torch.where(weight == 0, 1.0, scale)
    return torch.where(gradient == 0, 0.0, scale).unbind()
