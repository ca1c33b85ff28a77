"""Checks of devices, cores, memory and disk."""

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
    """Check devices, cores, memory, and the disk of the run directories."""
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
    except Exception:  # reported by the package checks
        return None


def _devices(torch: Any) -> Iterator[Check]:
    build = torch.version.cuda
    if not torch.cuda.is_available():
        if not _DRIVER.exists():
            yield Check("GPU", "none; training uses the CPU")
        elif build is None:
            advice = "install a CUDA build: https://pytorch.org/get-started/locally"
            yield Check("GPU", "present, but torch is built without CUDA", "note", advice)
        else:
            advice = f"update the NVIDIA driver to one for CUDA {build}"
            yield Check("GPU", f"present, but torch for CUDA {build} cannot use it", "note", advice)
        return
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        bf16 = "with" if gpu.major >= 8 else "without"
        description = f"{gpu.name}, {_gb(gpu.total_memory)}, capability {gpu.major}.{gpu.minor}"
        yield Check(f"GPU {index}", f"{description}, {bf16} bfloat16, CUDA {build}")


def _cores(torch: Any) -> Check:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads() if torch is not None else None
    description = f"{allowed}" + (f", {threads} threads in torch" if threads else "")
    if threads and threads > allowed:
        advice = f"OMP_NUM_THREADS={allowed} keeps threads from waiting for each other"
        return Check("cores", description, "note", advice)
    return Check("cores", description)


def _bfloat16() -> str:
    """Describe the bfloat16 support of the CPU; without it, bf16-mixed is slower than float32."""
    try:
        words = set(_CPUINFO.read_text(encoding="utf-8").split())
    except OSError:
        return "unknown on this CPU"
    flags = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in words]
    return f"supported by the CPU ({', '.join(flags)})" if flags else "slow, not supported by the CPU"


def _memory() -> Check:
    """Check the total and free memory of the machine, or of the container if that limits it."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
        total, free = (float(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        return Check("memory", "unknown")
    with suppress(OSError, ValueError):  # not in a container, or no limit
        total = min(total, float(_CGROUP.read_text(encoding="utf-8")))
    return Check("memory", f"{_gb(total)}, {_gb(min(total, free))} free")


def _writable(runs_dir: Path) -> Check:
    """Check that run directories can be created, and the free disk space."""
    folder = runs_dir.expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        description = f"{runs_dir} cannot be written ({error.strerror})"
        return Check("runs", description, "broken", "choose another directory with --runs_dir")
    if free < _LITTLE_DISK:
        return Check("runs", f"{runs_dir}, {_gb(free)} free", "note", "a run of ResNet-18 takes about 0.3 GB")
    return Check("runs", f"{runs_dir}, {_gb(free)} free")


def _gb(size: float) -> str:
    return f"{size / _GB:.1f} GB"
