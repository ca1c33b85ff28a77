"""Skipping of updates with non-finite values, and the end of a run in which they persist."""

import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from ssl_vision.callbacks.objective_statistics import is_logged
from ssl_vision.errors import check
from ssl_vision.methods.optimizer import not_finite, skips_on_device


class SkipNonFiniteSteps(pl.Callback):
    """Skips the update of every step whose loss or gradient is not finite.

    The parameters and the optimizer's state do not change, and BatchNorm's running statistics are restored.
    The learning-rate schedule continues. ``train/skipped_steps`` counts these steps and is logged from the
    first one on.

    On a CUDA device, the optimizer skips the update itself, and the host checks only at the steps that the
    trainer logs, before a validation and before a checkpoint, so that no other step synchronises, except with
    Muon. BatchNorm's statistics are then restored to those of the last check. In float16, the gradient scaler
    skips updates, and this callback does nothing.

    Args:
        patience: steps in a row that may be skipped before the run ends.

    Raises:
        ValueError: patience is below 1.
        FloatingPointError: in training, ``patience`` steps in a row were not finite.

    Example:
        >>> import pytorch_lightning as pl
        >>> callback = SkipNonFiniteSteps(patience=10)
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, enable_checkpointing=False)
    """

    def __init__(self, patience: int = 10) -> None:
        check("patience", patience, at_least=1)
        self.patience = patience
        self.skipped = 0
        self._bad_loss: Tensor | None = None
        self._bad_step: Tensor | None = None
        self._counts = torch.zeros(2)
        self._buffers: list[Tensor] = []
        self._finite: list[Tensor] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reset the counts."""
        self._counts = torch.zeros(2, device=pl_module.device)
        norms = [module for module in pl_module.modules() if isinstance(module, _NormBase)]
        self._buffers = [b for norm in norms for b in norm.buffers() if b.is_floating_point()]
        self._finite = [buffer.clone() for buffer in self._buffers]

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Check the loss, over all processes."""
        nonfinite: Tensor = (~loss.detach().isfinite()).float()
        if trainer.world_size > 1:
            nonfinite = trainer.strategy.reduce(nonfinite, reduce_op="max")  # type: ignore[assignment]
        self._bad_loss = nonfinite if self._bad_loss is None else torch.maximum(self._bad_loss, nonfinite)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Check the gradients; discard them, or let the optimizer skip the update."""
        lost, self._bad_loss = self._bad_loss, None
        if trainer.precision == "16-mixed":
            return
        nonfinite = not_finite(optimizer) if lost is None else torch.maximum(lost, not_finite(optimizer))
        if skips_on_device(optimizer):
            optimizer.found_inf = nonfinite  # type: ignore[attr-defined]
        elif nonfinite:
            optimizer.zero_grad(set_to_none=True)
        self._bad_step = nonfinite if self._bad_step is None else torch.maximum(self._bad_step, nonfinite)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step if the batch completes one, and check the counts at logged steps."""
        nonfinite, self._bad_step = self._bad_step, None
        if nonfinite is None and not pl_module.automatic_optimization:  # a step recorded as a CUDA graph
            nonfinite = getattr(trainer.optimizers[0], "found_inf", None)
        if nonfinite is None:
            return
        self._counts[1].mul_(nonfinite)  # in a row
        self._counts.add_(nonfinite)
        if is_logged(trainer):
            self._check_and_log(trainer, pl_module)
        elif pl_module.device.type == "cpu":
            self._check_counts(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the count, which includes steps since the last logged one."""
        self._check_and_log(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the counts, so that BatchNorm's statistics are finite during validation."""
        if not trainer.sanity_checking:
            self._check_counts(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Check the counts, so that the checkpoint, which shares the network's tensors, is finite."""
        self._check_counts(trainer)
        if self.state_key in checkpoint.get("callbacks", {}):
            checkpoint["callbacks"][self.state_key] = self.state_dict()

    def _check_and_log(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check_counts(trainer)
        if self.skipped:
            pl_module.log("train/skipped_steps", torch.tensor(float(self.skipped)), prog_bar=True)

    def _check_counts(self, trainer: pl.Trainer) -> None:
        total, consecutive = (int(count) for count in self._counts.tolist())
        self._counts[0].zero_()
        destination, source = (self._buffers, self._finite) if total else (self._finite, self._buffers)
        if self._buffers:  # an empty list is an error in torch
            torch._foreach_copy_(destination, source)
        if not total:
            return
        self.skipped += total
        problem = f"at step {trainer.global_step} the loss or a gradient is not finite"
        if consecutive < self.patience:
            warnings.warn(f"{problem}: the update is skipped, {self.skipped} so far", stacklevel=2)
            return
        last = Path(trainer.default_root_dir) / "checkpoints" / "last.ckpt"
        fallback = f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
        raise FloatingPointError(
            f"{problem}, {consecutive} times in a row: "
            f"a smaller learning rate or a higher temperature may help; {fallback}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the number of skipped steps."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting."""
        self.skipped = state_dict["skipped"]
