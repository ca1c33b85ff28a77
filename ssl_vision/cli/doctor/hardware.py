"""Devices, cores, memory and disk."""

import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ssl_vision.cli.doctor.check import Check

_GB = 1e9
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_SHARED = Path("/dev/shm")
_DRIVER = Path("/dev/nvidiactl")
_LITTLE_DISK, _LITTLE_SHARED = 2 * _GB, 1 * _GB


def machine(runs_dir: Path) -> Iterator[Check]:
    """What there is to compute with, and to write to."""
    torch = _torch()
    if torch is not None:
        yield from _devices(torch)
    yield _cores(torch)
    yield Check("bfloat16", _bfloat16())
    yield _memory()
    yield _writable(runs_dir)
    if _SHARED.is_dir():
        total = shutil.disk_usage(_SHARED).total
        if total < _LITTLE_SHARED:
            advice = "several GPUs may need more: docker run --shm-size 8g"
            yield Check("shared memory", _gb(total), "note", advice)
        else:
            yield Check("shared memory", _gb(total))


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except Exception:  # said among the software
        return None


def _devices(torch: Any) -> Iterator[Check]:
    build = torch.version.cuda
    if not torch.cuda.is_available():
        if not _DRIVER.exists():
            yield Check("GPU", "none: training takes the CPU")
        elif build is None:
            advice = "install a CUDA build: https://pytorch.org/get-started/locally"
            yield Check("GPU", "there is one, and torch is a build without CUDA", "note", advice)
        else:
            advice = f"update the NVIDIA driver to one for CUDA {build}"
            yield Check("GPU", f"there is one, and torch for CUDA {build} cannot use it", "note", advice)
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        bf16 = "with" if about.major >= 8 else "without"
        what = f"{about.name}, {_gb(about.total_memory)}, capability {about.major}.{about.minor}"
        yield Check(f"GPU {number}", f"{what}, {bf16} bfloat16, CUDA {build}")


def _cores(torch: Any) -> Check:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads() if torch is not None else None
    found = f"{allowed}" + (f", {threads} threads in torch" if threads else "")
    if threads and threads > allowed:
        return Check("cores", found, "note", f"OMP_NUM_THREADS={allowed}, or threads wait for each other")
    return Check("cores", found)


def _bfloat16() -> str:
    """Whether the CPU has instructions for it; elsewhere bf16-mixed is slower than float32."""
    try:
        words = set(_CPUINFO.read_text(encoding="utf-8").split())
    except OSError:
        return "unknown on this CPU"
    found = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in words]
    return (
        f"in the CPU's hardware ({', '.join(found)})"
        if found
        else "not in the CPU's hardware: bf16 is slow there"
    )


def _memory() -> Check:
    """What the machine has, or what a container may take of it, and what of that is free."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
        total, free = (float(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        return Check("memory", "unknown")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        total = min(total, float(_CGROUP.read_text(encoding="utf-8")))
    return Check("memory", f"{_gb(total)}, {_gb(min(total, free))} free")


def _writable(runs_dir: Path) -> Check:
    """Whether a run directory can be made, and how large."""
    place = runs_dir.expanduser().absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        found = f"{runs_dir} cannot be written ({error.strerror})"
        return Check("runs", found, "broken", "give another place with --runs_dir")
    if free < _LITTLE_DISK:
        return Check("runs", f"{runs_dir}, {_gb(free)} free", "note", "a run of ResNet-18 keeps some 0.3 GB")
    return Check("runs", f"{runs_dir}, {_gb(free)} free")


def _gb(size: float) -> str:
    return f"{size / _GB:.1f} GB"
