"""Training steps that are launched as one CUDA graph."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from ssl_vision.data.images import Batch
from ssl_vision.data.module import image_data
from ssl_vision.errors import InputError
from ssl_vision.lightning_private import count_optimizer_step
from ssl_vision.methods.optimizer import not_finite, skips_on_device
from ssl_vision.objectives import as_objective

EAGER_STEPS = 3
"""Number of steps before the recording."""


class GraphedTraining:
    """Executor that runs a method's training step as one CUDA graph.

    The first steps run eagerly: kernels are selected, and the state of the optimizer is initialised. The next
    one is recorded as a CUDA graph, which is replayed from then on. A replay is one launch instead of a
    thousand, which speeds up small batches. The tensors that a recorded step reads and writes have fixed
    addresses: batches are copied to those of the first recorded one, and the loss is overwritten by the next
    replay. Python values are fixed when the step is recorded. The learning rates of the optimizer become
    tensors, so that a schedule affects the recorded step.

    Args:
        method: a `Method`, whose ``loss`` and ``after_backward`` are part of the step. They run under the
            caller's autocast, must not synchronise, and must change state in place.
        optimizer: optimizer of all parameters with a gradient.
        views: function that makes the views of a batch that has none, as a part of the step.
    """

    def __init__(
        self, method: Any, optimizer: Optimizer, *, views: Callable[[Batch], Batch] | None = None
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=method.device)
        self._method, self._optimizer, self._views = method, optimizer, views
        self._eager_steps = EAGER_STEPS
        self._recorded: tuple[Batch, Callable[[], None], Tensor] | None = None

    @classmethod
    def of_run(cls, method: Any) -> Self:
        """Return the executor of a method that a trainer trains; the data then leaves the views to it."""
        data = image_data(method.trainer)
        views = None if data is None else data.defer_views(method.device)
        return cls(method, method.optimizers(use_pl_optimizer=False), views=views)

    @staticmethod
    def check(method: Any) -> None:
        """Check that a method's training can be recorded, given its trainer with a strategy.

        Raises:
            InputError: an option is not supported; the message names it.
        """
        trainer, mode = method.trainer, method.compile_mode
        reads_indices = "indices" in as_objective(method.objective).required_inputs
        for wrong, option in (
            (trainer.strategy.root_device.type != "cuda", "a CPU"),
            (trainer.world_size > 1, f"{trainer.world_size} processes"),
            (trainer.precision not in ("32-true", "bf16-mixed"), f"trainer.precision {trainer.precision}"),
            (trainer.gradient_clip_val is not None, "trainer.gradient_clip_val"),
            (trainer.accumulate_grad_batches > 1, "trainer.accumulate_grad_batches"),
            (method.chunk_size is not None, "model.chunk_size"),
            (mode in ("reduce-overhead", "max-autotune"), f"model.compile_mode {mode}"),
            (reads_indices, f"model.objective {type(method.objective).__name__}"),
            (method.optimizer_rule.name == "muon", "optimizer.name muon"),
        ):
            if wrong:
                raise InputError(f"model.cuda_graph does not support {option}")

    @classmethod
    def suggest(cls, method: Any) -> None:
        """Suggest a CUDA graph for a run that could use one."""
        with suppress(InputError):
            cls.check(method)
            rank_zero_info(
                "on one GPU, --config pretrain/cifar10_gpu makes small steps faster: "
                "one CUDA graph per step, compiled, in bfloat16"
            )

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch with the shapes of the first one, and return its loss without a gradient."""
        if self._eager_steps:
            self._eager_steps -= 1
            return self._on_side_stream(batch)
        if self._recorded is None:
            self._recorded = self._record(batch)
        recorded, replay, loss = self._recorded
        for place, tensor in zip(recorded, batch, strict=True):
            if place is not None and tensor is not None:
                place.copy_(tensor)
        replay()
        return loss

    def start_epoch(self, epoch: int) -> None:
        """Discard the recording if a step of this epoch differs from one of the previous epoch.

        Before views of another size, or an encoder that is no longer frozen, are recorded, steps run eagerly
        again.
        """
        data = image_data(self._method.trainer)
        resized = data is not None and data.training_views(epoch).size != data.training_views(epoch - 1).size
        if resized or epoch == self._method.optimizer_rule.freeze_epochs:
            self._recorded, self._eager_steps = None, EAGER_STEPS
        elif as_objective(self._method.objective).reads_epoch:
            self._recorded = None

    def _step(self, batch: Batch) -> Tensor:
        """Clear gradients, compute the loss and the gradients, and update the weights."""
        device = batch.images.device.type
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            device,
            dtype=torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
            cache_enabled=False,  # the cached weights would outlive the recording
        ):
            rendered = batch if self._views is None or batch.views is not None else self._views(batch)
            loss: Tensor = self._method.compiled_loss(rendered)
        with torch.autocast(device, enabled=False):
            loss.backward()
            self._method.after_backward()
            if skips_on_device(self._optimizer):
                self._optimizer.found_inf = not_finite(self._optimizer)  # type: ignore[attr-defined]
            self._optimizer.step()
        return loss.detach()

    def _on_side_stream(self, batch: Batch) -> Tensor:
        """Run the step on a side stream, as is required before a recording."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = self._step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return output

    def _record(self, batch: Batch) -> tuple[Batch, Callable[[], None], Tensor]:
        """Record the step on a copy of a batch; return the copy, the replay function and the loss."""
        batch = Batch(*(tensor.clone() for tensor in batch if tensor is not None))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._step(batch)
        return batch, graph.replay, loss


def count_step(module: pl.LightningModule) -> None:
    """Count an update that Lightning did not make, and update the schedule of the learning rate."""
    count_optimizer_step(module.trainer)
    schedule: Any = module.lr_schedulers()
    if schedule is not None:
        schedule.step()
