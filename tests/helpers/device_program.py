"""For a process that uses the fake device: the device's counts, and the loop over a program's cases."""

import ctypes
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

_LIBRARY = ctypes.CDLL(None)


def counts() -> dict[str, int]:
    """Return the counts of device requests since the last `reset`, by kind (tests/device/fake/runtime.c)."""
    numbers = (ctypes.c_long * 32)()
    _LIBRARY.fake_kind.restype = ctypes.c_char_p
    kinds = range(_LIBRARY.fake_counts(numbers))
    return {_LIBRARY.fake_kind(kind).decode(): numbers[kind] for kind in kinds}


def reset() -> None:
    """Set all counts to 0."""
    _LIBRARY.fake_reset()


def trace(path: str | None) -> None:
    """Write every event to a file from now on; None stops writing."""
    _LIBRARY.fake_trace((path or "").encode())


@contextmanager
def watched(places: list[str]) -> Iterator[None]:
    """Collect the places where the host waits for the device, in the package if the wait comes from there."""

    def record(message: Warning | str, *args: Any) -> None:
        if "called a synchronizing" in str(message):
            stack = traceback.extract_stack()[:-1]
            own = [frame for frame in stack if "/ssl_vision/" in frame.filename]
            places.append(_shown(own[-2:] or stack[-3:]))

    show, mode = warnings.showwarning, torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = record  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            warnings.showwarning = show


class ComputedOnHost(TorchDispatchMode):
    """Computes operations on the host, because the fake device has host memory but runs no kernels.

    Each operation also runs on the device, so that its launches and waits are counted. The operations that a
    CUDA graph has captured are computed whenever it is replayed. Kernels that are not called through the
    dispatcher, which are those of Triton, are not computed.
    """

    def __enter__(self):  # type: ignore[no-untyped-def]
        self._captured: list[tuple[Any, ...]] = []
        self._patches = ExitStack()
        begin, replay = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.replay

        def begin_capture(graph: Any, *args: Any, **kwargs: Any) -> None:
            self._captured = graph.operations = []
            begin(graph, *args, **kwargs)

        def replay_on_host(graph: Any) -> None:
            replay(graph)
            for operation in graph.operations:
                _compute(*operation)

        for name, function in (("capture_begin", begin_capture), ("replay", replay_on_host)):
            self._patches.enter_context(patch.object(torch.cuda.CUDAGraph, name, function))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            args = (args[0], [_rows_of(index) for index in args[1]], *args[2:])
        if str(func).startswith(CUSOLVER) and _on_device(args[0]):
            return tree_map(_to_device, func(*tree_map(host, args), **tree_map(host, kwargs)))
        result = func(*args, **kwargs)
        off_device = not any(map(_on_device, tree_leaves((result, args, kwargs))))
        if off_device or func.overloadpacket is aten.set_:
            return result
        if torch.cuda.is_current_stream_capturing():
            self._captured.append((func, args, kwargs, result))
            return result
        return _compute(func, args, kwargs, result)


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Return the result of an operation on the device, with the values that the host computes."""
    on_host = HOST_FORMS.get(func, func)(*tree_map(host, args), **tree_map(host, kwargs))
    if func is aten._local_scalar_dense.default:
        return on_host
    leaves, structure = tree_flatten(result)
    written = [_written(*pair) for pair in zip(leaves, tree_leaves(on_host), strict=False)]
    return tree_unflatten(written + leaves[len(written) :], structure)  # cuDNN's operations return more


def host(value: Any) -> Any:
    """Return a host tensor that shares the memory of a device tensor; return other values unchanged."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not _on_device(value):
        return value
    storage = value.untyped_storage()
    shared = torch.UntypedStorage(0)
    if storage.nbytes():
        memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
        shared = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    place = (value.storage_offset(), value.size(), value.stride())
    return torch.empty(0, dtype=value.dtype).set_(shared, *place)


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _to_device(value: Any) -> Any:
    return value.cuda() if isinstance(value, torch.Tensor) else value


def _rows_of(index: Any) -> Any:
    """Return the rows that a mask selects, which only the host can compute."""
    if not _on_device(index) or index.dtype != torch.bool:
        return index
    assert index.ndim == 1, "the package indexes with masks of one dimension"
    index.nonzero()  # waits for the device
    return _to_device(host(index).nonzero().squeeze(1))


def _written(result: Any, on_host: Any) -> Any:
    """Return the device's result filled with values; a new tensor if its shape depends on the values."""
    if not isinstance(result, torch.Tensor):
        return on_host
    if result.shape != on_host.shape:
        return on_host.to(result.device)
    if result.data_ptr() != on_host.data_ptr():  # equal for views and in-place results
        host(result).copy_(on_host)
    return result


def _normalize(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *others: float) -> Any:
    return aten.native_batch_norm(x, weight, bias, mean, var, training, *others)


def _normalize_backward(gradient: Any, x: Any, *others: Any) -> Any:
    tensors = [None if each is None else each.float() for each in (gradient, x, *others[:5])]
    return aten.native_batch_norm_backward(*tensors, *others[5:])


aten = torch.ops.aten
HOST_FORMS = {
    aten.cudnn_batch_norm.default: _normalize,
    aten.cudnn_batch_norm_backward.default: lambda x, gradient, *others: _normalize_backward(
        gradient, x, *others[:5], True, others[5], [True] * 3
    ),
    aten.native_batch_norm_backward.default: _normalize_backward,
    aten.mm.dtype: lambda x, y, dtype: x.to(dtype) @ y.to(dtype),
}
"""Operations that only a device has."""

CUSOLVER = ("aten._linalg", "aten.linalg_eig", "aten.linalg_cholesky", "aten.linalg_svd")
"""Beginnings of the names of operations for which the fake device has no library."""


def _shown(frames: list[traceback.FrameSummary]) -> str:
    return " > ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames)


def main(run: Callable[[str], Any]) -> None:
    """Run the cases of the command line and write a line of JSON for each to its first argument, a file."""
    path, *cases = sys.argv[1:]
    with open(path, "w") as file:
        for case in cases:
            try:
                result = run(case)
            except Exception as error:
                place = _shown(traceback.extract_tb(error.__traceback__)[-3:])
                result = {"error": f"{type(error).__name__}: {str(error)[:1000]} ({place})"}
            print(json.dumps([case, result]), file=file, flush=True)
