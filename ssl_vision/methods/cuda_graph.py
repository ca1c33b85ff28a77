"""Training steps that are launched as one CUDA graph."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from ssl_vision.data.images import Batch
from ssl_vision.errors import InputError
from ssl_vision.lightning_private import count_optimizer_step
from ssl_vision.methods.finite_gradients import not_finite, skips_on_device

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
        loss: function that computes the loss of a batch, a scalar. It runs under the caller's autocast. Like
            all arguments, it must not synchronise, and must change state in place.
        optimizer: optimizer of all parameters with a gradient.
        device: device of the method.
        after_backward: function that updates the method's state after a backward pass, as a part of the step.
        views: function that makes the views of a batch that has none, as a part of the step.
    """

    def __init__(
        self,
        loss: Callable[[Batch], Tensor],
        optimizer: Optimizer,
        device: torch.device,
        *,
        after_backward: Callable[[], None],
        views: Callable[[Batch], Batch] | None = None,
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        self._loss, self._optimizer = loss, optimizer
        self._after_backward, self._views = after_backward, views
        self._eager_steps = EAGER_STEPS
        self._recorded: tuple[Batch, Callable[[], None], Tensor] | None = None

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

    def forget(self, *, shapes: bool = False) -> None:
        """Discard the recording; the step is recorded again with its current Python values.

        Args:
            shapes: batches will have other shapes, so that the next steps run eagerly before the recording.
        """
        self._recorded = None
        if shapes:
            self._eager_steps = EAGER_STEPS

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
            loss = self._loss(rendered)
        with torch.autocast(device, enabled=False):
            loss.backward()
            self._after_backward()
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


def check_graph(
    trainer: pl.Trainer,
    *,
    chunk_size: int | None,
    compile_mode: str | None,
    objective: str | None = None,
    optimizer: str = "adam",
) -> None:
    """Check that training can be recorded as a CUDA graph.

    Args:
        trainer: the trainer, with its strategy.
        chunk_size: option of the method.
        compile_mode: option of the method.
        objective: name of an objective that reads the indices of the images, which is not supported.
        optimizer: name of the optimizer.

    Raises:
        InputError: an option is not supported; the message names it.
    """
    for wrong, option in (
        (trainer.strategy.root_device.type != "cuda", "a CPU"),
        (trainer.world_size > 1, f"{trainer.world_size} processes"),
        (trainer.precision not in ("32-true", "bf16-mixed"), f"trainer.precision {trainer.precision}"),
        (trainer.gradient_clip_val is not None, "trainer.gradient_clip_val"),
        (trainer.accumulate_grad_batches > 1, "trainer.accumulate_grad_batches"),
        (chunk_size is not None, "model.chunk_size"),
        (compile_mode not in (None, "default"), f"model.compile_mode {compile_mode}"),
        (objective is not None, f"model.objective {objective}"),
        (optimizer == "muon", "optimizer.name muon"),
    ):
        if wrong:
            raise InputError(f"model.cuda_graph does not support {option}")
