"""The optimizer and the learning-rate schedule of a pretraining run, from a few plain options."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightly.utils.scheduler import cosine_warmup_schedule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ssl_vision.errors import InputError, check, check_choice
from ssl_vision.methods.lars import LARS
from ssl_vision.methods.parameter_groups import freeze, parameter_groups
from ssl_vision.progress import epochs_text

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class OptimizerRule:
    """Optimizer and learning-rate schedule.

    The default is that of the MACL paper: Adam with a constant learning rate of 1e-3, and weight decay 1e-6
    on every parameter.

    Args:
        name: optimizer: ``"adam"``, ``"adamw"``, ``"sgd"``, ``"lars"`` or ``"muon"``. LARS adapts the step of
            each weight to its norm, with or without weight decay; biases, BatchNorm and scalars take plain
            SGD steps without weight decay (Chen et al. 2020). Muon is timm's: it orthogonalises the momentum
            of matrices and convolutions, with steps as long as those of AdamW (Jordan et al. 2024; Liu et al.
            2025), and updates all other parameters by NAdamW.
        lr: peak learning rate. With ``lr_scaling``, the rate for ``reference_batch_size`` images per step.
        weight_decay: L2 penalty (for ``"adamw"`` and ``"muon"``: decoupled decay).
        exclude_bias_and_norm: no weight decay for biases and normalisation layers. Other parameters of one
            dimension, and the position embeddings and tokens of timm's vision transformers, have none either.
        layer_decay: factor of the learning rate from each layer of the encoder to the previous one (Clark et
            al. 2020; BEiT); 1 gives all layers the same rate.
        freeze: names of modules or parameters that are not trained, such as ``backbone.network.patch_embed``
            (Chen et al. 2021, MoCo v3). These modules are in evaluation mode: dropout is off, and BatchNorm
            normalises with its running statistics, which do not change.
        freeze_epochs: number of epochs at the start in which only the projection head is trained. The
            encoder is in evaluation mode and has the learning rate 0, which then rises linearly over
            ``warmup_epochs`` to that of the schedule.
        momentum: momentum of ``"sgd"``, ``"lars"`` and ``"muon"``.
        schedule: schedule of the learning rate: ``"constant"``, or ``"cosine"`` to 0.001 ``lr`` over the run.
        warmup_epochs: number of epochs in which a learning rate rises linearly from 0: all rates at the start
            of the cosine schedule, and the encoder's rate after ``freeze_epochs``.
        lr_scaling: scaling of the learning rate with the batch size: ``"none"``, ``"linear"`` or ``"sqrt"``.
            For N images per step, of all processes and accumulated batches, the rate is lr,
            lr · N / reference_batch_size (Goyal et al. 2017) or lr · √(N / reference_batch_size)
            (Krizhevsky 2014).
        reference_batch_size: N for which the learning rate is ``lr``.

    Raises:
        ValueError: for an unknown name, schedule or scaling, a negative number, a warm-up without the cosine
            schedule or freeze_epochs, a layer_decay that is not in (0, 1], or an option that LARS does not
            support.

    Example:
        >>> rule = OptimizerRule(name="sgd", lr=0.5, schedule="cosine", warmup_epochs=10)
        >>> rule.momentum, rule.weight_decay
        (0.9, 1e-06)
    """

    name: Literal["adam", "adamw", "sgd", "lars", "muon"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-6
    exclude_bias_and_norm: bool = False
    layer_decay: float = 1.0
    freeze: tuple[str, ...] = ()
    freeze_epochs: int = 0
    momentum: float = 0.9
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_epochs: int = 0
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    reference_batch_size: int = 256

    def __post_init__(self) -> None:
        """Check the options."""
        check_choice("optimizer.name", self.name, ("adam", "adamw", "sgd", "lars", "muon"))
        check_choice("optimizer.schedule", self.schedule, ("constant", "cosine"))
        check_choice("optimizer.lr_scaling", self.lr_scaling, ("none", "linear", "sqrt"))
        for field in ("lr", "weight_decay", "freeze_epochs", "momentum", "warmup_epochs"):
            check(f"optimizer.{field}", getattr(self, field), at_least=0, at_most=_LARGEST)
        check("optimizer.layer_decay", self.layer_decay, above=0, at_most=1)
        if self.name == "lars" and (self.layer_decay < 1 or self.exclude_bias_and_norm or self.freeze_epochs):
            other = "freeze_epochs" if self.freeze_epochs else "exclude_bias_and_norm"
            option = "layer_decay" if self.layer_decay < 1 else other
            raise ValueError(f"optimizer.{option} does not support optimizer.name lars")
        check("optimizer.reference_batch_size", self.reference_batch_size, at_least=1)
        if self.warmup_epochs and self.schedule == "constant" and not self.freeze_epochs:
            raise ValueError("optimizer.warmup_epochs needs freeze_epochs or optimizer.schedule 'cosine'")

    def scaled(self, images_per_step: int) -> "OptimizerRule":
        """Return the rule with the scaled learning rate of a batch size, and without further scaling.

        Example:
            >>> OptimizerRule(lr=0.3, lr_scaling="linear").scaled(1024).lr
            1.2
        """
        ratio = images_per_step / self.reference_batch_size
        factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.lr_scaling]
        return replace(self, lr=self.lr * factor, lr_scaling="none")

    def optimizer(self, module: nn.Module, *, capturable: bool = False) -> Optimizer:
        """Return the optimizer of all trainable parameters of ``module``, fused on a GPU.

        Args:
            module: the module, on its training device. The parameters of ``freeze`` no longer require
                gradients, and its modules are put into evaluation mode. A `Method` keeps them there; call
                ``optimizer`` after ``train()`` of any other module.
            capturable: make the step capturable by a CUDA graph.

        Raises:
            InputError: nothing is to be trained, a name of ``freeze`` is unknown, or layer_decay is not 1 and
                an encoder does not state the order of its layers.
        """
        freeze(module, self.freeze)
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not parameters:
            raise InputError("optimizer.freeze leaves nothing to train")
        fused = all(parameter.is_cuda for parameter in parameters) or None
        groups: list[dict[str, Any]] = [{"params": parameters}]
        rates: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay}
        if self.exclude_bias_and_norm or self.layer_decay != 1 or self.freeze_epochs:
            groups = parameter_groups(
                module,
                **rates,
                exclude_bias_and_norm=self.exclude_bias_and_norm,
                layer_decay=self.layer_decay,
                separate_encoder=self.freeze_epochs > 0,
            )
        if self.name in ("adam", "adamw"):
            adam = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
            return adam(groups, **rates, fused=fused, capturable=capturable)
        rates["momentum"] = self.momentum
        if self.name == "muon":
            from timm.optim.muon import Muon  # takes seconds

            return Muon(groups, **rates, nesterov=True, adjust_lr_fn="match_rms_adamw")
        if self.name == "sgd":
            sgd = torch.optim.SGD(groups, **rates, fused=fused)
            if fused and self.momentum:  # otherwise, a skipped first step would leave it uninitialised
                for parameter in parameters:
                    sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return sgd
        weights = [parameter for parameter in parameters if parameter.ndim > 1]
        plain = [parameter for parameter in parameters if parameter.ndim <= 1]
        groups = [{"params": weights}, {"params": plain, "weight_decay": 0.0, "adapt": False}]
        return LARS(groups, **rates)

    def scheduler(self, optimizer: Optimizer, *, steps: int, steps_per_epoch: int) -> LRScheduler:
        """Return the schedule over ``steps`` steps, updated once per step.

        Raises:
            InputError: frozen epochs and warm-up are longer than the run.
        """
        warmup, frozen = self.warmup_epochs * steps_per_epoch, self.freeze_epochs * steps_per_epoch
        if warmup + frozen > steps:
            option = "freeze_epochs + optimizer.warmup_epochs" if frozen else "warmup_epochs"
            raise InputError(
                f"optimizer.{option} {self.freeze_epochs + self.warmup_epochs} is longer than the run of "
                f"{epochs_text(steps / steps_per_epoch)}: reduce it, or increase --trainer.max_epochs"
            )

        def scale(step: int) -> float:
            if self.schedule == "constant":
                return 1.0
            factor: float = cosine_warmup_schedule(step, steps, 1.0, 0.001, warmup, 0.0)
            return factor

        def scale_encoder(step: int) -> float:
            rise = min((step + 1 - frozen) / warmup, 1.0) if warmup else 1.0
            return 0.0 if step < frozen else rise * scale(step)

        groups = optimizer.param_groups
        return LambdaLR(optimizer, [scale_encoder if group.get("encoder") else scale for group in groups])


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
