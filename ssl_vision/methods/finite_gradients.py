"""Whether an update can be made."""

import math

import torch
from torch import Tensor
from torch.optim import Optimizer


def not_finite(optimizer: Optimizer) -> Tensor:
    """1.0 where any gradient that an optimizer is about to use is not finite, else 0.0; a scalar tensor."""
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if not gradients:
        return torch.zeros(())
    return (~torch.nn.utils.get_total_norm(gradients, norm_type=math.inf).isfinite()).float()


def skips_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimizer skips an update by itself where ``found_inf`` is 1.0: fused ones and LARS do."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
