"""Training steps that are launched as one CUDA graph."""

from collections.abc import Callable

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from ssl_vision.data.images import Batch
from ssl_vision.errors import InputError
from ssl_vision.methods.finite_gradients import not_finite, skips_on_device


class RecordedStep:
    """Runs a step a few times, records it as a CUDA graph, and replays the graph from then on.

    A replay is one launch instead of a thousand, which speeds up small batches. The tensors that a recorded
    step reads and writes have fixed addresses: inputs are copied to those of the first recorded call, and the
    output is overwritten by the next replay.

    Args:
        step: function of tensors that returns a tensor. It must not synchronise, and must change gradients,
            parameters and optimizer state in place. Python values are fixed when it is recorded.
        warm: number of calls before the recording, in which kernels are selected and state is initialised.
    """

    def __init__(self, step: Callable[..., Tensor], *, warm: int = 3) -> None:
        self._step, self._cold = step, warm
        self._inputs: tuple[Tensor, ...] = ()
        self._replay: Callable[[], None] | None = None
        self._output = torch.empty(0)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Run a step on inputs with the shapes of the first call."""
        if self._cold:
            self._cold -= 1
            return self._beside(inputs)
        if self._replay is None:
            self._inputs = tuple(tensor.clone() for tensor in inputs)
            self._replay = self._record()
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place.copy_(tensor)
        self._replay()
        return self._output

    def forget(self) -> None:
        """Discard the recording; the next call records the step with its current Python values."""
        self._replay, self._inputs, self._output = None, (), torch.empty(0)

    def _beside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Run the step on a side stream, as is required before a recording."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = self._step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return output

    def _record(self) -> Callable[[], None]:
        """Record the step on the fixed inputs, without running it, and return the replay function."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._output = self._step(*self._inputs)
        return graph.replay


class GraphedTraining:
    """Executor that runs a method's training step as one CUDA graph.

    The learning rates of the optimizer become tensors, so that a schedule affects the recorded step.

    Args:
        loss: function that computes the loss of a batch.
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

        def loss_of(*tensors: Tensor) -> Tensor:
            batch = Batch(*tensors)
            return loss(batch if views is None or batch.views is not None else views(batch))

        self._step = RecordedStep(whole_step(loss_of, optimizer, after_backward))

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch, and return its loss without a gradient."""
        return self._step(*(tensor for tensor in batch if tensor is not None))

    def forget(self) -> None:
        """Record the next step again, because a Python value in it has changed."""
        self._step.forget()


def check_graph(
    trainer: pl.Trainer,
    *,
    chunk_size: int | None,
    compile_mode: str | None,
    objective: str | None = None,
) -> None:
    """Check that training can be recorded as a CUDA graph.

    Args:
        trainer: the trainer, with its strategy.
        chunk_size: option of the method.
        compile_mode: option of the method.
        objective: name of an objective that reads the indices of the images, which is not supported.

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
    ):
        if wrong:
            raise InputError(f"model.cuda_graph does not support {option}")


def whole_step(
    loss: Callable[..., Tensor], optimizer: Optimizer, after_backward: Callable[[], None]
) -> Callable[..., Tensor]:
    """Return a function that clears gradients, computes the loss and the gradients, and updates the weights.

    Args:
        loss: function of tensors that returns a scalar. It runs under the caller's autocast, but without the
            cache of weights, which would outlive the recording.
        optimizer: optimizer of all parameters with a gradient, which must not synchronise.
        after_backward: function that is called after the backward pass; it must not synchronise.

    Returns:
        A function of the arguments of the loss, which returns the detached loss.
    """

    def step(*inputs: Tensor) -> Tensor:
        device = inputs[0].device.type
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            device,
            dtype=torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
            cache_enabled=False,
        ):
            value = loss(*inputs)
        with torch.autocast(device, enabled=False):
            value.backward()
            after_backward()
            if skips_on_device(optimizer):
                optimizer.found_inf = not_finite(optimizer)  # type: ignore[attr-defined]
            optimizer.step()
        return value.detach()

    return step
