"""Within a process that sees the fake device: its counts, and the loop over the cases of a program."""

import ctypes
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_LIBRARY = ctypes.CDLL(None)


def counts() -> dict[str, int]:
    """What the device was asked for since the last `reset`, by kind (tests/device/fake/runtime.c)."""
    numbers = (ctypes.c_long * 32)()
    _LIBRARY.fake_kind.restype = ctypes.c_char_p
    kinds = range(_LIBRARY.fake_counts(numbers))
    return {_LIBRARY.fake_kind(kind).decode(): numbers[kind] for kind in kinds}


def reset() -> None:
    """Set all counts to 0."""
    _LIBRARY.fake_reset()


def trace(path: str | None) -> None:
    """Write every event to a file from now on; None ends it."""
    _LIBRARY.fake_trace((path or "").encode())


@contextmanager
def watched(places: list[str]) -> Iterator[None]:
    """Collect the places where the host waits for the device, in the package if it is called from there."""

    def note(message: Warning | str, *args: Any) -> None:
        if "called a synchronizing" in str(message):
            stack = traceback.extract_stack()[:-1]
            own = [frame for frame in stack if "/ssl_vision/" in frame.filename]
            places.append(_shown(own[-2:] or stack[-3:]))

    show, mode = warnings.showwarning, torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            warnings.showwarning = show


def _shown(frames: list[traceback.FrameSummary]) -> str:
    return " > ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames)


def main(run: Callable[[str], Any]) -> None:
    """Run the cases of the command line and write a line of JSON for each into its first argument."""
    # PyTorch compiles this one kernel with NVRTC when it is first used, which the fake device does not have.
    torch.Tensor.exp2_ = torch.Tensor.exp_  # type: ignore[method-assign]
    path, *cases = sys.argv[1:]
    with open(path, "w") as file:
        for case in cases:
            try:
                result = run(case)
            except Exception as error:
                place = _shown(traceback.extract_tb(error.__traceback__)[-3:])
                result = {"error": f"{type(error).__name__}: {str(error)[:1000]} ({place})"}
            print(json.dumps([case, result]), file=file, flush=True)
