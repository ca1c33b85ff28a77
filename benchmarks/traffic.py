"""Count the bytes and the arithmetic of a training step, without a GPU.

    python benchmarks/traffic.py                    at the rates of an H100
    python benchmarks/traffic.py --bandwidth 1.8    at another rate

The step is that of profile_step.py, compiled for the fake device of the tests, which runs no kernel. The
script requires gcc, a CUDA build of PyTorch and CUDA headers. Each kernel reads its inputs and writes its
outputs once. It cannot be faster than its bytes at the bandwidth, nor than its FLOPs at the peak rate, so the
sum of these times is a lower bound of the step. The default rates are those of a copy and of a bfloat16
product of 8192 x 8192 matrices on an H100. The script writes benchmarks/results/traffic.json.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from provenance import RESULTS, provenance, save
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

HELPERS = Path(__file__).parents[1] / "tests" / "helpers"


class Operation(NamedTuple):
    """An ATen operation or a kernel of Inductor."""

    function: Any
    bytes: int
    flops: int = 0


class Traffic(TorchDispatchMode):
    """Records the operations that move data."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run."""
        return True

    @property
    def bytes(self) -> int:
        """Bytes of all operations."""
        return sum(each.bytes for each in self.operations)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an ATen operation and record it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, packet = func._schema.name, func.overloadpacket
        if func.is_view or not name.startswith("aten::") or "empty" in name or "_unsafe_view" in name:
            return out
        written = out
        if out is None:  # in place, on lists of tensors
            arguments = zip(func._schema.arguments, args, strict=False)
            written = [value for argument, value in arguments if argument.is_write]
        moved = size([args, kwargs]) + size(written)
        if packet is torch.ops.aten.convolution_backward and all(args[-1][:2]):
            moved += size(args[0])  # a kernel for each gradient
        flops = flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0
        self.operations.append(Operation(packet, moved, flops))
        return out

    def launch(self, run: Callable[..., Any], kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a kernel of Inductor and record it; it reads and writes arguments named ``in_out``."""
        names = zip(kernel.fn.arg_names, args, strict=False)
        moved = sum(size(argument) * (2 if name.startswith("in_out") else 1) for name, argument in names)
        self.operations.append(Operation(kernel.fn.__name__, moved))
        return run(kernel, *args, **kwargs)


def size(tensors: Any) -> int:
    """Return the bytes of all tensors in a nested structure; an expanded tensor counts as it is stored."""
    leaves = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor)]
    return sum(min(each.nbytes, each.untyped_storage().nbytes()) for each in leaves)


def counted(chosen: argparse.Namespace) -> dict[str, float]:
    """Count an eager step with compiled views and encoder; a recorded one has the same kernels."""
    from profile_step import Step

    step, traffic = Step(chosen), Traffic()
    step()
    launch = partialmethod(partial(traffic.launch, CachingAutotuner.run))
    with traffic, patch.object(CachingAutotuner, "run", launch):
        step()
    times = [
        max(each.bytes / chosen.bandwidth, each.flops / chosen.peak) / 1e12 for each in traffic.operations
    ]
    flops = sum(each.flops for each in traffic.operations)
    return {
        "operations": len(times),
        "gb": round(traffic.bytes / 1e9, 3),
        "tflop": round(flops / 1e12, 4),
        "bound_ms": round(1e3 * sum(times), 3),
    }


def table(record: dict[str, Any]) -> str:
    """Return the counts beside the step that was measured on a GPU."""
    measured = json.loads((RESULTS / "step_cuda.json").read_text())["graph_ms"]
    rate = record["tflop"] / measured * 1e3
    cells = [str(record["operations"]), f"{record['gb']:.2f}", f"{record['tflop']:.3f}"]
    cells += [
        f"{record['bound_ms']:.1f}",
        f"{measured:.1f}",
        f"{measured / record['bound_ms']:.2f}",
        f"{rate:.0f}",
    ]
    lines = ["| operations | GB | TFLOP | bound, ms | measured, ms | ratio | TFLOP/s |", "|---" * 7 + "|"]
    return "\n".join([*lines, f"| {' | '.join(cells)} |"])


def main() -> None:
    """Count on the fake device, print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--bandwidth", type=float, default=3.0, help="TB/s")
    parser.add_argument("--peak", type=float, default=798.0, help="TFLOP/s")
    chosen = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        sys.exit(on_fake_device())
    record = provenance() | {"device": "fake device", "options": vars(chosen)} | counted(chosen)
    print(table(record))
    save("traffic", record)


def on_fake_device() -> int:
    """Run this command on the fake device, and return its exit code."""
    sys.path.append(str(HELPERS))
    import fake_device

    if reason := fake_device.reason_to_skip():
        sys.exit(reason)
    cache = Path(".pytest_cache/d/fake_device")
    cache.mkdir(parents=True, exist_ok=True)
    environment = fake_device.environment(fake_device.build(cache.resolve()))
    return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


if __name__ == "__main__":
    main()
