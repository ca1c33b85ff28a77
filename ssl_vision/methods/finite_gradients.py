"""Checks for non-finite gradients."""

import math

import torch
from torch import Tensor
from torch.optim import Optimizer


def not_finite(optimizer: Optimizer) -> Tensor:
    """Return a scalar tensor: 1.0 if any gradient of an optimizer is not finite, otherwise 0.0."""
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
    """Return True if the optimizer itself skips updates with ``found_inf`` = 1.0, as fused ones and LARS."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
