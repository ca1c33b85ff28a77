"""Time and memory of a call."""

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


class Meter:
    """Measures the seconds and the additionally allocated bytes of a call."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def seconds(self, call: Callable[[], Any]) -> float:
        """Measure the wall time until the device has finished."""
        start = time.perf_counter()
        call()
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def rounds(self, calls: Mapping[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
        """Measure the seconds of each call in a number of rounds, in which the calls alternate."""
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(count):
            for name, call in calls.items():
                times[name].append(self.seconds(call))
        return times

    def peak(self, call: Callable[[], Any]) -> int:
        """Measure the peak of the device memory, or of the resident memory of the process."""
        gc.collect()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            return torch.cuda.max_memory_allocated() - before
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = self._status("VmRSS")
        call()
        return self._status("VmHWM") - before

    @staticmethod
    def _status(field: str) -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
