"""A training step that is launched as one CUDA graph."""

from collections.abc import Callable

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from ssl_vision.data.images import Batch
from ssl_vision.errors import InputError
from ssl_vision.methods.finite_gradients import not_finite, skips_on_device


class RecordedStep:
    """Runs a step a few times as it is, records it, and from then on replays the recording.

    A replay is one launch instead of a thousand, which is what small batches wait for. The tensors that a
    recorded step reads and writes have fixed places: inputs are copied into the first call's, and what the
    step returns is overwritten by the next replay.

    Args:
        step: from tensors to a tensor, without a synchronisation, with all that it changes (gradients,
            parameters, optimizer state) in place; Python values are taken as they are when it is recorded.
        warm: calls before the recording, in which kernels are chosen and state is made.
    """

    def __init__(self, step: Callable[..., Tensor], *, warm: int = 3) -> None:
        self._step, self._cold = step, warm
        self._inputs: tuple[Tensor, ...] = ()
        self._replay: Callable[[], None] | None = None
        self._output = torch.empty(0)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """One step on inputs of the shapes of the first call."""
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
        """Drops the recording: the next call makes a new one, with the Python values of then."""
        self._replay, self._inputs, self._output = None, (), torch.empty(0)

    def _beside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """The step on a stream that is not the default one, as what precedes a recording must be."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = self._step(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return output

    def _record(self) -> Callable[[], None]:
        """The step on the fixed inputs, as a graph; recording runs nothing."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._output = self._step(*self._inputs)
        return graph.replay


class GraphedTraining:
    """Executor that runs a method's training step as one CUDA graph.

    The learning rates of the optimizer become tensors, so that a schedule reaches the recording.

    Args:
        loss: a method's loss of a batch.
        optimizer: optimizer of all that has a gradient.
        device: device of the method.
    """

    def __init__(self, loss: Callable[[Batch], Tensor], optimizer: Optimizer, device: torch.device) -> None:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        self._step = RecordedStep(whole_step(lambda *tensors: loss(Batch(*tensors)), optimizer))

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch; return its loss without a gradient."""
        return self._step(*(tensor for tensor in batch if tensor is not None))

    def forget(self) -> None:
        """Record the next step anew, because a Python value in it has changed."""
        self._step.forget()


def check_graph(
    trainer: pl.Trainer,
    optimizer: str,
    *,
    chunk_size: int | None,
    compile_mode: str | None,
    objective: str | None = None,
) -> None:
    """Check that training can be recorded as a CUDA graph.

    Args:
        trainer: the trainer, with its strategy.
        optimizer: name of the optimizer.
        chunk_size: option of the method.
        compile_mode: option of the method.
        objective: name of an objective that reads the indices of the images, which a recording cannot.

    Raises:
        InputError: it cannot; the message names the option.
    """
    for wrong, option in (
        (trainer.strategy.root_device.type != "cuda", "a CPU"),
        (trainer.world_size > 1, f"{trainer.world_size} processes"),
        (trainer.precision not in ("32-true", "bf16-mixed"), f"trainer.precision {trainer.precision}"),
        (trainer.gradient_clip_val is not None, "trainer.gradient_clip_val"),
        (trainer.accumulate_grad_batches > 1, "trainer.accumulate_grad_batches"),
        (chunk_size is not None, "model.chunk_size"),
        (compile_mode not in (None, "default"), f"model.compile_mode {compile_mode}"),
        (optimizer == "lars", "optimizer.name lars"),
        (objective is not None, f"model.objective {objective}"),
    ):
        if wrong:
            raise InputError(f"model.cuda_graph does not go with {option}")


def whole_step(loss: Callable[..., Tensor], optimizer: Optimizer) -> Callable[..., Tensor]:
    """One function of gradients cleared, loss, backward and update, for `RecordedStep`.

    Args:
        loss: from tensors to a scalar; it runs under the caller's autocast, without its cache of weights,
            which would outlive the recording.
        optimizer: of all that has a gradient; one that waits for no number on the host.

    Returns:
        A function of the loss's arguments, which returns the loss without its graph.
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
            if skips_on_device(optimizer):
                optimizer.found_inf = not_finite(optimizer)  # type: ignore[attr-defined]
            optimizer.step()
        return value.detach()

    return step
