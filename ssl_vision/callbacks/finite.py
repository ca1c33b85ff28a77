"""Leaves out updates that would spoil the network, and ends a run that makes no others."""

import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from ssl_vision.data import Batch
from ssl_vision.models.finite import not_finite, skips_on_device


class FiniteSteps(pl.Callback):
    """Skips the update of every step whose loss or gradient is not finite.

    Neither the parameters nor the optimizer's state move then, and BatchNorm's running statistics are put
    back to those of before; the learning-rate schedule goes on. ``train/skipped_steps``, logged from the
    first one on, counts them. On a CUDA device the optimizer skips by itself and the host looks at the
    steps that the trainer logs, so no other step waits; BatchNorm's statistics go back to those of the
    last look. float16 has its own way: its gradient scaler skips, and this callback does nothing.

    Args:
        patience: steps in a row that may be skipped before the run ends.
    """

    def __init__(self, patience: int = 10) -> None:
        if patience < 1:
            raise ValueError(f"patience must be 1 or more, got {patience}")
        self.patience = patience
        self.skipped = 0
        self._bad: Tensor | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begins to count."""
        self._counts = torch.zeros(2, device=pl_module.device)
        norms = [module for module in pl_module.modules() if isinstance(module, _NormBase)]
        self._buffers = [b for norm in norms for b in norm.buffers() if b.is_floating_point()]
        self._kept = [buffer.clone() for buffer in self._buffers]

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Looks at the loss; over several processes, at all of theirs."""
        self._bad = (~loss.detach().isfinite()).float()
        if trainer.world_size > 1:
            self._bad = trainer.strategy.reduce(self._bad, reduce_op="max")  # type: ignore[assignment]

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Looks at the gradients, and takes them away or lets the optimizer know."""
        if trainer.precision == "16-mixed":
            return
        bad = not_finite(optimizer) if self._bad is None else torch.maximum(self._bad, not_finite(optimizer))
        if skips_on_device(optimizer):
            optimizer.found_inf = bad  # type: ignore[attr-defined]
        elif bad:
            optimizer.zero_grad(set_to_none=True)
        self._bad = bad

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Counts, and now and then looks at the counts."""
        bad, self._bad = getattr(trainer.optimizers[0], "found_inf", self._bad), None
        if bad is None or trainer.precision == "16-mixed":
            return
        total, row = self._counts
        self._counts = torch.stack((total + bad, (row + 1) * bad))
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if pl_module.device.type == "cpu" or (every and trainer.global_step % every == 0):
            self._look(trainer, pl_module, batch)
        if self.skipped and every and trainer.global_step % every == 0:
            pl_module.log("train/skipped_steps", float(self.skipped), prog_bar=True)

    def _look(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch) -> None:
        total, row = (int(count) for count in self._counts.tolist())
        self._counts[0] = 0
        if not total:
            torch._foreach_copy_(self._kept, self._buffers)
            return
        torch._foreach_copy_(self._buffers, self._kept)
        self.skipped += total
        indices = batch.indices.tolist()
        images = ", ".join(map(str, indices[:8])) + (", …" if len(indices) > 8 else "")
        where = f"at step {trainer.global_step} the loss or a gradient is not finite (images {images}"
        statistics: dict[str, Tensor] = getattr(getattr(pl_module, "objective", None), "statistics", dict)()
        if "temperature" in statistics:
            where += f"; temperature {float(statistics['temperature']):g}"
        where += ")"
        if row < self.patience:
            warnings.warn(f"{where}: the update is skipped, {self.skipped} so far", stacklevel=2)
            return
        raise FloatingPointError(
            f"{where}, the {row}th time in a row: a smaller learning rate or a higher temperature may help; "
            f"the last good checkpoint is {trainer.default_root_dir}/checkpoints/last.ckpt"
        )

    def state_dict(self) -> dict[str, Any]:
        """The number of skipped steps."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on counting."""
        self.skipped = state_dict["skipped"]
